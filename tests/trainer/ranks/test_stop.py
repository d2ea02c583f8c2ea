"""A run that is told to stop, wherever it is: behind one step, with a checkpoint of it; what follows is as if nothing
had been. One rank alone hears of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.kept_runs import STEPS, lines, read, train
from tests.trainer.ranks.test_resume import assert_equal_ending, losses
from trainer.checkpoint.folder import CheckpointFolder
from trainer.checkpoint.manifest import COMMIT
from trainer.record.run_directory import RunDirectory


def stop_at(place: str, count: int, rank: int = 1) -> Callable[[], None]:
    """A worker whose rank is told to stop when it is at `place` for the `count`-th time."""

    def target() -> None:
        import signal
        import time

        from trainer import worker
        from trainer.agreement.agreement import Agreement
        from trainer.checkpoint.store import Checkpoints
        from trainer.engines.torch_engine import TorchEngine

        # asked behind every step: how long one takes is the machine's affair
        Agreement.__init__.__defaults__ = (0, 0.0)
        owner = Checkpoints if place.startswith("_") else TorchEngine
        if place == "train_step" and os.environ["TRAINER_STRATEGY"].startswith("zero"):
            from trainer.engines.zero_engine import DeepSpeedEngine as owner
        real, calls = getattr(owner, place), [0]

        def told(self: object, *given: object) -> object:
            calls[0] += 1
            if calls[0] == count and int(os.environ["RANK"]) == rank:
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.5)  # a thread hears it
            return real(self, *given)

        setattr(owner, place, told)
        raise SystemExit(worker.main())

    return target


def committed(folder: Path) -> list[int]:
    return CheckpointFolder(RunDirectory(folder.parents[1], folder.parent.name, folder.name)).committed()


@pytest.mark.parametrize(
    ("strategy", "place", "count", "behind"),
    [
        ("ddp", "train_step", 7, 7),
        ("fsdp", "train_step", 9, 9),
        ("zero2", "train_step", 4, 4),
        ("ddp", "evaluate", 1, 6),  # in the first validation
        ("ddp", "_take", 1, 6),  # in the checkpoint of step 5: noticed behind the next step
        ("ddp", "train_step", 12, 12),  # before the last validation
    ],
)
def test_a_stop_loses_no_step_and_changes_nothing(tmp_path, uninterrupted, strategy, place, count, behind):
    folder = train(tmp_path, strategy, 2, stop_at(place, count), codes=(143,))
    assert max(losses(folder, 1)) == behind == committed(folder)[-1]
    (event,) = [x for x in lines(folder) if x["kind"] == "event"]
    assert (event["name"], event["step"], event["text"]) == (
        "stopped",
        behind,
        f"goes on behind step {behind}",
    )

    train(tmp_path, strategy, 2)
    assert list(losses(folder, 2)) == list(range(behind + 1, STEPS + 1))
    assert_equal_ending(folder, uninterrupted(strategy, 2))
    validated = [x["step"] for x in lines(folder) if x["kind"] == "eval"]
    assert validated == [6, 12]
    assert read(folder, "checkpoints/best.json") == read(uninterrupted(strategy, 2), "checkpoints/best.json")


def test_a_stop_behind_the_last_checkpoint_leaves_at_once(tmp_path, uninterrupted):
    """While the test split is evaluated."""
    folder = train(tmp_path, "ddp", 2, stop_at("evaluate", 20), codes=(143,))
    assert not (folder / "summary.json").exists() and committed(folder)[-1] == STEPS
    train(tmp_path, "ddp", 2)
    assert losses(folder, 2) == {}
    assert_equal_ending(folder, uninterrupted("ddp", 2))


def test_a_run_without_checkpoints_stops_too_and_keeps_its_metrics(tmp_path):
    off = {"TRAINER_CHECKPOINT_EVERY": "0", "TRAINER_CHECKPOINT_MINUTES": "0"}
    given = {**off, "TRAINER_LOG_EVERY": "100"}
    folder = train(tmp_path, "ddp", 2, stop_at("train_step", 5), codes=(143,), **given)
    assert list(losses(folder, 1)) == [1, 2, 3, 4, 5]
    assert not (folder / "checkpoints").exists()
    (event,) = [x for x in lines(folder) if x["kind"] == "event"]
    assert event["text"] == "keeps no checkpoint"


def test_a_peer_that_is_lost_ends_the_attempt_although_it_was_told_to_stop(tmp_path):
    """Step 7 is saved by nobody; what was being written before is waited for, lest a slow disk decide."""
    stops = stop_at("train_step", 7, rank=0)
    newest = CheckpointFolder(RunDirectory(tmp_path, "default", "ddp")).step(6) / COMMIT

    def target() -> None:
        import time

        from trainer.agreement.agreement import Agreement

        real = Agreement._reduce

        def reduce(self: Agreement, unit_s: float) -> float:
            if self.step == 7 and int(os.environ["RANK"]) == 1:
                until = time.monotonic() + 60
                while not newest.is_file() and time.monotonic() < until:
                    time.sleep(0.01)
                os._exit(77)
            return real(self, unit_s)

        Agreement._reduce = reduce  # type: ignore[method-assign]
        stops()

    folder = train(tmp_path, "ddp", 2, target, codes=(134, 77))
    assert committed(folder) == [5, 6]
