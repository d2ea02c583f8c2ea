"""What a step must send, from the sizes of the parameters alone: the other side of wire.py. Needs no torch.

n ranks, m micro-batches, P bytes of trainable parameters (textbook: ZeRO, arXiv 1910.02054, section 7):

    single   0                          zero1    2 (n-1)/n P               reduce G, all-gather P
    ddp      2 (n-1)/n P                zero2    (m+1) (n-1)/n P           reduce G per micro-batch, all-gather P
    fsdp     3 m (n-1)/n P              zero3    3 m (n-1)/n P             all-gather P twice, reduce-scatter G
    hsdp     3 m (s-1)/s P in groups of s, and 2 (r-1)/r P/s between r of them

The functions for ddp, fsdp and hsdp are exact: they know the buckets, that fully_shard pads the first dimension of
every parameter to a multiple of the shards, that the outermost group is gathered once and the blocks twice, and that
the gradient norm is one small all-reduce.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stratlab_spec.settings.library_rules import block_bytes, count_blocks, is_quantized
from stratlab_spec.strategies import STRATEGIES

ELEMENT = 4  # bytes of fp32
FIRST_BUCKET_BYTES = (
    1 << 20
)  # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES: sent early, so that the wire gets busy
BUCKET_BYTES = 25 << 20  # DistributedDataParallel's bucket_cap_mb


class Parameter(NamedTuple):
    shape: tuple[int, ...]
    trainable: bool = True
    is_product_weight: bool = False
    """Gathered in the type of the products (models/products.py); all others in fp32."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def padded(self, shards: int) -> int:
        """Elements with the first dimension made a multiple of `shards`."""
        if not self.shape:
            return shards
        return math.ceil(self.shape[0] / shards) * shards * math.prod(self.shape[1:])


@dataclass
class Traffic:
    """Of one rank in one step, in the terms of `trainer.measuring.operators.WireCounter`."""

    operations: dict[str, tuple[int, int]] = field(default_factory=dict)
    wire_bytes: float = 0.0

    def add(self, kind: str, count: int, payload: int, factor: float) -> None:
        """`count` operations with `payload` bytes together, of which `factor` go over the wire."""
        if count:
            before, size = self.operations.get(kind, (0, 0))
            self.operations[kind] = before + count, size + payload
            self.wire_bytes += factor * payload


def textbook_bytes(
    strategy: str, trainable: int, ranks: int, micro_batches: int = 1, replicas: int = 1
) -> float:
    """Bytes that a rank sends per step by the table above, for `trainable` bytes of parameters."""
    once = (ranks - 1) / ranks * trainable
    shards = ranks // replicas
    match STRATEGIES[strategy].wire:
        case "none":
            return 0.0
        case "all-reduce":
            return 2 * once
        case "reduces each micro-batch":
            return (micro_batches + 1) * once
        case "gathers":
            return 3 * micro_batches * once
        case "gathers in replicas":
            between = 2 * (replicas - 1) / replicas * trainable / shards
            return 3 * micro_batches * (shards - 1) / shards * trainable + between
    raise AssertionError(f"no formula for {strategy}")


def single_traffic() -> Traffic:
    return Traffic()


def ddp_traffic(
    parameters: Sequence[Parameter],
    ranks: int,
    *,
    bucket_bytes: int = BUCKET_BYTES,
    reduced_element: int = ELEMENT,
) -> Traffic:
    """One all-reduce per bucket.

    Args:
        parameters: in the order in which their gradients are ready: the last layer's first.
        bucket_bytes: of the setting reduce_bucket_mib.
        reduced_element: bytes per element of reduced gradients.
    """
    sizes = [p.elements * ELEMENT for p in parameters if p.trainable]
    traffic, sent = Traffic(), sum(sizes) // ELEMENT * reduced_element
    traffic.add("all_reduce", len(ddp_buckets(sizes, cap=bucket_bytes)), sent, 2 * (ranks - 1) / ranks)
    return traffic


def ddp_buckets(sizes: Sequence[int], first: int = FIRST_BUCKET_BYTES, cap: int = BUCKET_BYTES) -> list[int]:
    """Bytes per bucket: filled in order, closed as soon as its limit is reached (reducer.cpp of torch 2.13)."""
    first = min(first, cap)
    buckets: list[int] = []
    filling = 0
    for size in sizes:
        filling += size
        if filling >= (cap if buckets else first):
            buckets.append(filling)
            filling = 0
    return [*buckets, filling] if filling else buckets


def sharded_traffic(
    root: Sequence[Parameter],
    blocks: Sequence[Sequence[Parameter]],
    *,
    shards: int,
    replicas: int = 1,
    micro_batches: int = 1,
    product_element: int = ELEMENT,
    reduced_element: int = ELEMENT,
    reshards: bool = True,
    accumulates_sharded: bool = True,
) -> Traffic:
    """fsdp (one replica) and hsdp: groups of parameters gathered and reduced together.

    Args:
        root: parameters outside all blocks.
        product_element: bytes per element of gathered weights of products: 2 with precision bf16 or fp16.
        reduced_element: bytes per element of reduced gradients.
        reshards: blocks are gathered again for the backward pass.
        accumulates_sharded: gradients are reduced in every micro-batch, not once a step.
    """
    traffic, groups = Traffic(), [root, *blocks]
    if shards > 1:
        once = (shards - 1) / shards
        reductions = micro_batches if accumulates_sharded else 1
        for group, times in [(root, 1), *((block, 2 if reshards else 1) for block in blocks)]:
            part = gathered_bytes(group, product_element, shards) // shards
            times *= micro_batches
            traffic.add("all_gather", times, times * part, shards - 1)
            reduced = sum(p.padded(shards) for p in group if p.trainable) * reduced_element
            traffic.add("reduce_scatter", reductions * bool(reduced), reductions * reduced, once)
        traffic.add("all_reduce", 1, ELEMENT, 2 * once)  # of the squared norm
    if replicas > 1:
        for group in groups:
            part = sum(p.padded(shards) for p in group if p.trainable) // shards * reduced_element
            traffic.add("all_reduce", int(bool(part)), part, 2 * (replicas - 1) / replicas)
    return traffic


def gathered_bytes(group: Sequence[Parameter], product_element: int, shards: int = 1) -> int:
    """All of them once, padded to `shards`: weights of products with so many bytes per element, others in fp32."""
    return sum(p.padded(shards) * (product_element if p.is_product_weight else ELEMENT) for p in group)


def zeropp_bytes(
    parameters: Sequence[Parameter],
    *,
    ranks: int,
    per_node: int,
    micro_batches: int,
    parts: Sequence[str],
    product_element: int = ELEMENT,
) -> float:
    """Bytes that a rank sends per step under zeropp, where every parameter is gathered anew for each pass.

    The step's first gather crosses nodes; with hpz all others stay in the node, and are as they were gathered. qwz and
    qgz send whole blocks. Not in it: the filling of shards that are sent as they are, and the norm's 8 bytes.

    Args:
        per_node: ranks of a node.
        parts: of the setting zeropp.
        product_element: bytes per element of gathered weights of products without qwz.
    """
    nodes = ranks // per_node
    everywhere, inside = (ranks - 1) / ranks, (per_node - 1) / per_node
    in_two_steps = inside + (nodes - 1) / nodes / per_node
    local = 2 * micro_batches - 1 if "hpz" in parts else 0
    sent = 0.0
    for parameter in parameters:
        blocks = ranks * count_blocks(parameter.elements, ranks)
        few = is_quantized(parameter.elements, ranks)
        plain = parameter.elements * (product_element if parameter.is_product_weight else ELEMENT)
        gathered = blocks * block_bytes("qwz") if few and "qwz" in parts else plain
        sent += (2 * micro_batches - local) * everywhere * gathered + local * inside * plain
        if parameter.trainable and few and "qgz" in parts:
            sent += micro_batches * in_two_steps * blocks * block_bytes("qgz")
        elif parameter.trainable:
            sent += micro_batches * everywhere * parameter.elements * ELEMENT
    return sent
