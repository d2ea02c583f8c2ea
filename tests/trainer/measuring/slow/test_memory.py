"""What ranks of ZeRO hold, and a peak that another program has left."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.ranks import run_ranks

RANKS, PER_NODE = 4, 2
TEXT = (
    "model=vit_tiny dataset=digits image_size=32 micro_batch_size=2 global_batch_size=8 persistent_elements=0 "
    "precision=fp32"
)


def test_the_copy_in_the_node_is_counted() -> None:
    def hold() -> None:
        import torch.distributed as dist

        from tests.trainer.counting.real_steps import make_config, run_steps

        os.environ["LOCAL_WORLD_SIZE"] = str(PER_NODE)
        dist.init_process_group("gloo")
        held, gradients, count = {}, {}, 0
        for strategy in ("zero3", "zeropp"):
            engine = run_steps(make_config(f"{TEXT} strategy={strategy}"), PER_NODE)
            held[strategy] = engine.observed.bytes_held["parameters"]
            gradients[strategy] = engine.observed.bytes_held["gradients"]
            count = sum(parameter.ds_numel for parameter in engine.module.parameters())
            engine.close()
        assert gradients == pytest.approx(dict.fromkeys(held, 4 * count / RANKS), rel=0.001)
        assert held["zeropp"] - held["zero3"] == pytest.approx(4 * count / PER_NODE, rel=0.001)

    run_ranks(hold, RANKS)


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
