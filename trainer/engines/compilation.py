"""torch.compile block by block: what is done to every block alike, under every strategy."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn


def apply_compile(blocks: Iterable[nn.Module], backend: str) -> None:
    """Each block by itself, in place: after activation checkpointing, before anything is sharded.

    Args:
        backend: of torch.compile.
    """
    for block in blocks:
        block.compile(backend=backend)
