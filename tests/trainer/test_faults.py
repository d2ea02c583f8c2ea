"""Faults on demand, as far as they end no process: when they happen, how often, and what they do to a batch."""

import json
import math
import time
from types import SimpleNamespace

import pytest

from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import Config
from tests.trainer.checkpoint.test_folder import write
from tests.trainer.runs import make_world
from trainer.checkpoint.folder import CheckpointFolder
from trainer.data.batches import Batch
from trainer.fault_injection import plant_faults


@pytest.fixture
def plant(tmp_path):
    """The function that gives the loop its batches, with a fault in it."""
    folder = RunDirectory(tmp_path, "default", "try")
    folder.create()

    def fetch(step: int) -> Batch:
        return Batch([], 4, 4)

    def plant(fault: str, rank: int = 0, attempt: int = 1):
        config = Config(run="try", fault=fault, allow_faults=True)
        run = SimpleNamespace(config=config, world=make_world(rank, 2), folder=folder)
        return plant_faults(run, attempt, fetch), fetch

    return plant


def is_bad(batch: Batch) -> bool:
    return math.isnan(batch.global_labels)


def test_it_happens_to_its_rank_at_its_step_once_in_the_run(plant, tmp_path):
    batches, _ = plant("nan@3:1", rank=1)
    assert [is_bad(batches(step)) for step in (1, 2, 3, 4)] == [False, False, True, False]
    again, _ = plant("nan@3:1", rank=1, attempt=2)
    assert not is_bad(again(3))
    (written,) = (json.loads(line) for line in (tmp_path / "default/try/faults/nan@3_1").open())
    assert (written["attempt"], written["kind"], written["step"], written["rank"]) == (1, "nan", 3, 1)
    other, plain = plant("nan@3:1", rank=0)
    assert other is plain


def test_it_happens_in_every_attempt_where_that_is_asked(plant):
    for attempt in (1, 2):
        batches, _ = plant("nan@2!", attempt=attempt)
        assert is_bad(batches(2))


def test_a_slow_rank_takes_twice_as_long(plant):
    batches, _ = plant("slow@2")
    batches(1)
    batches(2)
    time.sleep(0.1)  # the step itself
    began = time.monotonic()
    batches(3)
    assert 0.1 <= time.monotonic() - began < 0.3


def test_the_newest_checkpoint_is_damaged(plant, tmp_path):
    checkpoints = CheckpointFolder(RunDirectory(tmp_path, "default", "try"))
    for step in (10, 20):
        write(checkpoints, step)
    batches, _ = plant("corrupt@2")
    batches(2)
    chosen, skipped = checkpoints.choose()
    assert chosen is not None and chosen.state.step == 10 and len(skipped) == 1
