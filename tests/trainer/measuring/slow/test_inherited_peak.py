from __future__ import annotations

import subprocess
import sys

INHERITING = """
import mmap
from trainer.measuring.memory import HostCounters
counters = HostCounters()
counters.reset()
print(counters.read().peak >> 20)
with mmap.mmap(-1, 300 << 20) as pages:
    for at in range(0, 300 << 20, mmap.PAGESIZE):
        pages[at] = 1
print(counters.read().peak >> 20)
"""


def test_the_peak_of_the_program_that_started_this_one_is_not_its_own():
    """getrusage keeps it over exec: a large process puts itself aside for the one that counts."""
    starts = (
        "import mmap, os, sys\n"
        "pages = mmap.mmap(-1, 2 << 30)\n"
        "for at in range(0, 2 << 30, mmap.PAGESIZE): pages[at] = 1\n"
        "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", starts, INHERITING], capture_output=True, text=True, check=True
    )
    without, with_pages = map(int, done.stdout.split())
    assert without < 1024, "in MiB: torch's libraries and no more"
    assert 290 < with_pages - without < 320
