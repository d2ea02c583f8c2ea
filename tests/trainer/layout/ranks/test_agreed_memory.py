from __future__ import annotations

import os

from tests.ranks import run_ranks
from tests.trainer.runs import make_world


def test_the_smallest_device_counts_on_every_rank():
    def run() -> None:
        from trainer.distributed import world as process_group

        rank = int(os.environ["RANK"])
        process_group.open_process_group(make_world(rank, 2), 60)
        for seen, agreed in (((80, 20), 20), ((None, 40), 40), ((None, None), None)):
            process_group.largest_device_bytes = lambda seen=seen: seen[rank]
            assert process_group.agree_on_memory() == agreed

    run_ranks(run, 2)
