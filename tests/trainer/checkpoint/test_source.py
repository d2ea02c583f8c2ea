"""Which run another one may go on from, found before ranks start, by names and settings alone."""

import json
from pathlib import Path

import pytest

from stratlab_spec.models.model_specs import hash_names
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.fields import Settings
from stratlab_spec.settings.rules import CLASS_NAMES_SHA256
from tests.codes import find_codes, refuses
from tests.trainer.launch.test_preflight import leave_run, settings
from trainer.checkpoint.folder import COMMIT
from trainer.checkpoint.source import open_source
from trainer.launch.batch_validation import check_run
from trainer.launch.preflight import check


@pytest.fixture
def results(tmp_path: Path) -> Path:
    leave_run(tmp_path, "whole", 5, 10)
    return tmp_path


def refusal(results: Path, **more: str) -> tuple[list[str], str]:
    env = settings(results, **{"RESUME_FROM": "default/whole", "STEPS": "12", **more})
    with pytest.raises(ConfigError) as refused:
        check(Config.from_env(env), 1, env)
    return find_codes(refused.value), str(refused.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"MODEL": "vit_tiny", "LORA_RANK": "2"},
        {"GLOBAL_BATCH_SIZE": "16", "MICRO_BATCH_SIZE": "16"},
        {"LR": "0.5", "SEED": "3"},  # all at once
    ],
)
def test_what_is_another_training_is_refused(results, changed):
    _, said = refusal(results, **changed)
    names = [name.lower() for name in changed if name != "MICRO_BATCH_SIZE"]
    assert all(f"{name}=" in said for name in names) and "TRAINER_MODEL_PATH" in said


def test_what_is_no_other_run_is_refused(results, tmp_path_factory):
    assert refusal(results, RESUME_FROM="default")[0] == ["SL-resume-no-run"]
    assert refusal(results, RESUME_FROM="../elsewhere/ddp")[0] == ["SL-resume-outside"]
    (results / "link").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    assert refusal(results, RESUME_FROM="link/ddp")[0] == ["SL-resume-outside"]
    codes, said = refusal(results, RESUME_FROM="default/whole/checkpoints/step_00000007")
    assert codes == ["SL-resume-no-checkpoint"] and "5, 10" in said
    own = Config.from_env(settings(results, RUN="whole", RESUME_FROM="default/whole"))
    with refuses(ConfigError, "SL-resume-own-run"):
        open_source(own)


DIGITS = [str(digit) for digit in range(10)]
SHORT = {"model": "cnn", "dataset": "digits", "image_size": 16, "steps": 8, "profile_steps": 0}


@pytest.mark.parametrize(
    ("names", "code"),
    [(DIGITS, 0), (DIGITS[::-1], 2), (None, 0)],
    ids=["the same", "another order", "not written down"],
)
def test_the_classes_are_those_of_the_run_that_it_goes_on_from(tmp_path, names, code):
    folder = tmp_path / "default/a"
    (folder / "checkpoints/step_00000004").mkdir(parents=True)
    (folder / "checkpoints/step_00000004" / COMMIT).write_text("{}")
    resolved = {} if names is None else {CLASS_NAMES_SHA256: hash_names(names)}
    asked = Settings(run="a", results=str(tmp_path), **SHORT)
    known = {"comparison": "default", "run": "a", "config": asked.model_dump(), "resolved": resolved}
    (folder / "config.json").write_text(json.dumps(known))
    env = {f"TRAINER_{name.upper()}": str(value) for name, value in SHORT.items()}
    env |= {"TRAINER_RUN": "b", "TRAINER_RESULTS": str(tmp_path), "TRAINER_RESUME_FROM": "default/a"}
    found = check_run(env, elsewhere=False, replaces=False, opened=set())
    assert found["code"] == code, found
    assert [find_codes(problem) for problem in found["problems"]] == [["SL-resume-classes"]] * (code != 0)
