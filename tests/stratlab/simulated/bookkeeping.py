"""Finds the known answers in the simulation's own schedule: the time line of a rank is cut at every point at which
anything begins or ends, and each elementary segment is booked on exactly one part."""

from collections import Counter
from collections.abc import Iterator, Sequence

from tests.stratlab.simulated.member import Member, Work
from tests.stratlab.simulated.truth import Parts, RankTruth, StepTruth

KERNEL_WAIT_BELOW_NS = 30_000
PHASES = {
    "## Data Loading ##": "data",
    "## Forward Pass ##": "forward",
    "## Backward Pass ##": "backward",
    "## Optimizer Step ##": "optimizer",
}


def build_rank_truth(member: Member) -> RankTruth:
    """At the end of the simulation."""
    return RankTruth(
        kernels=member.kernels,
        copies=member.copies,
        peak_allocated_bytes=member.peak_allocated,
        peak_reserved_bytes=member.reserved,
        slices=member.slices,
    )


def build_step_truths(member: Member, hosts: list[tuple[int, int]], is_pipeline: bool) -> list[StepTruth]:
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


def _settle(work: list[Work], at: int) -> int:
    """When the GPU had ended what the host launched before this time, but not before it."""
    return max([at, *(w.end for w in work if w.issued < at)])


def _build_spans(step: StepTruth, labels: list[tuple[int, int, str]]) -> list[tuple[str, Parts]]:
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


def _cover(work: list[Work]) -> int:
    total, reach = 0, 0
    for w in work:
        total += max(0, w.end - max(w.start, reach))
        reach = max(reach, w.end)
    return total


def _book_all(windows: Sequence[Parts], changes: dict[int, Counter[object]], work: list[Work]) -> None:
    """Books every elementary segment on the window, of some that do not overlap, in which it lies."""
    active: Counter[object] = Counter()
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


def _book(step: Parts, span: tuple[int, int], active: Counter[object], gap: int, after: Work | None) -> None:
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


def _before(span: tuple[int, int], at: int) -> int:
    """What of the span lies before this time."""
    return max(0, min(at, span[1]) - span[0])


def _list_changes(
    work: list[Work], labels: list[tuple[int, int]], is_pipeline: bool
) -> dict[int, Counter[object]]:
    """Time -> what begins (+1) and ends (-1) there."""
    changes: dict[int, Counter[object]] = {}
    for start, end, what in _list_spans(work, labels, is_pipeline):
        changes.setdefault(start, Counter())[what] += 1
        changes.setdefault(end, Counter())[what] -= 1
    return changes


def _list_spans(
    work: list[Work], labels: list[tuple[int, int]], is_pipeline: bool
) -> Iterator[tuple[int, int, object]]:
    for start, end in labels:
        yield start, end, "data"
    for w in work:
        yield w.start, w.end, w.kind
        if w.kind == "comm":
            passes_on = is_pipeline and w.collective == "send_recv"
            yield w.start, w.end, (w.collective, w.axis)
            yield (w.start, w.end, "bubble") if passes_on else (w.start, w.others, "waiting")
