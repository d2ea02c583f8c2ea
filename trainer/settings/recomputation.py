"""What the setting activation_checkpointing means, block by block; one meaning under every strategy."""

from __future__ import annotations

NONE, SELECTIVE = "none", "selective"
EVERY = "every_"


def recomputes(setting: str, block: int) -> bool:
    """Whether block number `block` of the whole model computes its activations again (`selective`: some of them)."""
    if setting.startswith(EVERY):
        return block % int(setting.removeprefix(EVERY)) == 0
    return setting != NONE
