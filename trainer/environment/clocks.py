"""How far the ranks' clocks are from rank 0's, whatever a message takes; collective over the default group."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

ROUNDS = 8


def compare_clocks() -> dict[str, float]:
    """`offset_s` of this rank's clock before that of rank 0, true to `within_s`: half of the shortest round trip.

    One rank after the other asks rank 0 for the time; a message's way back takes as long as its way there, or else the
    difference is inside `within_s`.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    best = (float("inf"), 0.0)
    for asking in range(1, size):
        for _ in range(ROUNDS):
            answer = torch.zeros(1, dtype=torch.float64)
            if rank == asking:
                sent, began = time.time(), time.monotonic()
                dist.send(answer, 0)
                dist.recv(answer, 0)
                trip = time.monotonic() - began
                best = min(best, (trip, sent + trip / 2 - float(answer)))
            elif rank == 0:
                dist.recv(answer, asking)
                answer[0] = time.time()
                dist.send(answer, asking)
    return {"offset_s": best[1], "within_s": best[0] / 2} if rank else {"offset_s": 0.0, "within_s": 0.0}
