"""What qwz and qgz of ZeRO++ send in few bits: which parameters, in blocks of what size. Needs no torch.

Each rank's shard of a parameter is cut into blocks, the last one filled up with zeros. A block goes over the wire as
whole numbers and one fp32 scale:

    qwz   gathered weights      8 bits   512 + 4 bytes per block, half of bf16
    qgz   reduced gradients     4 bits   256 + 4 bytes per block, an eighth of fp32

A shard of less than two blocks (biases, norms, small models) would be more filling than numbers: it is sent as it is
without qwz and qgz. DeepSpeed's own grouping asks that 8 divides every shard, and ends a run where it does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

BLOCK = 512
"""Elements. The kernel gives 16 of them to a thread, and adds up over a warp of 32."""
LEAST_BLOCKS = 2
BITS = {"qwz": 8, "qgz": 4}
SCALE_BYTES = 4


def is_quantized(elements: int, shards: int) -> bool:
    """Whether a parameter of so many elements is sent in few bits."""
    return math.ceil(elements / shards) >= LEAST_BLOCKS * BLOCK


def count_blocks(elements: int, shards: int) -> int:
    """Of each shard."""
    return math.ceil(math.ceil(elements / shards) / BLOCK)


def block_bytes(part: str) -> int:
    """Of one block on the wire.

    Args:
        part: qwz or qgz.
    """
    return BLOCK * BITS[part] // 8 + SCALE_BYTES


def describe_quantized(
    parts: Sequence[str], sizes: Sequence[tuple[int, bool]], shards: int, persistent_elements: int
) -> dict[str, dict[str, Any]]:
    """For `resolved.quantized` of config.json: per part the bits, the block, and how much of the model has them.

    Args:
        parts: of the setting zeropp.
        sizes: (elements, whether it trains) of each parameter.
        persistent_elements: parameters of up to so many are never gathered in a pass, but once after the update, in
            the type that they are kept in.
    """
    sent = {
        "qwz": [elements for elements, _ in sizes if elements > persistent_elements],
        "qgz": [elements for elements, trains in sizes if trains],
    }
    whole = {"qwz": [elements for elements, _ in sizes], "qgz": sent["qgz"]}
    found = {}
    for part in [name for name in BITS if name in parts]:
        few = [elements for elements in sent[part] if is_quantized(elements, shards)]
        found[part] = {
            "bits": BITS[part],
            "block": BLOCK,
            "parameters": len(few),
            "of_parameters": len(whole[part]),
            "elements_pct": 100.0 * sum(few) / max(1, sum(whole[part])),
        }
    return found
