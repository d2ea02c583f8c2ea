"""torch's own record after thousands of collectives: when they have ended, nothing is under way."""

from __future__ import annotations

from tests.ranks import run_ranks


def test_a_rank_at_rest_waits_for_nobody():
    def be_rank() -> None:
        import time

        import torch
        import torch.distributed as dist

        from trainer.hang_detection.watchdog_thread import is_pending

        dist.init_process_group("gloo")
        number = torch.zeros(4)
        for _ in range(300):
            for _ in range(5):
                dist.all_reduce(number)
            until = time.monotonic() + 0.5
            while is_pending() and time.monotonic() < until:
                time.sleep(0.01)
            assert not is_pending()

    run_ranks(be_rank, 1)
