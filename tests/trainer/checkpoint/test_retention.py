"""Which checkpoints a run keeps when it has succeeded, and when one is due by the clock."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import Config
from tests.trainer.checkpoint.test_folder import folder, write  # noqa: F401
from tests.trainer.runs import make_world
from trainer.checkpoint.attempt import deal
from trainer.checkpoint.store import Checkpoints


@pytest.mark.parametrize(("keep", "left"), [("newest", [30]), ("all", [10, 20, 30]), ("none", [])])
def test_what_a_finished_run_keeps(folder, keep, left):  # noqa: F811
    for step in (10, 20, 30):
        write(folder, step)
    folder.retire(keep)
    assert folder.committed() == left
    assert len([*folder.path.iterdir()]) == len(left)


@pytest.fixture
def clock(monkeypatch):
    """In seconds, to be set by hand."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("trainer.checkpoint.store.time.monotonic", lambda: clock.now)
    return clock


def checkpoints_of(results: Path, rank: int = 0, **settings) -> Checkpoints:
    """Of one of two ranks."""
    attempt = SimpleNamespace(number=1, chosen=None, skipped=[], from_step=0)
    run = SimpleNamespace(
        config=Config(run="try", **settings),
        plan=SimpleNamespace(steps=10),
        world=make_world(rank, 2),
        folder=RunDirectory(results, "default", "try"),
        writes=rank == 0,
    )
    return Checkpoints(run, None, None, attempt, None)


def test_by_default_one_is_wanted_after_a_quarter_of_an_hour_by_one_rank(tmp_path, clock):
    checkpoints, other = checkpoints_of(tmp_path), checkpoints_of(tmp_path, rank=1)
    clock.now += 15 * 60 - 1
    assert not checkpoints.is_wanted()
    clock.now += 1
    assert checkpoints.is_wanted() and not other.is_wanted()


@pytest.mark.parametrize("settings", [{"checkpoint_minutes": 0}, {"checkpoint_every": 7}])
def test_no_clock_is_looked_at_where_it_is_off_or_steps_are_given(tmp_path, clock, settings):
    checkpoints = checkpoints_of(tmp_path, **settings)
    clock.now += 1e6
    assert not checkpoints.is_wanted()


def test_the_clock_waits_for_the_one_that_is_being_written(tmp_path, clock):
    checkpoints = checkpoints_of(tmp_path, checkpoint_minutes=0.5)
    done = []
    checkpoints._writing = SimpleNamespace(done=lambda: bool(done))
    clock.now += 60
    assert not checkpoints.is_wanted()
    done.append(True)
    assert checkpoints.is_wanted()


def test_files_are_dealt_by_their_bytes():
    sizes = {"a": 100, "b": 60, "c": 50, "d": 1, "e": 0}
    shares = deal({name: {"bytes": size} for name, size in sizes.items()}, 2)
    assert [sorted(share) for share in shares] == [["a", "d", "e"], ["b", "c"]]
    assert deal({}, 3) == [{}, {}, {}]
