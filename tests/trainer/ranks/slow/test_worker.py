"""The real worker: what ranks hold under different strategies, and how one ends that a library kills.

A rank that takes twice as long, in a real run; twenty of them: tests/faults/test_stragglers.py.

The whole trainer on a volume that is really full: a file system of its own, mounted where no right is needed.
"""

import json
import subprocess
from pathlib import Path

import pytest

from tests.codes import find_codes
from tests.programs import find_python
from tests.ranks import fork_ranks
from tests.trainer.ranks import test_hangs, test_worker
from tests.trainer.ranks.test_launcher import ONE, environment, read_lines
from tests.trainer.runs import run_worker

finished = test_worker.finished


STEPS = 40
WORK_S, SLOW_S = 0.08, 0.16
"""Of a forward pass of every rank, and of the slow one."""


def straggling(results: Path, strategy: str, **more: str) -> dict[str, str]:
    fixed = {"TRAINER_STEPS": str(STEPS), "TRAINER_COLLECTIVE_TIMEOUT_S": "120", "TRAINER_MODEL": "cnn"}
    return test_hangs.settings(results, strategy, **(fixed | more))


def be_worker(place: str, slow: int, from_step: int):
    """Each forward pass takes 80 ms of sleep; of the slow rank it takes twice as much, or its data do."""

    def work() -> None:
        import os
        import time

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
        raise SystemExit(run_worker())

    return work


def stragglers(results: Path) -> list[dict]:
    lines = (results / "default" / "try" / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line.get("name") == "straggler"]


def test_the_slow_rank_is_named_with_its_node_and_share(tmp_path):
    """From step 13: no chunk begins there, so the third slow one is whole behind step 23, however rarely lines are
    asked for."""
    env = straggling(tmp_path, "fsdp", TRAINER_LOG_EVERY="100", TRAINER_STEPS="28")
    ended = fork_ranks(be_worker("forward", 0, 13), 2, env=env, timeout_s=240)
    assert [r.exit_code for r in ended] == [0, 0], ended[0].output[-2000:]
    (found,) = stragglers(tmp_path)
    assert (found["rank"], found["node"]) == (0, "node-7") and found["step"] - 13 <= 20
    assert 15 <= found["share_pct"] < 100 and found["text"] in ended[0].output
    summary = json.loads((tmp_path / "default" / "try" / "summary.json").read_text())
    assert summary["straggler"] == "rank 0" and summary["straggler_share_pct"] > 15


PRIVATE = ("unshare", "--user", "--map-root-user", "--mount")
LARGE = {"TRAINER_MODEL": "vit_tiny", "TRAINER_IMAGE_SIZE": "32", "TRAINER_PROFILE_STEPS": "0"}
"""A checkpoint of 2.4 MB."""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    if subprocess.run([*PRIVATE, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine has no user namespaces, so no small file system can be mounted")
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def launch_on(
    results: Path, size: str, beside: str = "", **settings: str
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The trainer with its results on `size` of memory, and what was in it at the end; `beside` runs with it."""
    kept = results.with_name("kept")
    mount = f"mount -t tmpfs -o size={size} none {results} && {{ {beside} }} || exit"
    mount = mount if beside else f"mount -t tmpfs -o size={size} none {results} || exit"
    mount += f'; "$@"; code=$?; rm -f {results}/filler; cp -r {results}/. {kept}; exit $code'
    command = [*PRIVATE, "sh", "-c", mount, "sh", find_python(), "-m", "trainer"]
    done = subprocess.run(
        command, env=environment(results, **settings), capture_output=True, text=True, timeout=200
    )
    return done, kept / "default" / "try"


def test_a_checkpoint_that_does_not_fit_is_left_out_and_the_next_ends_the_run(results: Path) -> None:
    """torch hides the cause in a BaseException: F9 all the same."""
    done, run = launch_on(results, "1m", **LARGE, **ONE, TRAINER_CHECKPOINT_EVERY="4")
    assert done.returncode == 13, done.stdout[-3000:] + done.stderr[-3000:]
    assert "SL-checkpoint-left-out" in find_codes(done.stdout)
    assert "Traceback" not in done.stdout + done.stderr
    assert find_codes(done.stderr)[-1] == "SL-checkpoint-no-room"
    steps = [line["step"] for line in read_lines(run / "metrics.jsonl") if line["kind"] == "train"]
    assert steps == list(range(1, len(steps) + 1)) and 8 <= len(steps) <= 12
    assert [line.get("exit_code") for line in read_lines(run / "attempts.jsonl")] == [None, 13]
    assert not any((run / "checkpoints").iterdir())
