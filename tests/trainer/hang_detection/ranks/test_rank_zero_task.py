"""What rank 0 does by itself is waited for as long as it gets on; and what torch's own record says is under way."""

import hashlib
import time

import pytest

from tests.codes import find_codes
from tests.ranks import fork_ranks, run_ranks

TIMEOUT_S = 3.0


def open_group() -> None:
    import os

    from trainer.distributed.world import open_process_group, read_world

    open_process_group(read_world(os.environ), TIMEOUT_S)


def hash_for(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        hashlib.sha256(bytes(1 << 20)).digest()


def alone(work):
    import os

    from trainer.hang_detection.heartbeat import Pulse
    from trainer.hang_detection.rank_zero_task import do_alone

    return do_alone("a test", work, Pulse(None, int(os.environ["RANK"])), TIMEOUT_S)


def test_long_work_is_waited_for_beyond_the_time_out():
    def be_rank() -> None:
        import torch
        import torch.distributed as dist

        open_group()
        dist.barrier()  # both begin at once
        began = time.monotonic()
        assert [alone(lambda: hash_for(2 * TIMEOUT_S) or "done"), alone(lambda: "again")] == ["done", "again"]
        assert time.monotonic() - began > 1.5 * TIMEOUT_S
        dist.all_reduce(torch.ones(1))

    run_ranks(be_rank, 2)


@pytest.mark.parametrize(
    ("work", "code"), [(lambda: time.sleep(60), "SL-rank-0-still"), (lambda: 1 // 0, "SL-rank-0-failed")]
)
def test_the_others_end_when_rank_0_stands_still_or_fails(work, code):
    def be_rank() -> None:
        open_group()
        try:
            alone(work)
        finally:
            time.sleep(
                1.0
            )  # the store is rank 0 here, and not the launcher: the other one must read it first

    began = time.monotonic()
    ended = fork_ranks(be_rank, 2, grace_s=4.0)
    assert ended[1].exit_code == 1 and "PeerLost" in ended[1].output, ended[1].output
    assert {*find_codes(ended[1].output)} == {code} and "a test" in ended[1].output
    assert time.monotonic() - began < 40
