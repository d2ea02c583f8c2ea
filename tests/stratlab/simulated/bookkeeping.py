"""Finds the known answers in the simulation's own schedule: the time line of a rank is cut at every point at which
anything begins or ends, and each elementary segment is booked on exactly one part."""

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
    def whole(self):
        return self.end - self.start

    @property
    def comm_exposed(self):
        """Communication that no compute covers, with the bubble."""
        return self.transfer.total() + self.straggler.total() + self.bubble

    @property
    def idle(self):
        return self.data + self.host + self.launch + self.kernel_wait + self.other_idle

    def build_parts(self):
        """(part, collective, axis) -> ns; their sum is the whole."""
        parts = {("compute", None, None): self.compute}
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

    def sum_phase(self, phase, name):
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


KERNEL_WAIT_BELOW_NS = 30_000
PHASES = {
    "## Data Loading ##": "data",
    "## Forward Pass ##": "forward",
    "## Backward Pass ##": "backward",
    "## Optimizer Step ##": "optimizer",
}


def build_rank_truth(member):
    return RankTruth(
        kernels=member.kernels,
        copies=member.copies,
        peak_allocated_bytes=member.peak_allocated,
        peak_reserved_bytes=member.reserved,
        slices=member.slices,
    )


def build_step_truths(member, hosts, is_pipeline):
    """One per step; `hosts` are the host's labels."""
    work = sorted(member.work, key=lambda w: (w.start, w.issued))
    labels = sorted((a, b, PHASES[name]) for name, a, b in member.labels if name in PHASES)
    steps = []
    for begin, end in hosts:
        own = [label for label in labels if begin <= label[0] < end]
        step = StepTruth(_settle(work, begin), _settle(work, end))
        step.host_ns, step.data_ns = end - begin, sum(b - a for a, b, phase in own if phase == "data")
        step.spans = _build_spans(step, [(_settle(work, a), _settle(work, b), phase) for a, b, phase in own])
        for phase in PHASES.values():
            within = [w for w in work if any(a <= w.issued < b for a, b, of in own if of == phase)]
            step.issued[phase] = _cover(within)
        steps.append(step)
    changes = _list_changes(work, [(a, b) for a, b, phase in labels if phase == "data"], is_pipeline)
    _book_all(steps, changes, work)
    _book_all([parts for step in steps for _, parts in step.spans], changes, work)
    return steps


def _settle(work, at):
    """When the GPU had ended what the host launched before this time, but not before it."""
    return max([at, *(w.end for w in work if w.issued < at)])


def _build_spans(step, labels):
    spans, at = [], step.start
    for start, end, phase in labels:
        if max(start, at) < min(end, step.end):
            spans += [
                ("other", Parts(at, max(start, at))),
                (phase, Parts(max(start, at), min(end, step.end))),
            ]
            at = min(end, step.end)
    spans.append(("other", Parts(at, step.end)))
    return [(phase, parts) for phase, parts in spans if parts.whole]


def _cover(work):
    total, reach = 0, 0
    for w in work:
        total += max(0, w.end - max(w.start, reach))
        reach = max(reach, w.end)
    return total


def _book_all(windows, changes, work):
    """Books every elementary segment on the window, of some that do not overlap, in which it lies."""
    active = Counter()
    at, gap, index, following = windows[0].start, windows[0].start, 0, 0
    borders = {t for window in windows for t in (window.start, window.end)}
    for time in sorted({*changes, *borders}):
        while index < len(windows) and time > windows[index].end:
            index += 1
        if active["compute"] + active["comm"] + active["copy"]:
            gap = time
        if index < len(windows) and windows[index].start <= at < time <= windows[index].end:
            while following < len(work) and work[following].start < time:
                following += 1
            after = work[following] if following < len(work) else None
            _book(windows[index], (at, time), active, gap, after)
        active.update(changes.get(time, ()))
        at = max(at, time)


def _book(step, span, active, gap, after):
    """One elementary segment. `gap` is when the GPU fell idle, `after` what ends that."""
    ns = span[1] - span[0]
    step.comm += ns if active["comm"] else 0
    step.copy += ns if active["copy"] else 0
    if active["compute"]:
        step.compute += ns
        step.comm_overlap += ns if active["comm"] else 0
    elif active["comm"]:
        key = min(k for k, count in active.items() if isinstance(k, tuple) and count)
        if active["bubble"] and key[0] == "send_recv":
            step.bubble += ns
        else:
            (step.straggler if active["waiting"] else step.transfer)[key] += ns
    elif active["copy"]:
        step.copy_exposed += ns
    elif active["data"]:
        step.data += ns
    elif after is None:
        step.host += ns
    elif after.issued > gap:
        before = _before(span, after.issued)
        step.host += before
        step.launch += ns - before
    else:
        inside = _before(span, after.returned)
        step.launch += inside
        if after.start - gap < KERNEL_WAIT_BELOW_NS:
            step.kernel_wait += ns - inside
        else:
            step.other_idle += ns - inside


def _before(span, at):
    return max(0, min(at, span[1]) - span[0])


def _list_changes(work, labels, is_pipeline):
    """Time -> what begins (+1) and ends (-1) there."""
    changes = {}
    for start, end, what in _list_spans(work, labels, is_pipeline):
        changes.setdefault(start, Counter())[what] += 1
        changes.setdefault(end, Counter())[what] -= 1
    return changes


def _list_spans(work, labels, is_pipeline):
    for start, end in labels:
        yield start, end, "data"
    for w in work:
        yield w.start, w.end, w.kind
        if w.kind == "comm":
            passes_on = is_pipeline and w.collective == "send_recv"
            yield w.start, w.end, (w.collective, w.axis)
            yield (w.start, w.end, "bubble") if passes_on else (w.start, w.others, "waiting")
