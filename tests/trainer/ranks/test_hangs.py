"""One rank does not arrive: is it named, with what it was doing, before the collective's time-out ends the others?"""

import json
import time
from pathlib import Path

import pytest

from stratlab_spec.run_directory import RunDirectory
from tests.codes import find_codes
from tests.ranks import fork_ranks
from tests.trainer.planted_hangs import plant
from tests.trainer.runs import run_worker
from trainer.launch.watchdog import Watchdog

TIMEOUT_S = 10


def settings(results: Path, strategy: str, **more: str) -> dict[str, str]:
    return {
        "TRAINER_RUN": "try", "TRAINER_RESULTS": str(results), "TRAINER_STRATEGY": strategy,
        "TRAINER_IMAGE_SIZE": "8", "TRAINER_STEPS": "8", "TRAINER_GLOBAL_BATCH_SIZE": "32",
        "TRAINER_MICRO_BATCH_SIZE": "8", "TRAINER_PROFILE_STEPS": "0",
        "TRAINER_COLLECTIVE_TIMEOUT_S": str(TIMEOUT_S), "STRATLAB_LAUNCHER": "test", "STRATLAB_NODE": "node-7",
    } | more  # fmt: skip


def watch(results: Path, world_size: int) -> Watchdog:
    folder = RunDirectory(results, "default", "try")
    return Watchdog(folder, "pod-0", "node-7", 1, world_size, TIMEOUT_S, 2000)


def train(
    results: Path, strategy: str, world_size: int, hang: dict | None, **more: str
) -> tuple[Watchdog, list, float]:
    """(the watchdog, the ranks' ends, seconds) of a run with a planted hang, or without one."""

    def be_worker() -> None:
        if hang:
            plant(**hang)
        raise SystemExit(run_worker())

    watchdog, env = watch(results, world_size), settings(results, strategy, **more)
    watchdog.set_environment(env)
    watchdog.start()
    began = time.monotonic()
    try:
        ended = fork_ranks(be_worker, world_size, env=env, timeout_s=240)
    finally:
        watchdog.stop()
    return watchdog, ended, time.monotonic() - began


@pytest.mark.parametrize(
    ("way", "strategy", "place"), [("python", "ddp", "backward"), ("stopped", "zero2", "data")]
)
def test_the_rank_that_does_not_arrive_is_named(tmp_path, way, strategy, place):
    watchdog, ended, _ = train(tmp_path, strategy, 2, {"way": way, "rank": 1, "place": place})
    assert watchdog.verdict, "\n".join(r.output[-2000:] for r in ended)
    sentence = watchdog.verdict.sentence
    assert watchdog.verdict.ranks == [1] and find_codes(sentence) == ["SL-rank-absent"], sentence
    assert "node-7" in sentence and "pod-0" in sentence and "step 4" in sentence, sentence
    assert ended[0].exit_code == 134
    found = json.loads((tmp_path / "default" / "try" / "hangs" / "pod-0.json").read_text())
    assert found["verdict"]["ranks"] == [1] and found["stacks"]["0"]
