"""A pod that comes later than torch waits for it by itself: two launchers of their own interpreters."""

from __future__ import annotations

import sys
import time

from stratlab.machine.processes import free_port
from tests.trainer.ranks.slow.test_launcher import end_all, read_ledger
from tests.trainer.ranks.test_launcher import READ_TIMEOUT_S, start_pod


def test_a_pod_that_comes_late_is_waited_for_and_rank_0_is_in_the_first_pod(tmp_path):
    """The host of the rendezvous comes after the other's read timeout; ranks follow pods, not addresses."""
    port = free_port()
    pods = [start_pod(tmp_path, 1, port, sys.executable)]
    time.sleep(3 * READ_TIMEOUT_S)  # it has been up for two at the least
    pods.append(start_pod(tmp_path, 0, port, sys.executable))
    said = end_all(pods)
    assert [pod.returncode for pod in pods] == [0, 0], said[0][-2000:] + said[1][-2000:]
    assert "12/12" in said[1] and "12/12" not in said[0], "rank 0 tells how far it is"
    for index in (0, 1):
        assert read_ledger(tmp_path, index) == [("started", None), ("met", None), ("ended", 0)]
