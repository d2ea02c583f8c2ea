"""200 times both ranks are killed at a drawn moment of a save of 200 MB; at least 150 of them before its COMMIT."""

from __future__ import annotations

import os

from tests.trainer.checkpoint.killing import kill_while_saving

KILLS, STATE_BYTES = int(os.environ.get("STRATLAB_KILLS", "200")), 200 << 20


def test_the_newest_committed_checkpoint_loads_after_every_kill(tmp_path):
    found = kill_while_saving(tmp_path, KILLS, STATE_BYTES)
    print(found.histogram())
    assert not found.problems, found.problems
    assert len(found.while_saving) + found.between == KILLS
    assert len(found.while_saving) >= KILLS * 3 // 4, found.histogram()
