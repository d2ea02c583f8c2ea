"""Work beside training, by whoever runs it: it steps back, and never forward."""

from __future__ import annotations

import os
import threading

import pytest

from trainer.checkpoint.store import run_in_background


@pytest.mark.parametrize(("nice", "found"), [(0, 10), (15, 15)])
def test_its_priority_is_never_raised_which_only_root_may(nice, found):
    own, child = os.getpriority(os.PRIO_PROCESS, 0), os.fork()
    if child == 0:
        code = 99
        try:
            os.nice(nice)
            if os.getuid() == 0:
                os.setuid(65534)
            code = run_in_background(
                lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            ).result()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == max(found, min(19, own + nice))
