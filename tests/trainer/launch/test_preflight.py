"""What keeps a run from its folder is found before data is read or a process is started."""

import json
import shlex
from pathlib import Path

import pytest

from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes
from trainer.launch import preflight
from trainer.launch.batch_validation import check_run
from trainer.launch.preflight import check

SETTINGS = {"MODEL": "cnn", "STRATEGY": "single", "IMAGE_SIZE": "8", "STEPS": "12", "PROFILE_STEPS": "0"}
POD = {"STRATLAB_NAMESPACE": "team-a", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def settings(results: Path, **more: str) -> dict[str, str]:
    given = {"RUN": "try", "RESULTS": str(results), **SETTINGS, **more}
    return {f"TRAINER_{name}": value for name, value in given.items()}


def refuse(env: dict[str, str], processes: int = 1) -> tuple[list[str], str]:
    with pytest.raises(ConfigError) as failure:
        check(Config.from_env(env), processes, env)
    return find_codes(failure.value), str(failure.value)


def ask(env: dict[str, str]) -> tuple[int, list[str], str]:
    found = check_run(env, elsewhere=False, replaces=False, opened=set())
    said = "\n".join(found["problems"])
    return found["code"], find_codes(said), said


def leave_run(results: Path, name: str, *steps: int, processes: int = 1) -> RunDirectory:
    """What a run leaves that has committed checkpoints of these steps."""
    folder = RunDirectory(results, "default", name)
    folder.path.mkdir(parents=True)
    config = Config.from_env(settings(results, RUN=name)).model_dump()
    facts = {"comparison": "default", "run": name, "config": config, "resolved": {"world_size": processes}}
    folder.config.write_text(json.dumps(facts))
    for step in steps:
        (folder.checkpoints / f"step_{step:08d}").mkdir(parents=True)
        (folder.checkpoints / f"step_{step:08d}" / "COMMIT").touch()
    return folder


@pytest.fixture
def no_data(monkeypatch):
    monkeypatch.setattr(preflight, "open_data", lambda *arguments: pytest.fail("data was read"))


def test_a_finished_run_is_refused_before_its_data_is_looked_at(tmp_path, no_data):
    folder = leave_run(tmp_path, "try")
    folder.summary.write_text("{}")
    codes, said = refuse(settings(tmp_path))
    assert codes == ["SL-run-finished"] and said.endswith(f": stratlab remove {folder.path}")
    _, said = refuse(settings(tmp_path) | POD)
    assert shlex.split(said)[-5:] == ["remove", "default/try", "--on-cluster", "-n", "team-a"]
    code, codes, said = ask(settings(tmp_path) | POD)
    assert (code, codes) == (2, ["SL-run-finished"]) and "TRAINER_" not in said


def test_a_folder_of_somebody_else_is_no_place_for_a_run(tmp_path):
    (tmp_path / "default").mkdir()
    place = tmp_path / "default" / "try"
    place.touch()
    assert refuse(settings(tmp_path))[0] == ["SL-run-not-a-folder"]
    place.unlink()
    place.mkdir()
    (place / "thesis.tex").touch()
    codes, said = refuse(settings(tmp_path))
    assert codes == ["SL-run-strangers"] and "thesis.tex" in said
    (place / "config.json").write_text("[]")
    assert refuse(settings(tmp_path))[0] == ["SL-run-config-odd"]
    (place / "config.json").unlink()
    started = {"t": 1.0, "attempt": 1, "event": "started", "launcher": "a", "from_step": 0}
    (place / "attempts.jsonl").write_text(json.dumps(started) + "\n")
    assert refuse(settings(tmp_path))[0] == ["SL-run-config-missing"]
    assert {path.name for path in place.iterdir()} == {"thesis.tex", "attempts.jsonl"}


def test_the_nearest_folder_that_is_there_has_to_be_writable(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(preflight.os, "access", lambda path, how: bool(asked.append(path)))
    places = [tmp_path, tmp_path / "default", tmp_path / "default" / "try"]
    for place in places:
        place.mkdir(exist_ok=True)
        (said,) = preflight._writable_problems(Config(run="try", results=str(tmp_path)))
        assert find_codes(said) == ["SL-results-unwritable"] and f" {place} " in said
    assert asked == places


@pytest.mark.parametrize(
    ("given", "is_refused"),
    [
        ({}, True),
        ({"STEPS": "20"}, False),
        ({"RESUME_FROM": "default/whole/checkpoints/step_00000006"}, False),
    ],
)
def test_a_run_that_would_have_nothing_left_to_do_is_refused(tmp_path, given, is_refused):
    leave_run(tmp_path, "whole", 6, 12)
    code, codes, said = ask(settings(tmp_path, **({"RUN": "next", "RESUME_FROM": "default/whole"} | given)))
    assert (code, codes) == ((2, ["SL-resume-exhausted"]) if is_refused else (0, []))
    assert not is_refused or "step 12" in said


def test_a_restart_with_other_settings_is_refused_by_the_folder(tmp_path):
    leave_run(tmp_path, "try", 6)
    code, codes, said = ask(settings(tmp_path, LR="0.5") | POD)
    assert (code, codes) == (2, ["SL-run-settings-changed"]) and "lr=0.5" in said and "0.001" in said
    assert ask(settings(tmp_path, IMAGE="newer:1") | POD)[0] == 0


def test_another_number_of_processes_needs_a_checkpoint(tmp_path):
    folder = leave_run(tmp_path, "try", processes=2)
    env = settings(tmp_path, STRATEGY="ddp")
    folder.config.write_text(folder.config.read_text().replace('"single"', '"ddp"'))
    check(Config.from_env(env), 2, env)
    codes, said = refuse(env)
    assert codes == ["SL-run-settings-changed"] and "processes=1 " in said
    assert "TRAINER_CHECKPOINT_EVERY" in said
    (folder.checkpoints / "step_00000005").mkdir(parents=True)
    assert refuse(env)[0] == codes, "it was never committed"
    (folder.checkpoints / "step_00000005" / "COMMIT").touch()
    check(Config.from_env(env), 1, env)


@pytest.mark.parametrize(
    ("given", "code", "name"),
    [
        ({"PET_NNODES": "0"}, "SL-count-wrong", "PET_NNODES"),
        ({"PET_NNODES": "1:4"}, "SL-nodes-elastic", "1:4"),
        ({"MLFLOW_TRACKING_URI": "mlruns"}, "SL-tracking-uri", "mlruns"),
        ({"MLFLOW_TRACKING_URI": "http://me:pw@mlflow"}, "SL-tracking-login", "MLFLOW_TRACKING_USERNAME"),
    ],
)
def test_what_the_environment_asks_for_is_looked_at(tmp_path, given, code, name):
    codes, said = refuse(settings(tmp_path) | given)
    assert codes == [code] and name in said and "pw" not in said
