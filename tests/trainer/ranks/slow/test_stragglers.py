"""A rank that takes twice as long, in a real run; twenty of them: tests/faults/test_stragglers.py."""

from __future__ import annotations

import json
from pathlib import Path

from tests.ranks import fork_ranks
from tests.trainer.ranks import test_hangs

STEPS = 40
WORK_S, SLOW_S = 0.08, 0.16
"""Of a forward pass of every rank, and of the slow one."""


def settings(results: Path, strategy: str, **more: str) -> dict[str, str]:
    fixed = {"TRAINER_STEPS": str(STEPS), "TRAINER_COLLECTIVE_TIMEOUT_S": "120", "TRAINER_MODEL": "cnn"}
    return test_hangs.settings(results, strategy, **(fixed | more))


def be_worker(place: str, slow: int, from_step: int):
    """Each forward pass takes 80 ms of sleep; of the slow rank it takes twice as much, or its data do."""

    def work() -> None:
        import os
        import time

        from trainer import worker
        from trainer.models.model_with_loss import ClassLoss
        from trainer.tasks.image_task import ImageTask

        mine = int(os.environ["RANK"]) == slow
        state, fetch, judge = {"step": 0}, ImageTask.next_batch, ClassLoss.forward

        def next_batch(self, step):
            state["step"] = step
            if place == "data" and mine and step >= from_step:
                time.sleep(2 * SLOW_S)
            return fetch(self, step)

        def forward(self, *given):
            late = place == "forward" and mine and state["step"] >= from_step
            time.sleep((SLOW_S if late else WORK_S) if self.training else 0.0)
            return judge(self, *given)

        ImageTask.next_batch, ClassLoss.forward = next_batch, forward
        raise SystemExit(worker.main())

    return work


def stragglers(results: Path) -> list[dict]:
    lines = (results / "default" / "try" / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line.get("name") == "straggler"]


def test_the_slow_rank_is_named_with_its_node_and_share(tmp_path):
    """From step 13: no chunk begins there, so the third slow one is whole behind step 23, however rarely lines are
    asked for."""
    env = settings(tmp_path, "fsdp", TRAINER_LOG_EVERY="100", TRAINER_STEPS="28")
    ended = fork_ranks(be_worker("forward", 0, 13), 2, env=env, timeout_s=240)
    assert [r.exit_code for r in ended] == [0, 0], ended[0].output[-2000:]
    (found,) = stragglers(tmp_path)
    assert (found["rank"], found["node"]) == (0, "node-7") and found["step"] - 13 <= 20
    assert 15 <= found["share_pct"] < 100 and found["text"] in ended[0].output
    summary = json.loads((tmp_path / "default" / "try" / "summary.json").read_text())
    assert summary["straggler"] == "rank 0" and summary["straggler_share_pct"] > 15
