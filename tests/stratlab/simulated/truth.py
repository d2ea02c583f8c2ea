"""What the traces of a simulated team must say."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.stratlab.simulated.scene import Scene

Key = tuple[str, str | None]  # collective, axis


@dataclass
class Parts:
    """What the time from start to end was spent on, ns. compute + transfer + straggler + bubble + copy_exposed + data +
    host + launch + kernel_wait + other_idle = its whole."""

    start: int
    end: int
    compute: int = 0
    comm: int = 0
    comm_overlap: int = 0
    copy: int = 0
    copy_exposed: int = 0
    transfer: Counter[Key] = field(default_factory=Counter)  # exposed, after the last rank came
    straggler: Counter[Key] = field(default_factory=Counter)  # exposed, before
    bubble: int = 0
    data: int = 0
    host: int = 0
    launch: int = 0
    kernel_wait: int = 0
    other_idle: int = 0

    @property
    def whole(self) -> int:
        """Its length."""
        return self.end - self.start

    @property
    def comm_exposed(self) -> int:
        """Communication that no compute covers, with the bubble."""
        return self.transfer.total() + self.straggler.total() + self.bubble

    @property
    def idle(self) -> int:
        """Nothing ran."""
        return self.data + self.host + self.launch + self.kernel_wait + self.other_idle

    def build_parts(self) -> dict[tuple[str, str | None, str | None], int]:
        """(part, collective, axis) -> ns; their sum is the whole."""
        parts: dict[tuple[str, str | None, str | None], int] = {("compute", None, None): self.compute}
        parts |= {("comm", *key): ns for key, ns in self.transfer.items()}
        parts |= {("straggler", *key): ns for key, ns in self.straggler.items()}
        rest = {"bubble": self.bubble, "copy": self.copy_exposed, "data": self.data, "host": self.host}
        rest |= {"launch": self.launch, "kernel_wait": self.kernel_wait, "other_idle": self.other_idle}
        return parts | {(part, None, None): ns for part, ns in rest.items()}


@dataclass
class StepTruth(Parts):
    """One step of one rank. `spans`: its phases in time order, side by side, `other` between their labels.
    `issued`: time covered by the GPU events that were launched inside the labels of a phase."""

    host_ns: int = 0
    data_ns: int = 0  # the host's data labels
    spans: list[tuple[str, Parts]] = field(default_factory=list)
    issued: dict[str, int] = field(default_factory=dict)

    def sum_phase(self, phase: str, name: str) -> int:
        """One part of all spans of a phase."""
        values = [getattr(parts, name) for of, parts in self.spans if of == phase]
        return sum(v.total() if isinstance(v, Counter) else v for v in values)


@dataclass(frozen=True)
class RankTruth:
    """One rank over the whole trace."""

    kernels: dict[str, tuple[int, int]]  # every GPU event by name: count, ns
    copies: dict[str, tuple[int, int, int]]  # HtoD, ...: count, bytes, ns
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    slices: int  # events with a duration


@dataclass(frozen=True)
class Truth:
    """What the traces of a scene must say."""

    scene: Scene
    files: dict[int, Path]
    steps: dict[tuple[int, int], StepTruth]  # (rank, number of the step)
    ranks: dict[int, RankTruth]
