"""What a strategy adds to a model's work: the host's calls, and kernels of its copies.

A host record (recorded_work.py) counts both for a model of six layers, or a network of fixed ones. The difference to
the flavor's own strategy grows with the number of trained weights on the host, and with their elements on the device:

    strategy       flavor's own          host per weight      device per element
    ddp            single                hooks, buckets       copies into buckets
    zero1..zeropp  single                hooks, gathers       copies, casts, the update of partitions
    fsdp, hsdp     fsdp on two ranks     hooks of blocks      copies in and out of gathers and reductions
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stratlab_spec.memory.recording import BACKWARD
from stratlab_spec.models.decoder import FAMILIES
from stratlab_spec.step_time.kernels import Card, Kernel, kernel_seconds
from stratlab_spec.step_time.recorded_work import FIRST, HostRecord, HostWork, find_host

RECORDED_NODES = {"hsdp": 2}
"""Strategy -> groups with equal shards in its record."""


@dataclass(frozen=True)
class Host:
    """Microseconds of a machine's Python and driver per count of HostWork; on the host of one H200."""

    scale: float = 1.0
    forward_launch_us: float = 20.0
    """Autocast and autograd's graph are in it."""
    launch_us: float = 9.0
    product_us: float = 5.0
    further_us: float = 4.0
    view_us: float = 2.0
    call_us: float = 0.3
    packed_us: float = 275.0
    """Of a call of packed attention, above the launch."""

    compiled_launch_us: float = 8.7
    compiled_pass_us: float = 120.0
    """Of a compiled layer's forward or backward pass: its guards and its entry."""

    def compiled_seconds(self, kernels: int, packed: float) -> float:
        """Return the time for a pass of a compiled layer."""
        issued = kernels * self.compiled_launch_us + packed * self.packed_us
        return self.scale * (issued + self.compiled_pass_us) / 1e6

    def seconds(self, work: HostWork, forward: bool) -> float:
        """Return the time for a segment's work."""
        launch = self.forward_launch_us if forward else self.launch_us
        costs = launch, self.product_us, self.further_us, self.view_us, self.call_us, self.packed_us
        return self.scale * sum(count * cost for count, cost in zip(work, costs, strict=True)) / 1e6


class Surcharge(NamedTuple):
    """What a strategy adds to a segment."""

    host: HostWork
    waits: int
    kernels: list[Kernel]


class Trained(NamedTuple):
    """Trained weights of a segment."""

    weights: int
    elements: int


def list_surcharges(
    family: str, strategy: str, ranks: int, shards: int, trained: Mapping[str, Trained], sharded: bool
) -> dict[str, Surcharge]:
    """Return segment, of the last or the FIRST micro-batch -> what the strategy adds to the flavor's recorded work.

    Args:
        shards: in which the optimizer's state is split.
        trained: of `start`, one `layer`, `head`, and `all`.
        sharded: the flavor.

    Raises:
        NotRecorded: a strategy without a host record.
    """
    # the families with host records (record_operations.WITH_HOSTS)
    name = "vit" if family == "vit" else "llama" if family in FAMILIES else "resnet"
    own = find_host(name, strategy, ranks)
    base = find_host(name, "fsdp" if sharded else "single", 2 if sharded else 1)
    split = own.ranks // RECORDED_NODES.get(strategy, 1) / shards if shards > 1 else 1.0
    found = {"optimizer": _scale(own, base, "optimizer", trained["all"], sharded, split)}
    own, base = _merge(own), _merge(base)
    for place, mine in trained.items():
        for part in ("", BACKWARD, FIRST, BACKWARD + FIRST):
            found[place + part] = _scale(own, base, "layer" + part, mine, sharded)
    return found


def _merge(record: HostRecord) -> HostRecord:
    """Return a record with all layers and ends as one layer: a bucket of many weights is reduced in one segment."""
    found: dict[str, tuple[list[float], int, dict[str, list[int]], dict[str, list[int]]]] = {}
    for segment, (work, waits, *moved) in record.segments.items():
        if segment.startswith("optimizer"):
            continue
        first = FIRST * segment.endswith(FIRST)
        name = "layer" + BACKWARD * segment.removesuffix(FIRST).endswith(BACKWARD) + first
        known, count, *sums = found.get(name, ([0.0] * 6, 0, {}, {}))
        for total, one in zip(sums, moved, strict=True):
            for kind, (size, launches) in one.items():
                before = total.get(kind, [0, 0])
                total[kind] = [before[0] + size, before[1] + launches]
        merged = [a + b for a, b in zip(known, work, strict=True)]
        found[name] = (merged, count + waits, sums[0], sums[1])
    every = record.weights["all"]
    return HostRecord(record.strategy, record.ranks, found, {"all": every})


def _scale(
    own: HostRecord, base: HostRecord, segment: str, mine: Trained, sharded: bool, scale: float = 1.0
) -> Surcharge:
    work, waits, moved, gathered = own.segments[segment]
    other, _, other_moved, _ = base.segments.get(segment, ([0] * 6, 0, {}, {}))
    if segment == "optimizer":  # the recorded micro-batches have no update
        other, other_moved, gathered = [0] * 6, {}, moved
    theirs = Trained(*own.weights["all"])
    per_weight = mine.weights / theirs.weights
    host = HostWork(*((a - b) * per_weight for a, b in zip(work, other, strict=True)))
    difference = gathered if sharded else _subtract(moved, other_moved)
    scale *= mine.elements / theirs.elements
    kernels = [
        Kernel(kind, 0.0, size * scale, max(1, round(launches * per_weight)))
        for kind, (size, launches) in difference.items()
        if size > 0
    ]
    return Surcharge(host, waits if segment == "optimizer" else round(waits * per_weight), kernels)


def _subtract(a: Mapping[str, list[int]], b: Mapping[str, list[int]]) -> dict[str, list[int]]:
    return {
        kind: [size - b.get(kind, [0, 0])[0], launches - b.get(kind, [0, 0])[1]]
        for kind, (size, launches) in a.items()
    }


def sum_seconds(kernels: list[Kernel], card: Card) -> float:
    """Return the device's time for them."""
    return sum(kernel_seconds(kernel, card) for kernel in kernels)
