"""A run that dies or is stopped and goes on is the run that never was: real workers, real engines, digits."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from stratlab_spec.run_directory import RunDirectory
from tests.trainer.kept_runs import STEPS, lines, read, train
from tests.trainer.runs import run_worker
from trainer.checkpoint.folder import CheckpointFolder

SAME = (
    *("train_loss", "validation_loss", "validation_accuracy_pct", "test_loss", "test_accuracy_pct"),
    *("data_order_sha256", "initial_weights_sha256", "skipped_steps", "steps"),
    *("dtype_parameters", "dtype_optimizer", "optimizer_memory_gib"),
)


def losses(folder: Path, attempt: int) -> dict[int, float]:
    found = lines(folder)
    return {x["step"]: x["loss"] for x in found if x["kind"] == "train" and x["attempt"] == attempt}


def read_attempts(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "attempts.jsonl").open()]


def committed(folder: Path) -> list[int]:
    return CheckpointFolder(RunDirectory(folder.parents[1], folder.parent.name, folder.name)).committed()


def assert_equal_ending(resumed: Path, whole: Path) -> None:
    """Bitwise: losses, weights, evaluation, hash of the data order."""
    again, never = losses(resumed, 2), losses(whole, 1)
    assert again == {step: never[step] for step in again} and max(again, default=STEPS) == STEPS
    for name in ("model/model.safetensors", "model/config.json"):
        assert (resumed / name).read_bytes() == (whole / name).read_bytes()
    assert read(resumed, "evaluation.json") == read(whole, "evaluation.json")
    a, b = read(resumed, "summary.json"), read(whole, "summary.json")
    assert {name: a[name] for name in SAME} == {name: b[name] for name in SAME}


def planted(fault: str, **more: str) -> dict[str, str]:
    return {"TRAINER_FAULT": fault, "TRAINER_ALLOW_FAULTS": "true", **more}


def test_a_run_whose_rank_is_killed_goes_on_as_if_it_had_not_died(tmp_path, uninterrupted):
    folder = train(tmp_path, "ddp", 2, codes=(-9, 134), **planted("kill@8:1"))
    assert max(losses(folder, 1), default=0) <= 7 and not (folder / "summary.json").exists()
    last = committed(folder)[-1]
    assert last in (5, 6), "written beside training"
    train(tmp_path, "ddp", 2, **planted("kill@8:1"))  # once in the run
    assert [(a["attempt"], a["from_step"]) for a in read_attempts(folder)] == [(1, 0), (2, last)]
    assert list(losses(folder, 2)) == list(range(last + 1, STEPS + 1))
    assert_equal_ending(folder, uninterrupted("ddp", 2))
    asked = read(folder, "config.json")["config"]
    assert (asked["fault"], asked["allow_faults"]) == ("kill@8:1", True)


def stop_at(place: str, count: int, rank: int = 1) -> Callable[[], None]:
    """A worker whose rank is told to stop when it is at `place` for the `count`-th time."""

    def target() -> None:
        import signal
        import time

        from trainer.checkpoint.store import Checkpoints
        from trainer.distributed.consensus import Agreement
        from trainer.engines.torch_engine import TorchEngine

        # asked behind every step: how long one takes is the machine's affair
        Agreement.__init__.__defaults__ = (0, 0.0)
        owner = Checkpoints if place.startswith("_") else TorchEngine
        if place == "train_step" and os.environ["TRAINER_STRATEGY"].startswith("zero"):
            from trainer.strategies.zero import DeepSpeedEngine as owner
        real, calls = getattr(owner, place), [0]

        def told(self: object, *given: object) -> object:
            calls[0] += 1
            if calls[0] == count and int(os.environ["RANK"]) == rank:
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.5)  # a thread hears it
            return real(self, *given)

        setattr(owner, place, told)
        raise SystemExit(run_worker())

    return target


def check_stop(results: Path, whole: Path, place: str, count: int, behind: int) -> None:
    """It ends behind one step, with a checkpoint of it; what follows is as if nothing had been."""
    strategy = whole.name
    folder = train(results, strategy, 2, stop_at(place, count), codes=(143,))
    assert max(losses(folder, 1)) == behind == committed(folder)[-1]
    (event,) = [x for x in lines(folder) if x["kind"] == "event"]
    assert (event["name"], event["step"]) == ("stopped", behind) and str(behind) in event["text"]
    train(results, strategy, 2)
    assert list(losses(folder, 2)) == list(range(behind + 1, STEPS + 1))
    assert_equal_ending(folder, whole)
    assert [x["step"] for x in lines(folder) if x["kind"] == "eval"] == [6, 12]
    assert read(folder, "checkpoints/best.json") == read(whole, "checkpoints/best.json")


def test_a_stop_that_one_rank_hears_loses_no_step_and_changes_nothing(tmp_path, uninterrupted):
    check_stop(tmp_path, uninterrupted("zero2", 2), "train_step", 7, 7)
