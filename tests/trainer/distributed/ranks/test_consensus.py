"""Ranks of different speed, of which one has a wish: all of them act behind the same step."""

import re
import time

from tests.ranks import fork_ranks


def ends(target, ranks: int) -> list[str]:
    return [result.output.strip().splitlines()[-1] for result in fork_ranks(target, ranks, timeout_s=60)]


def test_all_ranks_stop_behind_the_same_step_whoever_was_told_and_when():
    def work() -> None:
        import random

        import torch.distributed as dist

        from stratlab_spec.exit_codes import Stopped
        from trainer.distributed.consensus import Agreement

        dist.init_process_group("gloo")
        rank, drawn, found = dist.get_rank(), random.Random(7), []
        for told in (drawn.randrange(3), drawn.randrange(3), drawn.randrange(3)):
            agreement = Agreement(30.0, every_s=0.02)
            at = drawn.randrange(1, 60)
            try:
                for step in range(1, 1000):
                    time.sleep(0.002 * (rank == 1))
                    if step == at and rank == told:
                        agreement.want_stop()
                    agreement.end_step(step)
            except Stopped:
                found.append((at, agreement.step))
            agreement.leave()
        print(found, flush=True)

    said = ends(work, 3)
    assert len(set(said)) == 1, said
    pairs = [(int(at), int(step)) for at, step in re.findall(r"\((\d+), (\d+)\)", said[0])]
    assert len(pairs) == 3
    for at, step in pairs:
        assert at <= step <= at + 40, pairs  # 0.02 s, of steps of at least 2 ms; and twice what was before


def test_a_lost_peer_ends_the_attempt_instead_of_being_waited_for():
    def work() -> None:
        import os

        import torch.distributed as dist

        from stratlab_spec.exit_codes import exit_code
        from trainer.distributed.consensus import Agreement

        dist.init_process_group("gloo")
        agreement = Agreement(50.0, every_s=0.01)
        for step in range(1, 20):
            agreement.end_step(step)
        if dist.get_rank() == 1:
            os._exit(9)
        agreement.want_stop()
        began = time.monotonic()
        try:
            agreement.ask_now()
        except Exception as failure:
            print(exit_code(failure), time.monotonic() - began < 10, flush=True)
            os._exit(0)

    found = fork_ranks(work, 3, timeout_s=60, grace_s=40)
    assert [result.exit_code for result in found] == [0, 9, 0]
    assert [found[r].output.strip().splitlines()[-1] for r in (0, 2)] == ["134 True"] * 2
