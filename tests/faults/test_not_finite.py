"""F15: runs in which one rank's loss is not a number, that rank named in each; none named in clean ones."""

import pytest

from tests.trainer.metrics.ranks.test_training_failures import lines, train

STRATEGIES = ("ddp", "fsdp", "zero2", "zero3", "nd")
FOUND_WITHIN = 20
"""Steps."""
# the first step and the last of what is written at once too
BAD = [(2, 0, 1), (2, 1, 20), (4, 2, 7), (2, 1, 4), (2, 0, 20)]


@pytest.mark.parametrize(("strategy", "bad"), [*zip(STRATEGIES, BAD, strict=True)])
def test_the_right_rank_is_named(tmp_path, record_property, strategy, bad):
    ranks, rank, step = bad
    more = {"TRAINER_STEPS": str(step + 2 * FOUND_WITHIN), "TRAINER_LOG_EVERY": "100"}
    ended, folder = train(tmp_path, strategy, "stop", ranks=ranks, bad=(step, rank), **more)
    assert [r.exit_code for r in ended] == [12] * ranks, ended[0].output[-2000:]
    assert f"rank {rank} (node node-7)" in ended[0].output and f"step {step} " in ended[0].output
    last = max(line["step"] for line in lines(folder) if line["kind"] == "train")
    assert last - step < FOUND_WITHIN
    record_property("steps_lost", last)


@pytest.mark.parametrize("strategy", ["fsdp", "zero2", "nd"])
def test_a_clean_run_names_nobody(tmp_path, strategy):
    more = {"TRAINER_STEPS": "45", "TRAINER_LR": "0.05" if strategy == "fsdp" else "0.001"}
    ended, folder = train(tmp_path, strategy, "stop", bad=None, **more)
    assert [r.exit_code for r in ended] == [0, 0], ended[0].output[-2000:]
    assert [line for line in lines(folder) if line.get("name") == "not finite"] == []
