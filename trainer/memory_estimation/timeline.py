"""Record when memory was taken and freed, and by which storage; hold the result of a count. Without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import accumulate
from typing import Any, NamedTuple

from stratlab_spec.layout.axes import Axes
from stratlab_spec.memory.profiles import CPU, CUDA, GIB
from stratlab_spec.settings.config import Config

CAUSES = (
    *("parameters", "teacher", "master copies", "gradients", "gradient buckets", "optimizer state"),
    *("low-precision copies", "gathered", "activations", "masks", "logits and loss", "data", "other"),
)
"""Coarse causes of memory; docs/memory.md lists the parts of each."""


SAVED = ("activations", "masks", "low-precision copies")
AT_ONCE = "backward, gradients at once"
"""The window that a strategy has which takes room for all gradients of the rank in one piece."""
AT_ONCE_SHARE = 0.9
"""Share of the gradients held at the end of the pass that makes a piece this large."""
EDGE_SHARE = 0.05
"""Share of the tensors saved by the forward pass: freed at the end of the backward pass's first window, left at the
start of its last."""


class Label(NamedTuple):
    """The origin of a storage."""

    phase: str
    """build, data, forward, backward, optimizer, or between them."""
    operator: str
    dtype: str
    shape: tuple[int, ...]
    """Of its first tensor."""


@dataclass(eq=False)
class Storage:
    """One piece of memory."""

    label: Label
    cause: str
    """One of CAUSES; may become known only after it was made."""
    final: bool = False
    """Whether `cause` is final."""
    size: int = 0
    """Bytes at this moment, in whole blocks."""
    on_host: bool = False
    """Offloaded: it is in host memory, and does not use the device's."""


@dataclass(frozen=True)
class Moment:
    """The storages held at one point of time."""

    total: int
    """Bytes; the sum of everything in `storages`."""
    storages: dict[Storage, int]

    def by_cause(self) -> dict[str, int]:
        """Return bytes of each cause, in the order of CAUSES; they add up to the total."""
        found = Counter[str]()
        for storage, size in self.storages.items():
            found[storage.cause] += size
        return {cause: found[cause] for cause in CAUSES}

    def by_label(self) -> list[tuple[str, Label, int, int]]:
        """Return (cause, label, how many, bytes), the largest first; the bytes add up to the total."""
        sizes, counts = Counter[tuple[str, Label]](), Counter[tuple[str, Label]]()
        for storage, size in self.storages.items():
            sizes[storage.cause, storage.label] += size
            counts[storage.cause, storage.label] += 1
        return [(cause, label, counts[cause, label], size) for (cause, label), size in sizes.most_common()]


@dataclass
class Timeline:
    """Every change of the held memory, in order.

    Args:
        block_bytes: sizes are rounded up to whole blocks.
    """

    block_bytes: int
    events: list[tuple[int, Storage]] = field(default_factory=list)
    """(bytes taken, or freed if negative; the storage)."""
    turns: list[tuple[int, str]] = field(default_factory=list)
    """(event, phase that begins before it), in order."""

    def begin(self, phase: str) -> None:
        """Begin this phase with the next event."""
        self.turns.append((len(self.events), phase))

    def resize(self, storage: Storage, size: int) -> None:
        """Record that `storage` has changed to `size` bytes."""
        blocks = -(-size // self.block_bytes) * self.block_bytes
        if blocks != storage.size:
            self.events.append((blocks - storage.size, storage))
            storage.size = blocks

    def peak(self, since: int, cause: str = "") -> Moment:
        """Return the moment from event `since` on at which most is held: of everything, or only of `cause`.

        The first of several; without an event since then, the memory held at `since`.
        """
        totals = self._totals(lambda storage: not storage.on_host and (not cause or storage.cause == cause))
        return self.moment(max(range(since, len(totals)), key=totals.__getitem__))

    def host_peak(self, since: int) -> Moment:
        """Return the moment from event `since` on with the most host memory, and its storages there."""
        totals = self._totals(lambda storage: storage.on_host)
        return self.moment(max(range(since, len(totals)), key=totals.__getitem__), on_host=True)

    def _totals(self, counts: Callable[[Storage], bool]) -> list[int]:
        """Return the bytes held by the storages that count, before each event and after the last."""
        return list(
            accumulate((delta if counts(storage) else 0 for delta, storage in self.events), initial=0)
        )

    def windows(self, since: int) -> dict[str, Moment]:
        """Return the fullest moment of each window from event `since` on, by its name.

        The windows are the phases, with the backward pass in parts: moments that may become the peak of another depth
        or batch. `backward, begin` is while nearly all tensors saved by the forward pass are alive (the loss),
        `backward, end` when nearly all of them are freed (the embedding), `backward` between. Stages 1 and 2 of
        DeepSpeed take room for all gradients of the rank when their first bucket is full: `backward, gradients at
        once` begins there, `backward` is before it, if that is between begin and end. In one window memory grows
        linearly with depth and rows; the fullest window may change.
        """
        totals = self._totals(lambda storage: not storage.on_host)
        best: dict[str, int] = {}
        for name, start, end in self._segments(since):
            at = max(range(start, end), key=totals.__getitem__)
            if name not in best or totals[at] > totals[best[name]]:
                best[name] = at
        return {name: self.moment(at) for name, at in best.items()}

    def _segments(self, since: int) -> Iterator[tuple[str, int, int]]:
        """Yield (window, first moment, after the last one), without empty windows. Moment n is before event n."""
        ends = [at for at, _ in self.turns[1:]] + [len(self.events)]
        for (turn, phase), end in zip(self.turns, ends, strict=True):
            start = max(turn, since)
            if end <= start:
                continue
            if phase != "backward":
                yield phase, start, end + 1
                continue
            saved = self._saved_bytes(start, end)
            most = max(saved)
            full = max(i for i, size in enumerate(saved) if size >= (1 - EDGE_SHARE) * most) + 1
            empty = next(
                (i for i, size in enumerate(saved) if i >= full and size <= EDGE_SHARE * most), len(saved)
            )
            taken = self._taken_at_once(start, end)
            if not full < taken < empty:
                taken = empty
            cuts = (
                ("backward, begin", 0, full),
                ("backward", full, taken),
                (AT_ONCE, taken, empty),
                ("backward, end", empty, len(saved)),
            )
            for name, begin, stop in cuts:
                if stop > begin:
                    yield name, start + begin, start + stop

    def _taken_at_once(self, start: int, end: int) -> int:
        """Return the moment, counted from `start`, after the event that takes room for all gradients; 0 without one."""
        held = self.moment(end).by_cause()["gradients"]
        taken = (
            at
            for at, (delta, storage) in enumerate(self.events[start:end], 1)
            if storage.cause == "gradients" and delta >= AT_ONCE_SHARE * held > 0
        )
        return next(taken, 0)

    def _saved_bytes(self, start: int, end: int) -> list[int]:
        """Return the live bytes saved by the forward pass, before each event of start..end, and after the last."""
        held = sum(size for storage, size in self.moment(start).storages.items() if _is_saved(storage))
        changes = (delta if _is_saved(storage) else 0 for delta, storage in self.events[start:end])
        return list(accumulate(changes, initial=held))

    def moment(self, before: int, on_host: bool = False) -> Moment:
        """Return the memory of the device, or of the host for offloaded tensors, before event number `before`."""
        held = Counter[Storage]()
        for delta, storage in self.events[:before]:
            held[storage] += delta
        alive = {storage: size for storage, size in held.items() if size and storage.on_host is on_host}
        return Moment(sum(alive.values()), alive)


def _is_saved(storage: Storage) -> bool:
    return storage.label.phase == "forward" and storage.cause in SAVED


BAR = 30
LIBRARIES = ("torch", "deepspeed", "transformers")


class Wait(NamedTuple):
    """One place that makes the host wait."""

    why: str
    asked_by: str
    """File, line and function that calls torch, or a library's that does."""
    line: str
    """The innermost line of the trainer."""


@dataclass(frozen=True)
class Count:
    """Memory of one rank in one step after its first."""

    config: Config
    ranks: int
    rank: int
    per_node: int
    axes: Axes
    micro_batches: int
    cuda: bool
    """Whether CUDA's autocast and attention were counted, or a CPU's."""
    block_bytes: int
    peak: Moment
    between: Moment
    """Before the step's data."""
    gathered: Moment
    """When most of the other ranks' parts were gathered here."""
    windows: dict[str, Moment]
    """The fullest moment of each window of the step (timeline.py); the peak is the fullest of them."""
    host: Moment
    """When most offloaded memory was on the host; the other moments do not include it."""
    collectives: dict[tuple[str, str], int]
    """Bytes that this rank got out of collectives in the step, by (operator, dtype)."""
    waits: dict[Wait, int]
    """How often the host would wait for its device in the step, by place."""
    operators: int
    """With its engine's making and the steps before; so are the seconds."""
    seconds: float

    @property
    def gathered_bytes(self) -> int:
        """The most that was gathered at one moment."""
        return self.gathered.by_cause()["gathered"]

    def as_dict(self) -> dict[str, Any]:
        """Return the count for a JSON file; bytes are whole blocks, and the sums of `causes` and `storages` equal the
        peak.
        """
        given = self.config.model_dump(
            include=self.config.model_fields_set | {"strategy", "model", "precision"}
        )
        return {
            "schema_version": 1,
            "config": {name: given[name] for name in sorted(given)},
            "ranks": self.ranks,
            "rank": self.rank,
            "ranks_per_node": self.per_node,
            "axes": self.axes.as_dict(),
            "coordinates": self.axes.coordinates(self.rank),
            "micro_batches": self.micro_batches,
            "rules": CUDA if self.cuda else CPU,
            "block_bytes": self.block_bytes,
            "peak_bytes": self.peak.total,
            "between_steps_bytes": self.between.total,
            "gathered_bytes": self.gathered_bytes,
            "host_bytes": self.host.total,
            "causes": self.peak.by_cause(),
            "between_steps_causes": self.between.by_cause(),
            "host_causes": self.host.by_cause(),
            "collectives": [
                {"operator": operator, "dtype": dtype, "bytes": size}
                for (operator, dtype), size in sorted(self.collectives.items())
            ],
            "host_waits": [
                {**wait._asdict(), "count": number} for wait, number in sorted(self.waits.items())
            ],
            "storages": [
                {"cause": cause, **label._asdict(), "count": number, "bytes": size}
                for cause, label, number, size in self.peak.by_label()
            ],
            "versions": {name: version(name) for name in LIBRARIES},
            "seconds": round(self.seconds, 1),
        }

    def lines(self, top: int) -> Iterator[str]:
        """Yield a table: causes at the peak and between steps, then the `top` largest groups of storages at the
        peak.
        """
        config, where = self.config, self.axes.coordinates(self.rank)
        sizes = " ".join(f"{name}={size}" for name, size in self.axes.as_dict().items() if size > 1)
        place = ", ".join(f"{name} {at}" for name, at in where.items() if getattr(self.axes, name) > 1)
        yield (
            f"{config.strategy}, {config.model_name}, {config.precision}; rank {self.rank} of {self.ranks}"
            f"{f' ({sizes}; at {place})' if sizes else ''}"
        )
        rows = f"x {config.seq_len} tokens" if config.is_text else "images"
        batches = f"{self.micro_batches} micro-batches of {config.micro_batch_size} {rows}"
        yield f"second step, {batches}; counted on no device, as on {'CUDA' if self.cuda else 'a CPU'}"
        yield ""
        causes, between = self.peak.by_cause(), self.between.by_cause()
        yield f"{'GiB':22}{'peak':>9}{'between':>9}"
        for cause in sorted(causes, key=lambda name: -causes[name]):
            if causes[cause] or between[cause]:
                bar = "█" * round(BAR * causes[cause] / max(1, self.peak.total))
                yield f"{cause:22}{_gib(causes[cause])}{_gib(between[cause])}  {bar}".rstrip()
        yield f"{'in all':22}{_gib(self.peak.total)}{_gib(self.between.total)}"
        yield f"{'most gathered at once':22}{_gib(self.gathered_bytes)}"
        if self.host.total:
            held = ", ".join(f"{cause}{_gib(size)}" for cause, size in self.host.by_cause().items() if size)
            yield f"{'in host memory':22}{_gib(self.host.total)}  {' '.join(held.split())}"
        yield ""
        yield f"host waits per step: {sum(self.waits.values())}"
        for wait, number in sorted(self.waits.items()):
            through = "" if wait.asked_by == wait.line else f", from {wait.line}"
            yield f"{number:9}  {wait.why}: {wait.asked_by}{through}"
        if top:
            yield ""
            yield f"{'GiB':>9}  {'cause':22}{'phase':11}{'number':>6}  operator, type, shape"
            for cause, label, number_of, size in self.peak.by_label()[:top]:
                shape = "x".join(map(str, label.shape)) or "scalar"
                made = f"{label.operator} {label.dtype} {shape}"
                yield f"{_gib(size)}  {cause:22}{label.phase:11}{number_of:6}  {made}"


def _gib(size: int) -> str:
    return f"{size / GIB:9.3f}"
