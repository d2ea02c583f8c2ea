"""Which blocks fully_shard gathers while another one computes."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.fsdp import FSDPModule

TORCHS_OWN = 1
"""Without being told, torch gathers one block ahead: forward because the host is ahead of the device, backward in the
opposite order."""


def apply_prefetch(blocks: Sequence[Sequence[FSDPModule]], ahead: int) -> None:
    """Makes each block gather the `ahead` blocks that come next, forward and backward, in place.

    Args:
        blocks: in the order of the model, what of each is sharded; the block itself is the last one.
    """
    if ahead == TORCHS_OWN:
        return
    for i, block in enumerate(blocks):
        block[-1].set_modules_to_forward_prefetch(_flat(blocks[i + 1 : i + 1 + ahead]))
        block[-1].set_modules_to_backward_prefetch(_flat(blocks[max(0, i - ahead) : i][::-1]))


def _flat(blocks: Sequence[Sequence[FSDPModule]]) -> list[FSDPModule]:
    return [module for block in blocks for module in reversed(block)]
