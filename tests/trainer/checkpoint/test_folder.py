"""Which checkpoint is taken, after every kind of damage; the files are real, their content is made up."""

import dataclasses
import errno
import json
import os
from pathlib import Path

import pytest

from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import ConfigError
from tests.codes import find_codes, refuses
from trainer.checkpoint.folder import (
    FILE,
    CheckpointFolder,
    TrainingState,
    describe_files,
    seal,
)

STATE = TrainingState(
    step=0, attempt=1, strategy="ddp", world_size=2, axes={"dp_replicate": 2}, config_sha256="",
    samples=0, train_loss=1.0, skipped_steps=0, train_time_s=1.0,
)  # fmt: skip


@pytest.fixture
def folder(tmp_path) -> CheckpointFolder:
    return CheckpointFolder(RunDirectory(tmp_path, "default", "try"))


def write(folder: CheckpointFolder, step: int, **state: object) -> Path:
    """A committed checkpoint with a small and a larger file."""
    temporary = folder.temporary(step)
    (temporary / "engine").mkdir(parents=True)
    (temporary / "engine" / "__0_0.distcp").write_bytes(bytes(range(256)) * 40)
    (temporary / "engine" / ".metadata").write_bytes(b"metadata")
    dataclasses.replace(STATE, step=step, **state).write(temporary)
    names = [str(path.relative_to(temporary)) for path in temporary.rglob("*") if path.is_file()]
    seal(temporary, describe_files(temporary, names))
    folder.commit(step)
    return folder.step(step)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage", "code"),
    [
        ("engine/__0_0.distcp", cut, "SL-file-size"),
        ("engine/__0_0.distcp", flip, "SL-file-changed"),
        ("engine/.metadata", Path.unlink, "SL-checkpoint-file-missing"),
        ("state.json", flip, "SL-file-changed"),
        ("manifest.json", cut, "SL-manifest-changed"),
        ("manifest.json", Path.unlink, "SL-commit-unreadable"),
        ("COMMIT", cut, "SL-commit-unreadable"),
        ("COMMIT", Path.unlink, ""),  # it never was a checkpoint
    ],
)
def test_any_damage_to_any_file_is_found_and_the_older_checkpoint_taken(folder, name, damage, code):
    write(folder, 10)
    damage(write(folder, 20) / name)
    chosen, skipped = folder.choose()
    assert chosen is not None and (chosen.path, chosen.state.step) == (folder.step(10), 10)
    assert len(skipped) == bool(code)
    if code:
        assert find_codes(skipped[0]) == [code, "SL-checkpoint-broken"] and "step 20 " in skipped[0]
        assert name in skipped[0] or name == "COMMIT"


def test_leftovers_are_never_taken_and_are_removed(folder):
    write(folder, 10)
    (folder.temporary(20) / "engine").mkdir(parents=True)
    (folder.temporary(20) / "COMMIT").write_text("{}")
    assert folder.committed() == [10]
    folder.remove_leftovers()
    assert [path.name for path in folder.path.iterdir()] == ["step_00000010"]


def test_pruning_keeps_the_newest_and_the_best(folder):
    for step in (10, 20, 30, 40, 50):
        write(folder, step)
    folder.prune(keep=2, best=20)
    assert folder.committed() == [20, 40, 50]
    folder.prune(keep=2, best=50)
    assert folder.committed() == [40, 50]
    folder.prune(keep=5, best=None)
    assert sorted(path.name for path in folder.path.iterdir()) == ["step_00000040", "step_00000050"]


@pytest.mark.parametrize("renames", [True, False])
def test_what_is_given_up_is_gone_also_where_a_full_volume_takes_no_new_name(folder, renames, monkeypatch):
    def refuse(*names: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write(folder, 10)
    if not renames:
        monkeypatch.setattr("trainer.checkpoint.folder.os.rename", refuse)
    folder.give_up(20)  # there is none yet
    (folder.temporary(20) / "engine").mkdir(parents=True)
    (folder.temporary(20) / "engine" / "rank_0").touch()
    folder.give_up(20)
    assert [path.name for path in folder.path.iterdir()] == ["step_00000010"]


def test_the_metrics_are_durable_before_the_checkpoint_is(folder, monkeypatch):
    folder.path.mkdir(parents=True)
    metrics = folder.path.parent / "metrics.jsonl"
    metrics.write_text("{}\n")
    synced: list[tuple[str, bool]] = []
    sync = os.fsync

    def watch(handle: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{handle}"), folder.step(10).exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", watch)
    write(folder, 10)
    assert (str(metrics), False) in synced


@pytest.mark.parametrize(
    "content", [*({"step": -5}, {"samples": None}, {"attempt": 1.5}, {"world_size": True}, [], {})]
)
def test_what_is_no_state_is_refused(tmp_path, content):
    STATE.write(tmp_path)
    if content and isinstance(content, dict):
        content = json.loads((tmp_path / FILE).read_text()) | content
    (tmp_path / FILE).write_text(json.dumps(content))
    with refuses(ConfigError, "SL-state-not-a-run", FILE):
        TrainingState.read(tmp_path)


@pytest.mark.parametrize(("keep", "left"), [("newest", [30]), ("all", [10, 20, 30]), ("none", [])])
def test_what_a_finished_run_keeps(folder, keep, left):
    for step in (10, 20, 30):
        write(folder, step)
    folder.retire(keep)
    assert (folder.committed(), len([*folder.path.iterdir()])) == (left, len(left))
