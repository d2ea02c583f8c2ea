"""Runs with one slow rank: named within 20 steps, with node and share; none named in clean ones."""

import json
from pathlib import Path

import pytest

from tests.ranks import fork_ranks
from tests.trainer.ranks.slow.test_worker import STEPS, be_worker, stragglers, straggling

STRATEGIES = ("ddp", "fsdp", "zero2", "zero3")
SLOW = [
    (strategy, place, (i + j) % 2, 6 + 12 * i)
    for i, strategy in enumerate(STRATEGIES)
    for j, place in enumerate(("data", "forward"))
]


@pytest.mark.parametrize(("strategy", "place", "rank", "step"), SLOW)
def test_the_slow_rank_is_named_within_twenty_steps(tmp_path, record_property, strategy, place, rank, step):
    env = straggling(tmp_path, strategy, TRAINER_STEPS=str(step + 24))
    ended = fork_ranks(be_worker(place, rank, step), 2, env=env, timeout_s=240)
    assert [r.exit_code for r in ended] == [0, 0], ended[0].output[-2000:]
    found = stragglers(tmp_path)
    assert [line["rank"] for line in found] == [rank], found
    assert found[0]["step"] - step <= 20
    record_property("steps_until_named", found[0]["step"] - step)


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_a_clean_run_names_nobody(tmp_path: Path, strategy):
    env = straggling(tmp_path, strategy, TRAINER_STEPS=str(4 * STEPS))
    ended = fork_ranks(be_worker("nowhere", 0, 1), 2, env=env, timeout_s=240)
    assert [r.exit_code for r in ended] == [0, 0], ended[0].output[-2000:]
    assert stragglers(tmp_path) == []
    assert json.loads((tmp_path / "default/try/summary.json").read_text())["straggler"] == "none"
