"""What a count has found, as numbers for a file and as lines for a person; without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

from trainer.counting.timeline import Moment
from trainer.layout.axes import Axes
from trainer.settings.config import Config

GIB = 2**30
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
    """Memory of one rank in one step, which is not its first."""

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
    """When most of what other ranks hold was gathered here."""
    windows: dict[str, Moment]
    """The fullest moment of each window of the step (timeline.py); the peak is the fullest of them."""
    host: Moment
    """When most lay in host memory, of what is offloaded; it is in none of the others."""
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
        """For a JSON file; bytes are whole blocks, and those of `causes` and of `storages` add up to the peak."""
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
            "rules": "cuda" if self.cuda else "cpu",
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
        """A table: causes at the peak and between steps, then the `top` largest groups of storages at the peak."""
        config, where = self.config, self.axes.coordinates(self.rank)
        sizes = " ".join(f"{name}={size}" for name, size in self.axes.as_dict().items() if size > 1)
        place = ", ".join(f"{name} {at}" for name, at in where.items() if getattr(self.axes, name) > 1)
        yield (
            f"{config.strategy}, {config.model_name}, {config.precision}; rank {self.rank} of {self.ranks}"
            f"{f' ({sizes}; at {place})' if sizes else ''}"
        )
        rows = f"{config.micro_batch_size} x {config.seq_len} tokens" if config.is_text else "images"
        number = rows if config.is_text else f"{config.micro_batch_size} {rows}"
        yield f"second step, {self.micro_batches} micro-batches of {number}; counted on no device, {self._rules()}"
        yield ""
        causes, between = self.peak.by_cause(), self.between.by_cause()
        yield f"{'GiB':22}{'peak':>9}{'between':>9}"
        for cause in sorted(causes, key=lambda name: -causes[name]):
            if causes[cause] or between[cause]:
                yield f"{cause:22}{_gib(causes[cause])}{_gib(between[cause])}  {self._bar(causes[cause])}".rstrip()
        yield f"{'in all':22}{_gib(self.peak.total)}{_gib(self.between.total)}"
        yield f"{'most gathered at once':22}{_gib(self.gathered_bytes)}"
        if self.host.total:
            held = ", ".join(f"{cause}{_gib(size)}" for cause, size in self.host.by_cause().items() if size)
            yield f"{'in host memory':22}{_gib(self.host.total)}  {' '.join(held.split())}"
        yield from self._wait_lines()
        if top:
            yield ""
            yield f"{'GiB':>9}  {'cause':22}{'phase':11}{'number':>6}  operator, type, shape"
            for cause, label, number_of, size in self.peak.by_label()[:top]:
                shape = "x".join(map(str, label.shape)) or "scalar"
                made = f"{label.operator} {label.dtype} {shape}"
                yield f"{_gib(size)}  {cause:22}{label.phase:11}{number_of:6}  {made}"

    def _wait_lines(self) -> Iterator[str]:
        yield ""
        yield f"host waits per step: {sum(self.waits.values())}"
        for wait, number in sorted(self.waits.items()):
            through = "" if wait.asked_by == wait.line else f", from {wait.line}"
            yield f"{number:9}  {wait.why}: {wait.asked_by}{through}"

    def _rules(self) -> str:
        return "as on CUDA" if self.cuda else "as on a CPU"

    def _bar(self, size: int) -> str:
        return "█" * round(BAR * size / max(1, self.peak.total))


def _gib(size: int) -> str:
    return f"{size / GIB:9.3f}"
