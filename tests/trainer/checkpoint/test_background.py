"""Work beside training, by whoever runs it: it steps back, and never forward."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

WORK = """
import os, threading
from trainer.checkpoint.background import Background
os.nice({nice})
if os.getuid() == 0:
    os.setuid(65534)
print(Background(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).wait())
"""


@pytest.mark.parametrize(("nice", "found"), [(0, 10), (15, 15)])
def test_its_priority_is_never_raised_which_only_root_may(nice, found):
    own = os.getpriority(os.PRIO_PROCESS, 0)
    done = subprocess.run(
        [sys.executable, "-c", WORK.format(nice=nice)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == str(max(found, min(19, own + nice))), done.stderr[-2000:]
