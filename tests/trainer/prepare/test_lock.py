"""Whether somebody is at work is told by what changes while one looks, whatever the clocks say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer.prepare.destination import Overtaken, acquire, observe


@pytest.mark.parametrize("clock_s", [0.0, 4e9])  # of the node that writes
def test_a_lock_is_stale_when_it_has_not_changed_while_it_was_watched(tmp_path: Path, clock_s: float) -> None:
    lock = acquire(tmp_path, 1, stale_after_s=60.0)
    assert lock is not None
    os.utime(lock.path, (clock_s, clock_s))
    first = observe(tmp_path, None, 1000.0, 60.0)
    assert first is not None and first.since_s == 1000.0 and not first.is_stale(1060.0)
    later = observe(tmp_path, first, 1055.0, 60.0)
    assert later is not None and later.since_s == 1000.0 and later.is_stale(1060.5)
    os.utime(lock.path, (clock_s + 1, clock_s + 1))
    alive = observe(tmp_path, later, 1058.0, 60.0)
    assert alive is not None and alive.since_s == 1058.0 and not alive.is_stale(1118.0)


def test_the_highest_number_owns_and_the_one_below_notices(tmp_path: Path) -> None:
    mine, other = (acquire(tmp_path, number, 60.0) for number in (1, 2))
    assert mine is not None and other is not None and acquire(tmp_path, 2, 60.0) is None
    other.check()
    with pytest.raises(Overtaken):
        mine.check()
    mine.release()  # not its own any more
    assert other.path.exists()
    other.release()
    assert not tmp_path.exists() and observe(tmp_path, None, 0.0, 60.0) is None
