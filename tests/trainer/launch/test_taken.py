"""What keeps a run from its folder is found before data is read or a process is started."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from trainer.launch import preflight
from trainer.launch.lease import Lease
from trainer.launch.preflight import check
from trainer.launch.questions import check_run
from trainer.record.run_directory import RunDirectory
from trainer.settings.config import Config, ConfigError

SETTINGS = {"MODEL": "cnn", "STRATEGY": "single", "IMAGE_SIZE": "8", "STEPS": "12", "PROFILE_STEPS": "0"}
POD = {"STRATLAB_NAMESPACE": "team a", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def settings(results: Path, **more: str) -> dict[str, str]:
    given = {"RUN": "try", "RESULTS": str(results), **SETTINGS, **more}
    return {f"TRAINER_{name}": value for name, value in given.items()}


def refuse(env: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as failure:
        check(Config.from_env(env), 1, env)
    return str(failure.value)


def leave_run(results: Path, name: str, *steps: int) -> RunDirectory:
    """What a run leaves that has committed checkpoints of these steps."""
    folder = RunDirectory(results, "default", name)
    folder.path.mkdir(parents=True)
    config = Config.from_env(settings(results, RUN=name))
    facts = {
        "comparison": "default",
        "run": name,
        "config": config.model_dump(),
        "resolved": {"world_size": 1},
    }
    folder.config.write_text(json.dumps(facts))
    for step in steps:
        (folder.checkpoints / f"step_{step:08d}").mkdir(parents=True)
        (folder.checkpoints / f"step_{step:08d}" / "COMMIT").touch()
    return folder


def test_a_finished_run_is_refused_before_its_data_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = leave_run(tmp_path, "try")
    folder.summary.write_text("{}")
    monkeypatch.setattr(preflight, "open_data", lambda *arguments: pytest.fail("data was read"))
    said = refuse(settings(tmp_path))
    assert f"stratlab remove {folder.path}" in said and "--on-cluster" not in said
    assert shlex.split(refuse(settings(tmp_path) | POD | {"STRATLAB_NAMESPACE": "team-a"}))[-5:] == [
        "remove", "default/try", "--on-cluster", "-n", "team-a"
    ]  # fmt: skip
    found = check_run(settings(tmp_path) | POD, elsewhere=False, replaces=False, opened=set())
    assert found["code"] == 2 and "TRAINER_" not in str(found["problems"])


def test_a_folder_that_is_written_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunDirectory(tmp_path, "default", "try")
    monkeypatch.setattr(preflight, "open_data", lambda *arguments: pytest.fail("data was read"))
    monkeypatch.setattr("trainer.launch.lease.RENEW_S", 0.05)
    first = Lease(folder, "one", "pod")
    first.take()
    try:
        found = check_run(settings(tmp_path), elsewhere=False, replaces=False, opened=set())
    finally:
        first.release()
    assert found["code"] == 2 and "another start" in found["problems"][0]


def test_a_look_leaves_nothing(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path, "default", "try")
    Lease(folder, "one", "pod").check()
    assert not folder.path.exists()


@pytest.mark.parametrize(
    ("given", "is_refused"),
    [
        ({}, True),
        ({"STEPS": "20"}, False),
        ({"RESUME_FROM": "default/whole/checkpoints/step_00000006"}, False),
        ({"RESUME_FROM": "default/whole/checkpoints/step_00000012"}, True),
    ],
)
def test_a_run_that_would_have_nothing_left_to_do_is_refused(
    tmp_path: Path, given: dict[str, str], is_refused: bool
) -> None:
    leave_run(tmp_path, "whole", 6, 12)
    env = settings(tmp_path, **({"RUN": "next", "RESUME_FROM": "default/whole"} | given))
    found = check_run(env, elsewhere=False, replaces=False, opened=set())
    assert (found["code"] == 2) == is_refused, found
    if is_refused:
        assert "step 12" in found["problems"][0] and "TRAINER_STEPS" in found["problems"][0]


def test_an_attempt_that_began_earlier_goes_on_from_there(tmp_path: Path) -> None:
    leave_run(tmp_path, "whole", 6, 12)
    own = leave_run(tmp_path, "next")
    facts = json.loads(own.config.read_text())
    env = settings(tmp_path, RUN="next", RESUME_FROM="default/whole")
    facts["config"] = Config.from_env(env).model_dump()
    facts["resolved"]["resumed_from"] = {"run": "default/whole", "step": 6}
    own.config.write_text(json.dumps(facts))
    assert check_run(env, elsewhere=False, replaces=False, opened=set())["code"] == 0


def test_a_restart_with_other_settings_is_refused_by_the_folder(tmp_path: Path) -> None:
    """As after `kubectl apply` of a changed template: no chart has compared it."""
    leave_run(tmp_path, "try", 6)
    found = check_run(settings(tmp_path, LR="0.5") | POD, elsewhere=False, replaces=False, opened=set())
    assert found["code"] == 2 and "lr=0.5" in found["problems"][0]
    assert (
        check_run(settings(tmp_path, IMAGE="newer:1") | POD, elsewhere=False, replaces=False, opened=set())[
            "code"
        ]
        == 0
    )
