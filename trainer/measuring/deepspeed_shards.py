"""What DeepSpeed's stage 3 keeps of a parameter beside the tensor itself, which is empty while nobody uses it."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

SHARDS = ("ds_tensor", "ds_secondary_tensor")
"""The rank's share, and with hpz that of the copy inside its node (partition_parameters.py)."""


def list_shards(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Those that there are; none of other engines."""
    found = (getattr(parameter, name, None) for parameter in parameters for name in SHARDS)
    return [shard for shard in found if shard is not None]
