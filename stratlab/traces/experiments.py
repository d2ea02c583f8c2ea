"""Traces that this lab did not make, sorted into experiments with one trace per rank. The rules: docs/foreign.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from stratlab.run_directory.files import LARGEST_WORLD
from stratlab.traces.archives import OTHER_ENDING, Unpacked, find_archive_stem
from stratlab.traces.chunks import LIMITS, NO_EVENTS, Limits
from stratlab.traces.discover import ONLY_TRACE, Finding, say_outside
from stratlab.traces.division import Group, divide, find_conflict, is_size
from stratlab.traces.experiment_names import name_experiments
from stratlab.traces.rank_names import find_named_rank, find_place
from stratlab.traces.rank_trace import TraceFile, look_into

NOTHING_OF_A_TRACE = (NO_EVENTS, OTHER_ENDING)
NO_TRACES = (
    "holds no traceEvents",
    OTHER_ENDING,
    "a merged trace",
    "--rank-pattern",
)  # of what is left out: no damage


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
        trace = look_into(file, pattern, limits)
        if isinstance(trace, str):
            left_out.append((file.shown, trace))
        else:
            by_folder.setdefault(trace.place.above, []).append(trace)
    groups: list[Group] = []
    for above, traces in sorted(by_folder.items()):
        groups += divide(above, traces, limits)
    _add_lost(groups, [each for each in left_out if not each[1].startswith(NO_TRACES)], pattern)
    groups.sort(key=lambda group: group[0])
    names = name_experiments([path for path, _, _ in groups], whole)
    experiments = [_build(name, *group) for name, group in zip(names, groups, strict=True)]
    return Sorted(experiments, [each for each in left_out if each[1].startswith(NO_TRACES)])


def _add_lost(groups: list[Group], lost: Sequence[tuple[str, str]], pattern: re.Pattern[str] | None) -> None:
    """Names what is damaged or refused in the experiment that it would be of; without another trace it is one too."""
    paths = {path for path, _, _ in groups}
    for name, why in lost:
        parts = name.split("/")
        asked = pattern.search(name) if pattern else None
        place, (rank, _) = find_place(parts, asked), find_named_rank(parts)
        above = place.above
        if stem := find_archive_stem(parts[-1]):
            above, rank = (*parts[:-1], stem), None
        elif asked and (asked[1] or "").isdecimal():
            rank = int(asked[1])
        divided = (*above, place.stem)
        is_divided = above not in paths and any(path[:-1] == above for path in paths)
        path = divided if is_divided else above
        finding = Finding("skipped", why, name, rank)
        group = next((group for group in groups if group[0] == path), None)
        if group:
            group[2].append(finding)
        else:
            groups.append((path, [], [finding]))


def _build(
    name: str, folders: tuple[str, ...], traces: Sequence[TraceFile], findings: Sequence[Finding]
) -> Experiment:
    found = Experiment(name, folders, {}, findings=list(findings))
    if conflict := find_conflict(traces):
        found.refused = conflict
        return found
    sizes = {trace.identity.world_size for trace in traces} - {None}
    found.world_size = next((size for size in sizes if is_size(size)), None)
    backends = {trace.identity.backend for trace in traces} - {None}
    found.backend = next(iter(backends)) if len(backends) == 1 else None
    for trace in traces:
        rank = 0 if trace.rank is None else trace.rank
        if rank < 0 or rank >= (found.world_size or LARGEST_WORLD):
            why = say_outside(rank, found.world_size)
            found.findings.append(Finding("skipped", why, trace.file.shown, rank))
            continue
        if trace.rank is None:
            found.findings.append(Finding("noted", ONLY_TRACE, trace.file.shown, 0))
        if trace.remark:
            found.findings.append(Finding("noted", trace.remark, trace.file.shown, rank))
        found.traces[rank] = trace
    found.traces = dict(sorted(found.traces.items()))
    if not found.traces:
        found.refused = "no trace of it can be used: " + "; ".join(f.reason for f in found.findings)
    return found
