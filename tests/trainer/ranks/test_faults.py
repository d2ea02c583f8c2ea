"""Faults on demand, in real workers: what each does, once in a run, and in every attempt where that is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainer.kept_runs import STEPS, lines, train
from tests.trainer.ranks.test_resume import assert_equal_ending, losses


def planted(fault: str, **more: str) -> dict[str, str]:
    return {"TRAINER_FAULT": fault, "TRAINER_ALLOW_FAULTS": "true", **more}


def marks(folder: Path) -> dict[str, int]:
    """Fault -> how often it has happened."""
    return {path.name: len(path.read_text().splitlines()) for path in sorted((folder / "faults").iterdir())}


def test_a_killed_rank_is_killed_once(tmp_path, uninterrupted):
    folder = train(tmp_path, "ddp", 2, codes=(-9, 134), **planted("kill@8:1"))
    assert max(losses(folder, 1), default=0) <= 7 and marks(folder) == {"kill@8_1": 1}
    train(tmp_path, "ddp", 2, **planted("kill@8:1"))
    assert_equal_ending(folder, uninterrupted("ddp", 2))
    written = json.loads((folder / "faults" / "kill@8_1").read_text())
    assert (written["attempt"], written["kind"], written["step"], written["rank"]) == (1, "kill", 8, 1)
    asked = json.loads((folder / "config.json").read_text())["config"]
    assert (asked["fault"], asked["allow_faults"]) == ("kill@8:1", True)


def test_in_every_attempt_where_that_is_asked(tmp_path):
    for times in (1, 2):
        folder = train(tmp_path, "single", 1, codes=(-9,), **planted("kill@8!"))
        assert marks(folder) == {"kill@8_0": times}


@pytest.mark.parametrize(
    ("fault", "strategy", "code"),
    [("nan@4:1", "ddp", 12), ("nan@4", "zero2", 12), ("oom@4", "single", 10)],
)
def test_what_a_run_cannot_go_on_from(tmp_path, fault, strategy, code):
    folder = train(tmp_path, strategy, 1 if strategy == "single" else 2, codes=(code,), **planted(fault))
    said = (folder / "ranks" / f"rank{fault.partition(':')[2] or 0}.log").read_text()
    assert f"fault {fault.partition('@')[0]} of rank" in said


def test_a_rank_that_hangs_is_waited_for_until_the_others_give_it_up(tmp_path):
    given = planted("hang@4:1", TRAINER_COLLECTIVE_TIMEOUT_S="10")
    train(tmp_path, "ddp", 2, codes=(134, -9), **given)  # whoever hangs is killed by its launcher


def test_a_slow_rank_takes_twice_as_long(tmp_path):
    """In its own steps, so it shows where they are long: here a sleep in each."""

    def slowly() -> None:
        import time

        from trainer import worker
        from trainer.engines.torch_engine import TorchEngine

        real = TorchEngine.train_step

        def step(self: TorchEngine, *given: object) -> object:
            time.sleep(0.5)
            return real(self, *given)  # type: ignore[arg-type]

        TorchEngine.train_step = step  # type: ignore[assignment, method-assign]
        raise SystemExit(worker.main())

    folder = train(tmp_path, "single", 1, slowly, **planted("slow@7"))
    data_ms = {x["step"]: x["data_ms"] for x in lines(folder) if x["kind"] == "train"}
    assert max(data_ms[step] for step in range(2, 8)) < 400
    assert min(data_ms[step] for step in range(8, STEPS + 1)) > 450


def test_a_full_disk_costs_one_checkpoint_and_then_the_run(tmp_path):
    """Written beside training: that of step 3 is committed before 6 is taken; 6 itself may be or not."""
    given = planted(
        "disk-full@8", TRAINER_CHECKPOINT_EVERY="3", TRAINER_EVALUATE_EVERY="100", TRAINER_STEPS="30"
    )
    folder = train(tmp_path, "single", 1, codes=(13,), **given)
    (kept,) = (path.name for path in (folder / "checkpoints").glob("step_*"))
    assert kept in ("step_00000003", "step_00000006")
    train(tmp_path, "single", 1, **given)  # once in the run
    assert (folder / "summary.json").exists()


def test_a_damaged_checkpoint_is_found_and_the_one_before_it_taken(tmp_path, uninterrupted):
    """Validations at 3, 6, 9: two are committed before step 10, the newer one is damaged; 9's is lost with its rank."""
    given = planted("corrupt@10,kill@10:1", TRAINER_CHECKPOINT_EVERY="3")
    folder = train(tmp_path, "ddp", 2, codes=(-9, 134), **given)
    train(tmp_path, "ddp", 2, **given)
    attempts = [json.loads(line) for line in (folder / "attempts.jsonl").open()]
    (broken,) = (
        step for step in (6, 9) if any(f"step {step} is broken" in x.get("text", "") for x in lines(folder))
    )
    assert [line["from_step"] for line in attempts] == [0, broken - 3]
    assert_equal_ending(folder, uninterrupted("ddp", 2))
