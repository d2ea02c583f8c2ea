"""A run does not go on from one whose classes stood in another order; it is refused before ranks start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratlab_spec.models.model_specs import hash_names
from stratlab_spec.settings.fields import Settings
from stratlab_spec.settings.rules import CLASS_NAMES_SHA256
from tests.codes import find_codes
from trainer.checkpoint.folder import COMMIT
from trainer.launch.batch_validation import check_run

DIGITS = [str(digit) for digit in range(10)]
SHORT = {"model": "cnn", "dataset": "digits", "image_size": 16, "steps": 8, "profile_steps": 0}


@pytest.mark.parametrize(
    ("names", "code"),
    [(DIGITS, 0), (DIGITS[::-1], 2), (None, 0)],
    ids=["the same", "another order", "not written down"],
)
def test_the_classes_are_those_of_the_run_that_it_goes_on_from(
    tmp_path: Path, names: list[str] | None, code: int
) -> None:
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
