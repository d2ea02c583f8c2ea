"""Traces that this lab did not make, sorted into experiments with one trace per rank. The rules: docs/foreign.md."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from stratlab.run_directory.files import LARGEST_WORLD
from stratlab.traces.archives import SourceFile, Unpacked, find_archive_stem
from stratlab.traces.chunks import LIMITS, Limits, TraceError, read_blocks
from stratlab.traces.discover import Finding
from stratlab.traces.experiment_names import name_experiments
from stratlab.traces.identity import Identity, read_identity
from stratlab.traces.manifest import find_problem
from stratlab.traces.rank_names import find_folder_rank, find_rank, split_folders, strip_rank
from stratlab.user_error import UserError

TOLD_NAMES = 3
NO_TRACES = ("holds no traceEvents", "a merged trace", "--rank-pattern")  # of what is left out: no damage


@dataclass(frozen=True)
class TraceFile:
    """A trace of one rank.

    Attributes:
        rank_from: pattern, distributedInfo, file name or folder name.
        above: the folders of its experiment; below: those of ranks and nodes inside of it.
        remark: what is odd about its name.
    """

    file: SourceFile
    identity: Identity
    rank: int | None
    rank_from: str
    above: tuple[str, ...]
    below: tuple[str, ...]
    remark: str | None = None


@dataclass
class Experiment:
    """What belongs together: `traces` by rank. `refused`: why it cannot be analysed; empty where it can."""

    name: str
    folders: tuple[str, ...]
    traces: dict[int, TraceFile]
    world_size: int | None = None
    backend: str | None = None
    findings: list[Finding] = field(default_factory=list)
    refused: str = ""


@dataclass(frozen=True)
class Sorted:
    """`left_out`: (name, why) of files that are in no experiment, and are no damaged traces of one."""

    experiments: list[Experiment]
    left_out: list[tuple[str, str]]


def sort_experiments(
    found: Unpacked, whole: str, pattern: re.Pattern[str] | None = None, limits: Limits = LIMITS
) -> Sorted:
    """Looks into every file and sorts them.

    Args:
        found: what there is in one source.
        whole: the name of the source, for an experiment that lies in no folder of its own.
        pattern: its first group in a file's path is the rank; None = the rank is found by the rules.

    Raises:
        UserError: what the pattern finds is no number.
    """
    left_out = list(found.left_out)
    by_folder: dict[tuple[str, ...], list[TraceFile]] = {}
    for file in found.files:
        trace = _look(file, pattern, limits)
        if isinstance(trace, str):
            left_out.append((file.shown, trace))
        else:
            by_folder.setdefault(trace.above, []).append(trace)
    groups: list[Group] = []
    for above, traces in sorted(by_folder.items()):
        groups += _divide(above, traces, limits)
    _add_lost(groups, [each for each in left_out if not each[1].startswith(NO_TRACES)])
    groups.sort(key=lambda group: group[0])
    names = name_experiments([path for path, _, _ in groups], whole)
    experiments = [_build(name, *group) for name, group in zip(names, groups, strict=True)]
    return Sorted(experiments, [each for each in left_out if each[1].startswith(NO_TRACES)])


def _add_lost(groups: list[Group], lost: Sequence[tuple[str, str]]) -> None:
    """Names what is damaged or refused in the experiment that it would be of; without another trace it is one too."""
    paths = {path for path, _, _ in groups}
    for name, why in lost:
        *folders, last = name.split("/")
        above, below = split_folders(folders)
        if stem := find_archive_stem(last):
            above = (*folders, stem)
        divided = (*above, strip_rank(last, below))
        is_divided = above not in paths and any(path[:-1] == above for path in paths)
        path = divided if is_divided else above
        finding = Finding("skipped", why, name)
        group = next((group for group in groups if group[0] == path), None)
        if group:
            group[2].append(finding)
        else:
            groups.append((path, [], [finding]))


def _look(file: SourceFile, pattern: re.Pattern[str] | None, limits: Limits) -> TraceFile | str:
    """The trace, or why the file is none."""
    if problem := find_problem(file.path, limits.raw_bytes):
        return problem
    *folders, name = file.parts
    above, below = split_folders(folders)
    in_name, in_folder = find_rank(name), find_folder_rank(below)
    asked = pattern.search(file.shown) if pattern else None
    if pattern and not asked:
        return f"--rank-pattern {pattern.pattern} is not in its name"
    if pattern and asked and not (asked[1] or "").isdecimal():
        raise UserError(f"--rank-pattern {pattern.pattern}: {asked[1]!r} of {file.shown} is no rank")
    identity = read_identity(file.path, limits, behind=in_name is None and in_folder is None)
    if identity.problem is not None:
        return identity.problem
    named = in_folder if in_name is None else in_name
    rank, rank_from, remark = named, "folder name" if in_name is None else "file name", None
    if asked:
        rank, rank_from = int(asked[1]), "pattern"
    elif identity.rank is not None:
        rank, rank_from = identity.rank, "distributedInfo"
        remark = f"named as rank {named}, but of rank {rank}" if named not in (None, rank) else None
    return TraceFile(file, identity, rank, rank_from, above, below, remark)


Group = tuple[tuple[str, ...], list[TraceFile], list[Finding]]


def _divide(above: tuple[str, ...], traces: Sequence[TraceFile], limits: Limits) -> list[Group]:
    """The experiments of one folder: one, or where its files cannot be one, one for each name without its rank."""
    kept, findings = _drop_copies(traces, limits)
    ranked = [trace for trace in kept if trace.rank is not None]
    if len(kept) == 1 or (len(ranked) == len(kept) and not _find_conflict(ranked)):
        return [(above, kept, findings)]
    if len(ranked) > 1 and not _find_conflict(ranked):
        why = (
            "names no rank, other files of its folder do; an experiment of its own needs a folder of its own"
        )
        lost = [Finding("skipped", why, t.file.shown) for t in kept if t.rank is None]
        return [(above, ranked, [*findings, *lost])]
    by_name: dict[str, list[TraceFile]] = {}
    for trace in kept:
        by_name.setdefault(strip_rank(trace.file.parts[-1], trace.below), []).append(trace)
    if all(_find_conflict(part) for part in by_name.values()):  # the names do not divide it either
        return [(above, kept, findings)]
    return [
        (
            (*above, name),
            part,
            [f for f in findings if f.rank in {t.rank for t in part}] if len(part) > 1 else [],
        )
        for name, part in sorted(by_name.items())
    ]


def _find_conflict(traces: Sequence[TraceFile]) -> str:
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
            "the names"
        )
    if len(traces) > 1 and (silent := by_rank.get(None)):
        return (
            f"{_list(silent)}: nothing says which rank it is; write it into the name (rank0, rank1, ...) or say with "
            "--rank-pattern where it stands"
        )
    sizes = {trace.identity.world_size for trace in traces if _is_size(trace.identity.world_size)}
    if len(sizes) > 1:
        return f"its traces are of runs with {_list(sorted(map(str, sizes), key=int), ' and ')} processes"
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
                why = f"holds the same as {first.file.shown}"
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


def _build(
    name: str, folders: tuple[str, ...], traces: Sequence[TraceFile], findings: Sequence[Finding]
) -> Experiment:
    found = Experiment(name, folders, {}, findings=list(findings))
    if conflict := _find_conflict(traces):
        found.refused = conflict
        return found
    sizes = {trace.identity.world_size for trace in traces} - {None}
    found.world_size = next((size for size in sizes if _is_size(size)), None)
    backends = {trace.identity.backend for trace in traces} - {None}
    found.backend = next(iter(backends)) if len(backends) == 1 else None
    for trace in traces:
        rank = 0 if trace.rank is None else trace.rank
        if rank < 0 or rank >= (found.world_size or LARGEST_WORLD):
            why = f"rank {rank} of a run with {found.world_size or 'any number of'} processes"
            found.findings.append(Finding("skipped", why, trace.file.shown, rank))
            continue
        if trace.rank is None:
            why = "names no rank, the only trace counts as rank 0"
            found.findings.append(Finding("noted", why, trace.file.shown, 0))
        if trace.remark:
            found.findings.append(Finding("noted", trace.remark, trace.file.shown, rank))
        found.traces[rank] = trace
    found.traces = dict(sorted(found.traces.items()))
    if not found.traces:
        found.refused = "no trace of it can be used: " + "; ".join(f.reason for f in found.findings)
    return found


def _is_size(size: int | None) -> bool:
    return size is not None and 1 <= size <= LARGEST_WORLD


def _list(names: Sequence[str], last: str = ", ") -> str:
    shown = last.join(names[:TOLD_NAMES])
    return shown + (f" and {len(names) - TOLD_NAMES} more" if len(names) > TOLD_NAMES else "")
