"""The traces of one folder, divided into experiments where they cannot be one."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from stratlab.run_directory.files import LARGEST_WORLD
from stratlab.traces.chunks import Limits, TraceError, read_blocks
from stratlab.traces.discover import Finding
from stratlab.traces.rank_trace import TraceFile

TOLD_NAMES = 3

Group = tuple[tuple[str, ...], list[TraceFile], list[Finding]]


def divide(above: tuple[str, ...], traces: Sequence[TraceFile], limits: Limits) -> list[Group]:
    """The experiments of one folder: one, or where its files cannot be one, one for each name without its rank."""
    kept, findings = _drop_copies(traces, limits)
    ranked = [trace for trace in kept if trace.rank is not None]
    if len(kept) == 1 or (len(ranked) == len(kept) and not find_conflict(ranked)):
        return [(above, kept, findings)]
    if len(ranked) > 1 and not find_conflict(ranked):
        why = (
            "names no rank, other files of its folder do; an experiment of its own needs a folder of its own "
            "[SL-rank-untold-beside]"
        )
        lost = [Finding("skipped", why, t.file.shown) for t in kept if t.rank is None]
        return [(above, ranked, [*findings, *lost])]
    by_name: dict[str, list[TraceFile]] = {}
    for trace in kept:
        by_name.setdefault(trace.place.stem, []).append(trace)
    if all(find_conflict(part) for part in by_name.values()):  # the names do not divide it either
        return [(above, kept, findings)]
    return [
        (
            (*above, name),
            part,
            [f for f in findings if f.rank in {t.rank for t in part}] if len(part) > 1 else [],
        )
        for name, part in sorted(by_name.items())
    ]


def find_conflict(traces: Sequence[TraceFile]) -> str:
    """Why these cannot be the ranks of one experiment; empty where they can."""
    by_rank: dict[int | None, list[str]] = {}
    for trace in traces:
        by_rank.setdefault(trace.rank, []).append(trace.file.shown)
    doubles = {rank: names for rank, names in by_rank.items() if rank is not None and len(names) > 1}
    if doubles:
        rank, names = min(doubles.items())
        more = f", and so {len(doubles) - 1} further ranks" if len(doubles) > 1 else ""
        return (
            f"rank {rank} is in {len(names)} files, {_list(names)}{more}; an experiment has one trace of each rank: "
            "put what belongs together into a folder of its own, or say with --rank-pattern where the rank stands in "
            "the names [SL-rank-in-files]"
        )
    if len(traces) > 1 and (silent := by_rank.get(None)):
        return (
            f"{_list(silent)}: nothing says which rank it is; write it into the name (rank0, rank1, ...) or say with "
            "--rank-pattern where it stands [SL-rank-unsaid]"
        )
    sizes = {trace.identity.world_size for trace in traces if is_size(trace.identity.world_size)}
    if len(sizes) > 1:
        told = _list(sorted(map(str, sizes), key=int), " and ")
        return f"its traces are of runs with {told} processes [SL-world-size-differs]"
    return ""


def _drop_copies(traces: Sequence[TraceFile], limits: Limits) -> tuple[list[TraceFile], list[Finding]]:
    """Without the files that hold, unpacked, what another one of the same rank holds."""
    counted = Counter(trace.rank for trace in traces)
    kept: list[TraceFile] = []
    findings: list[Finding] = []
    seen: dict[tuple[int | None, bytes], TraceFile] = {}
    for trace in traces:
        if counted[trace.rank] > 1 and (digest := _hash(trace, limits)):
            first = seen.setdefault((trace.rank, digest), trace)
            if first is not trace:
                why = f"holds the same as {first.file.shown} [SL-trace-copy]"
                findings.append(Finding("skipped", why, trace.file.shown, trace.rank))
                continue
        kept.append(trace)
    return kept, findings


def _hash(trace: TraceFile, limits: Limits) -> bytes | None:
    digest = hashlib.sha256()
    try:
        for block in read_blocks(trace.file.path, limits):
            digest.update(block)
    except (TraceError, OSError):
        return None  # damaged: said when it is read
    return digest.digest()


def is_size(size: int | None) -> bool:
    """Whether a run can have so many ranks."""
    return size is not None and 1 <= size <= LARGEST_WORLD


def _list(names: Sequence[str], last: str = ", ") -> str:
    shown = last.join(names[:TOLD_NAMES])
    return shown + (f" and {len(names) - TOLD_NAMES} more" if len(names) > TOLD_NAMES else "")
