"""Saving with two ranks, a crash at every stage, a full disk; the engine is a stand-in that saves one tensor."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.codes import find_codes
from tests.ranks import fork_ranks, run_ranks
from tests.trainer.checkpoint.stand_in import STEPS, build, exit_by_its_code, folder_of, read_lines
from trainer.checkpoint.folder import CheckpointFolder
from trainer.record.run_directory import RunDirectory


def test_saved_every_so_often_at_the_end_and_at_a_new_best(tmp_path):
    def train() -> None:
        *_, step_until = build(tmp_path, every=3, keep=2)
        step_until(STEPS, {1: 10.0, 5: 30.0, 7: 30.0, 8: 20.0})

    run_ranks(train, 2)
    folder = folder_of(tmp_path)
    assert folder.committed() == [5, 6, 8] and folder.read_best() == 5  # 1 and 3 are pruned, 7 is no better
    saved = [line for line in read_lines(tmp_path) if "checkpoint_ms" in line]
    assert [line["step"] for line in saved] == [1, 3, 5, 6, 8]
    assert all(line["checkpoint_ms"] > 0 and line["checkpoint_gib"] > 0 for line in saved)
    chosen, _ = folder.choose()
    assert chosen is not None
    state = chosen.state
    assert (state.step, state.samples, state.world_size, state.axes["dp_replicate"]) == (8, 8 * 64, 2, 2)
    assert state.train_loss == pytest.approx(2 / 8) and state.best == {
        "step": 5,
        "loss": 1.0,
        "accuracy_pct": 30,
    }
    names = {str(path.relative_to(chosen.path)) for path in chosen.path.rglob("*") if path.is_file()}
    assert names == {
        *("engine/rank0.pt", "engine/rank1.pt", "ranks/rank_00000.pt", "ranks/rank_00001.pt"),
        *("state.json", "manifest.json", "COMMIT"),
    }


CRASHES = {
    "before a rank hashes": ("trainer.checkpoint.writing", "describe_files", 1),
    "before the commit": ("trainer.checkpoint.manifest", "write_json", 0),
    "before the rename": ("trainer.checkpoint.folder.os", "rename", 0),
    "before pruning": ("trainer.checkpoint.folder.CheckpointFolder", "prune", 0),
}


@pytest.mark.parametrize("stage", CRASHES)
def test_a_crash_anywhere_costs_at_most_the_newest_checkpoint(tmp_path, stage):
    where, name, rank = CRASHES[stage]

    def train() -> None:
        import pkgutil

        *_, step_until = build(tmp_path)
        step_until(4)
        if int(os.environ["RANK"]) == rank:
            setattr(pkgutil.resolve_name(where), name, lambda *a, **k: os._exit(77))
        step_until(6)

    def go_on() -> None:
        _, engine, attempt, step_until = build(tmp_path)
        assert attempt.from_step == (6 if stage == "before pruning" else 4)
        assert engine.value.tolist() == [attempt.from_step, int(os.environ["RANK"])]
        step_until(STEPS)

    codes = [r.exit_code for r in fork_ranks(train, 2, grace_s=1)]
    assert codes[rank] == 77, codes
    run_ranks(go_on, 2)
    folder = folder_of(tmp_path)
    assert folder.committed() == [6, 8]
    assert sorted(p.name for p in folder.path.iterdir()) == ["step_00000006", "step_00000008"]
    starts = RunDirectory(tmp_path, "default", "try").read_attempts()
    assert [line["from_step"] for line in starts] == [0, 6 if stage == "before pruning" else 4]
    assert {line["world_size"] for line in starts} == {2}


def test_the_last_checkpoint_costs_no_run(tmp_path):
    """When it does not fit, nor did the one before it: the results are still to be written."""

    def train() -> None:
        _, engine, _, step_until = build(tmp_path)
        step_until(STEPS - 3)

        def save(folder: Path, value: object) -> list[str]:
            (folder / f"full{os.environ['RANK']}").symlink_to("/dev/full")
            (folder / f"full{os.environ['RANK']}").write_bytes(b"x")
            return []

        engine.save = save
        step_until(STEPS)

    run_ranks(train, 2)
    texts = [line["text"] for line in read_lines(tmp_path) if line.get("name") == "checkpoint left out"]
    assert find_codes(texts[-1]) == ["SL-last-checkpoint-left-out"]


def test_a_volume_that_is_full_behind_the_commit_costs_no_checkpoint(tmp_path):
    """Found with a volume of 3 MB: what was committed was called left out, because best.json did not fit any more."""

    def train() -> None:
        checkpoints, *_, step_until = build(tmp_path)

        def write_best(self, best: dict) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        CheckpointFolder.write_best = write_best
        checkpoints.validation = {"step": 2, "loss": 1.0, "accuracy_pct": 50.0}
        step_until(STEPS)
        checkpoints.finish()

    run_ranks(train, 2)
    folder = folder_of(tmp_path)
    assert folder.committed() == [2, 6, 8], "2 is the best"
    assert folder.read_best() is None
    assert not [line for line in read_lines(tmp_path) if line.get("name") == "checkpoint left out"]


@pytest.mark.parametrize(("how", "full_rank"), [("write", 1), ("torch.save", 0)])
def test_a_full_disk_costs_a_checkpoint_and_then_the_run(tmp_path, how, full_rank):
    """F9: a warning first; when the next one does not fit either, the older ones make room; then 13, on every rank."""

    def train() -> None:
        import torch

        _, engine, _, step_until = build(tmp_path, steps=STEPS + 2)
        step_until(4)

        def save(folder: Path, value: object) -> list[str]:
            file = folder / f"full{os.environ['RANK']}"
            if int(os.environ["RANK"]) == full_rank:
                file.symlink_to("/dev/full")  # ENOSPC at every write
            if how == "write":
                file.write_bytes(bytes(1 << 20))
            else:
                torch.save(torch.zeros(1 << 20), file)
            return [file.name]

        engine.save = save
        step_until(6)
        assert folder_of(tmp_path).committed() == [2, 4]
        exit_by_its_code(lambda: step_until(8))

    assert [r.exit_code for r in fork_ranks(train, 2)] == [13, 13]
    folder = folder_of(tmp_path)
    assert folder.committed() == [4] and [p.name for p in folder.path.iterdir()] == ["step_00000004"]
    lines = read_lines(tmp_path)
    first, second = (line["text"] for line in lines if line.get("name") == "checkpoint left out")
    assert [find_codes(text) for text in (first, second)] == [
        ["SL-checkpoint-left-out"],
        ["SL-checkpoints-make-room"],
    ]
    assert f"rank {full_rank}: " in first and "step 6 " in first and "step 8:" in second
    assert [line["checkpoints_left_out"] for line in lines if "checkpoints_left_out" in line] == [1, 1]


def test_a_full_disk_that_has_room_again_costs_one_checkpoint(tmp_path):
    def train() -> None:
        _, engine, _, step_until = build(tmp_path, keep=3)
        save = engine.save
        step_until(4, {2: 90.0, 4: 80.0})

        def fail_once(folder: Path, value: object) -> list[str]:
            engine.save = save
            raise RuntimeError("[enforce fail at inline_container.cc:603] . unexpected pos 704 vs 598")

        engine.save = fail_once
        step_until(6, {6: 95.0})
        step_until(8)

    run_ranks(train, 2)
    folder = folder_of(tmp_path)
    assert folder.committed() == [2, 4, 8]
    assert folder.read_best() == 2  # the better one was not saved


def test_the_older_ones_make_room(tmp_path):
    """But never the best."""

    def train() -> None:
        _, engine, _, step_until = build(tmp_path, keep=5)
        save, room = engine.save, folder_of(tmp_path)
        step_until(4, {2: 90.0, 4: 80.0})
        save_4 = room.step(3)
        if os.environ["RANK"] == "0":
            shutil.copytree(room.step(4), save_4)
        import torch.distributed as dist

        dist.barrier()

        def save_if_there_is_room(folder: Path, value: object) -> list[str]:
            if len(room.committed()) > 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            return save(folder, value)

        engine.save = save_if_there_is_room
        step_until(6, {6: 70.0})
        assert room.committed() == [2, 3, 4]
        step_until(8, {8: 85.0})

    run_ranks(train, 2)
    folder = folder_of(tmp_path)
    assert folder.committed() == [2, 4, 8] and folder.read_best() == 2


def test_what_is_no_full_disk_is_a_crash(tmp_path):
    def train() -> None:
        _, engine, _, step_until = build(tmp_path)

        def save(folder: Path, value: object) -> list[str]:
            if os.environ["RANK"] == "0":
                raise RuntimeError("a bug")
            return []

        engine.save = save
        exit_by_its_code(lambda: step_until(2))

    codes = [r.exit_code for r in fork_ranks(train, 2, grace_s=1)]
    assert codes[0] == 1 and codes[1] in (134, -15, -9), codes


def test_a_rank_whose_folder_rank_0_took_away_is_no_culprit(tmp_path):
    remove = shutil.rmtree

    def remove_slowly(path: Path, **options: bool) -> None:
        for inner in path.glob("*"):
            remove(inner)
        time.sleep(0.5)  # a rank that fails now still sees the folder, unless that was renamed first
        remove(path, **options)

    def train() -> None:
        import torch

        _, engine, _, step_until = build(tmp_path)
        shutil.rmtree = remove_slowly

        def save(folder: Path, value: object) -> list[str]:
            there, file = folder / "there", folder / "late"
            if os.environ["RANK"] == "0":
                while not there.exists():
                    time.sleep(0.01)
                raise OSError(errno.EBADF, "Bad file descriptor")
            there.touch()
            while folder.exists():
                time.sleep(0.01)
            torch.save(torch.zeros(2), file)
            return []

        engine.save = save
        exit_by_its_code(lambda: step_until(2))

    assert [r.exit_code for r in fork_ranks(train, 2)] == [1, 134]


def test_never_starts_over(tmp_path):
    def train() -> None:
        *_, step_until = build(tmp_path)
        step_until(4)

    def start_over() -> None:
        *_, attempt, step_until = build(tmp_path, resume="never")
        assert attempt.from_step == 0
        step_until(2)

    run_ranks(train, 1)
    run_ranks(start_over, 1)
    assert folder_of(tmp_path).committed() == [2]


def test_another_strategy_s_checkpoint_is_refused(tmp_path):
    def train() -> None:
        *_, step_until = build(tmp_path)
        step_until(2)

    def go_on() -> None:
        from trainer.checkpoint import folder
        from trainer.settings.config import ConfigError

        read = folder.TrainingState.read

        def other(path: Path):
            import dataclasses

            return dataclasses.replace(read(path), strategy="zero2")

        folder.TrainingState.read = other
        with pytest.raises(ConfigError) as refused:
            build(tmp_path)
        assert find_codes(refused.value) == ["SL-checkpoint-strategy"]

    run_ranks(train, 1)
    run_ranks(go_on, 1)


def test_random_numbers_and_skipped_steps_go_on_on_every_rank(tmp_path):
    def train() -> None:
        import torch

        checkpoints, *_, step_until = build(tmp_path)
        torch.manual_seed(int(os.environ["RANK"]))
        checkpoints._recorder.skipped_steps = 3
        step_until(2)
        (tmp_path / f"wanted{os.environ['RANK']}").write_text(str(torch.rand(1).item()))

    def go_on() -> None:
        import torch

        checkpoints, *_ = build(tmp_path)
        assert str(torch.rand(1).item()) == (tmp_path / f"wanted{os.environ['RANK']}").read_text()
        assert checkpoints._recorder.skipped_steps == 3

    run_ranks(train, 2)
    run_ranks(go_on, 2)
