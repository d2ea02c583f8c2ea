"""When memory was taken and given back, and by what; without torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

CAUSES = (
    *("parameters", "teacher", "master copies", "gradients", "gradient buckets", "optimizer state"),
    *("low-precision copies", "gathered", "activations", "masks", "logits and loss", "data", "other"),
)
"""What memory is held for, coarsely; docs/memory.md says what belongs to each."""


class Label(NamedTuple):
    """What made a storage."""

    phase: str
    """build, data, forward, backward, optimizer, or between them."""
    operator: str
    dtype: str
    shape: tuple[int, ...]
    """Of the first tensor on it."""


@dataclass(eq=False)
class Storage:
    """One piece of memory."""

    label: Label
    cause: str
    """One of CAUSES; may become known only after it was made."""
    final: bool = False
    """Whether `cause` stays as it is, whatever else the storage is found to be."""
    size: int = 0
    """Bytes at this moment, in whole blocks."""


@dataclass(frozen=True)
class Moment:
    """What was held at one point of time."""

    total: int
    """Bytes; the sum of everything in `storages`."""
    storages: dict[Storage, int]

    def by_cause(self) -> dict[str, int]:
        """Bytes of each cause, in the order of CAUSES; they add up to the total."""
        found = Counter[str]()
        for storage, size in self.storages.items():
            found[storage.cause] += size
        return {cause: found[cause] for cause in CAUSES}

    def by_label(self) -> list[tuple[str, Label, int, int]]:
        """(cause, label, how many, bytes), the largest first; the bytes add up to the total."""
        sizes, counts = Counter[tuple[str, Label]](), Counter[tuple[str, Label]]()
        for storage, size in self.storages.items():
            sizes[storage.cause, storage.label] += size
            counts[storage.cause, storage.label] += 1
        return [(cause, label, counts[cause, label], size) for (cause, label), size in sizes.most_common()]


@dataclass
class Timeline:
    """Every change of what is held, in order.

    Args:
        block_bytes: sizes are rounded up to whole blocks.
    """

    block_bytes: int
    events: list[tuple[int, Storage]] = field(default_factory=list)
    """(bytes taken, or given back where negative; whose)."""

    def resize(self, storage: Storage, size: int) -> None:
        """Records that `storage` has `size` bytes from now on."""
        blocks = -(-size // self.block_bytes) * self.block_bytes
        if blocks != storage.size:
            self.events.append((blocks - storage.size, storage))
            storage.size = blocks

    def peak(self, since: int, cause: str = "") -> Moment:
        """The moment from event `since` on at which most is held: of everything, or of `cause` alone.

        The first of several; if nothing happened since, what was held then.
        """
        counted = [delta if not cause or storage.cause == cause else 0 for delta, storage in self.events]
        totals = list(accumulate(counted, initial=0))  # totals[i]: before event i
        return self.moment(max(range(since, len(totals)), key=totals.__getitem__))

    def moment(self, before: int) -> Moment:
        """What is held before event number `before`."""
        held = Counter[Storage]()
        for delta, storage in self.events[:before]:
            held[storage] += delta
        alive = {storage: size for storage, size in held.items() if size}
        return Moment(sum(alive.values()), alive)
