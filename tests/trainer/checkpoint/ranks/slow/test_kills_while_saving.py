"""Every rank is killed while it saves, and the newest committed checkpoint is whole: a few kills of a small state.

200 kills of 200 MB: tests/faults/test_kills_while_saving.py.
"""

from __future__ import annotations

from tests.trainer.checkpoint.killing import kill_while_saving


def test_the_newest_committed_checkpoint_is_whole_after_every_kill(tmp_path):
    found = kill_while_saving(tmp_path, kills=6, state_bytes=16 << 20)
    print(found.histogram())
    assert not found.problems, found.problems
    assert len(found.while_saving) + found.between == 6 and found.while_saving
