"""Sort foreign traces into experiments with one trace per rank. The rules: docs/foreign.md.

`look_into` reads each file. `divide` splits a folder whose files cannot be one experiment. `name_experiments` derives
names from the folders: short, unique, valid as a folder. `find_hints` lists experiments that may be ranks of one run.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from stratlab import UserError
from stratlab.run_directory.files import LARGEST_WORLD
from stratlab.traces.archives import OTHER_ENDING, SourceFile, Unpacked, find_archive_stem, shorten
from stratlab.traces.chunks import LIMITS, NO_EVENTS, TraceError, read_blocks
from stratlab.traces.discover import ONLY_TRACE, TraceFinding, find_problem, say_outside
from stratlab.traces.rank_identity import (
    Identity,
    Location,
    find_named_rank,
    locate_trace,
    read_identity,
    say_other_name,
)

ODD = re.compile(r"[^\w.+=-]+")
LONGEST = 120  # bytes
TAKEN = {"report": "report-traces"}  # `stratlab compare` writes its report there

Folders = tuple[str, ...]


def name_experiments(paths: Sequence[Folders], whole: str) -> list[str]:
    """Return one name for each path, in order: its folders without the common first and last ones.

    Equal names get a number.

    Args:
        whole: the name of an experiment without a folder.
    """
    names: list[str] = []
    for path in _shorten(list(paths)):
        name = shorten(ODD.sub("_", "-".join(path) or whole).strip("._-"), LONGEST) or "traces"
        name = TAKEN.get(name.lower(), name)
        tried, number = name, 1
        while tried.lower() in {other.lower() for other in names}:  # some file systems ignore case
            number += 1
            tried = f"{name}-{number}"
        names.append(tried)
    return names


def _shorten(paths: list[Folders]) -> list[Folders]:
    if len(paths) == 1:
        return [paths[0][-2:]]
    while all(len(path) > 1 for path in paths) and len({path[0] for path in paths}) == 1:
        paths = [path[1:] for path in paths]
    while all(len(path) > 1 for path in paths) and len({path[-1] for path in paths}) == 1:
        shorter = [path[:-1] for path in paths]
        if len(set(shorter)) < len(shorter):
            break
        paths = shorter
    return paths


@dataclass(frozen=True)
class TraceFile:
    """Hold a trace of one rank.

    Attributes:
        rank_from: pattern, distributedInfo, file name or folder name.
        remark: an irregularity of its name.
    """

    file: SourceFile
    identity: Identity
    rank: int | None
    rank_from: str
    place: Location
    remark: str | None = None


def look_into(file: SourceFile, pattern: re.Pattern[str] | None) -> TraceFile | str:
    """Return the trace, or the reason why the file is not a trace.

    Raises:
        UserError: the pattern's group is not a number.
    """
    if problem := find_problem(file.path, LIMITS.raw_bytes):
        return problem
    asked = pattern.search(file.shown) if pattern else None
    if pattern and not asked:
        return f"--rank-pattern {pattern.pattern} is not in its name [SL-rank-pattern-absent]"
    if pattern and asked and not (asked[1] or "").isdecimal():
        raise UserError(
            f"--rank-pattern {pattern.pattern}: {asked[1]!r} of {file.shown} is not a rank [SL-rank-pattern-no-number]"
        )
    place, named, rank_from = locate_trace(file.parts, asked), *find_named_rank(file.parts)
    identity = read_identity(file.path)
    if identity.problem is not None:
        return identity.problem
    rank, remark = named, None
    if asked:
        rank, rank_from = int(asked[1]), "pattern"
    elif identity.rank is not None:
        rank, rank_from = identity.rank, "distributedInfo"
        remark = say_other_name(named, rank) if named not in (None, rank) else None
    return TraceFile(file, identity, rank, rank_from, place, remark)


TOLD_NAMES = 3

Group = tuple[tuple[str, ...], list[TraceFile], list[TraceFinding]]


def divide(above: tuple[str, ...], traces: Sequence[TraceFile]) -> list[Group]:
    """Return the experiments of one folder: one, or if its files conflict, one for each name without its rank."""
    kept, findings = _drop_copies(traces)
    ranked = [trace for trace in kept if trace.rank is not None]
    if len(kept) == 1 or (len(ranked) == len(kept) and not find_conflict(ranked)):
        return [(above, kept, findings)]
    if len(ranked) > 1 and not find_conflict(ranked):
        why = (
            "does not name a rank, but other files of its folder do; a separate experiment needs "
            "its own folder [SL-rank-untold-beside]"
        )
        lost = [TraceFinding("skipped", why, t.file.shown) for t in kept if t.rank is None]
        return [(above, ranked, [*findings, *lost])]
    by_name: dict[str, list[TraceFile]] = {}
    for trace in kept:
        by_name.setdefault(trace.place.stem, []).append(trace)
    if all(find_conflict(part) for part in by_name.values()):  # the names do not divide it either
        return [(above, kept, findings)]
    groups: list[Group] = []
    for name, part in sorted(by_name.items()):
        ranks = {trace.rank for trace in part} if len(part) > 1 else set()
        groups.append(((*above, name), part, [each for each in findings if each.rank in ranks]))
    return groups


def find_conflict(traces: Sequence[TraceFile]) -> str:
    """Return why these traces cannot be the ranks of one experiment; empty if they can."""
    by_rank: dict[int | None, list[str]] = {}
    for trace in traces:
        by_rank.setdefault(trace.rank, []).append(trace.file.shown)
    doubles = {rank: names for rank, names in by_rank.items() if rank is not None and len(names) > 1}
    if doubles:
        rank, names = min(doubles.items())
        more = f", and {len(doubles) - 1} further ranks also" if len(doubles) > 1 else ""
        return (
            f"rank {rank} is in {len(names)} files, {_list(names)}{more}; an experiment has one trace of each rank. "
            "Put the files of one experiment into one folder, or match the rank in their names with --rank-pattern "
            "[SL-rank-in-files]"
        )
    if len(traces) > 1 and (silent := by_rank.get(None)):
        return (
            f"{_list(silent)}: the rank is unknown; write it into the name (rank0, rank1, ...) or match it with "
            "--rank-pattern [SL-rank-unsaid]"
        )
    sizes = {trace.identity.world_size for trace in traces if is_size(trace.identity.world_size)}
    if len(sizes) > 1:
        counts = _list(sorted(map(str, sizes), key=int), " and ")
        return f"its traces are of runs with {counts} processes [SL-world-size-differs]"
    return ""


def _drop_copies(traces: Sequence[TraceFile]) -> tuple[list[TraceFile], list[TraceFinding]]:
    """Drop the files whose unpacked content equals another file of the same rank."""
    counted = Counter(trace.rank for trace in traces)
    kept: list[TraceFile] = []
    findings: list[TraceFinding] = []
    seen: dict[tuple[int | None, bytes], TraceFile] = {}
    for trace in traces:
        if counted[trace.rank] > 1 and (digest := _hash(trace)):
            first = seen.setdefault((trace.rank, digest), trace)
            if first is not trace:
                why = f"holds the same as {first.file.shown} [SL-trace-copy]"
                findings.append(TraceFinding("skipped", why, trace.file.shown, trace.rank))
                continue
        kept.append(trace)
    return kept, findings


def _hash(trace: TraceFile) -> bytes | None:
    digest = hashlib.sha256()
    try:
        for block in read_blocks(trace.file.path):
            digest.update(block)
    except (TraceError, OSError):
        return None  # damaged: reported when it is read
    return digest.digest()


def is_size(size: int | None) -> bool:
    """Return whether a run can have this many ranks."""
    return size is not None and 1 <= size <= LARGEST_WORLD


def _list(names: Sequence[str], last: str = ", ") -> str:
    shown = last.join(names[:TOLD_NAMES])
    return shown + (f" and {len(names) - TOLD_NAMES} more" if len(names) > TOLD_NAMES else "")


NOTHING_OF_A_TRACE = (NO_EVENTS, OTHER_ENDING)
# reasons to leave a file out that are not damage
NO_TRACES = ("lacks traceEvents", OTHER_ENDING, "a merged trace", "--rank-pattern")


@dataclass
class Experiment:
    """Hold one experiment: `traces` by rank. `refused`: why it cannot be analysed; empty if it can."""

    name: str
    folders: tuple[str, ...]
    traces: dict[int, TraceFile]
    world_size: int | None = None
    backend: str | None = None
    findings: list[TraceFinding] = field(default_factory=list)
    refused: str = ""


@dataclass(frozen=True)
class Sorted:
    """Hold the experiments. `left_out`: (name, reason) of files outside all experiments that are not damaged traces."""

    experiments: list[Experiment]
    left_out: list[tuple[str, str]]


def sort_experiments(found: Unpacked, whole: str, pattern: re.Pattern[str] | None = None) -> Sorted:
    """Read and sort every file.

    Args:
        found: the files of one source.
        whole: the name of the source, for an experiment without a folder of its own.
        pattern: its first group in a file's path is the rank; None = the rules find the rank.

    Raises:
        UserError: the pattern's group is not a number.
    """
    left_out = list(found.left_out)
    by_folder: dict[tuple[str, ...], list[TraceFile]] = {}
    for file in found.files:
        trace = look_into(file, pattern)
        if isinstance(trace, str):
            left_out.append((file.shown, trace))
        else:
            by_folder.setdefault(trace.place.above, []).append(trace)
    groups: list[Group] = []
    for above, traces in sorted(by_folder.items()):
        groups += divide(above, traces)
    _add_lost(groups, [each for each in left_out if not each[1].startswith(NO_TRACES)], pattern)
    groups.sort(key=lambda group: group[0])
    names = name_experiments([path for path, _, _ in groups], whole)
    experiments = [_build(name, *group) for name, group in zip(names, groups, strict=True)]
    return Sorted(experiments, [each for each in left_out if each[1].startswith(NO_TRACES)])


def _add_lost(groups: list[Group], lost: Sequence[tuple[str, str]], pattern: re.Pattern[str] | None) -> None:
    """Add damaged and refused files to their experiment; without another trace they form one."""
    paths = {path for path, _, _ in groups}
    for name, why in lost:
        parts = name.split("/")
        asked = pattern.search(name) if pattern else None
        place, (rank, _) = locate_trace(parts, asked), find_named_rank(parts)
        above = place.above
        if stem := find_archive_stem(parts[-1]):
            above, rank = (*parts[:-1], stem), None
        elif asked and (asked[1] or "").isdecimal():
            rank = int(asked[1])
        divided = (*above, place.stem)
        is_divided = above not in paths and any(path[:-1] == above for path in paths)
        path = divided if is_divided else above
        finding = TraceFinding("skipped", why, name, rank)
        for group in groups:
            if group[0] == path:
                group[2].append(finding)
                break
        else:
            groups.append((path, [], [finding]))


def _build(
    name: str, folders: tuple[str, ...], traces: Sequence[TraceFile], findings: Sequence[TraceFinding]
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
            found.findings.append(TraceFinding("skipped", why, trace.file.shown, rank))
            continue
        if trace.rank is None:
            found.findings.append(TraceFinding("noted", ONLY_TRACE, trace.file.shown, 0))
        if trace.remark:
            found.findings.append(TraceFinding("noted", trace.remark, trace.file.shown, rank))
        found.traces[rank] = trace
    found.traces = dict(sorted(found.traces.items()))
    if not found.traces:
        found.refused = "none of its traces is usable: " + "; ".join(f.reason for f in found.findings)
    return found


NUMBER = re.compile(r"\d+")
WORD_BEFORE = re.compile(r"[A-Za-z]+[_.-]?$")
EXAMPLE = r"gpu(\d+)"


def find_hints(experiments: Sequence[Experiment]) -> list[str]:
    """Return a sentence for each set of folders that hold several traces without a rank.

    A set is one folder, or folders whose names differ only in numbers. Each experiment also gets the sentence as a
    finding.
    """
    alone = {file: each for each in experiments if (file := _find_alone(each))}
    groups: dict[tuple[str, ...], list[str]] = {}
    for shown in alone:
        groups.setdefault(("folder", shown.rpartition("/")[0]), []).append(shown)
    single = {names[0] for names in groups.values() if len(names) == 1}
    for shown in sorted(single):
        groups.setdefault(("numbers", NUMBER.sub("#", shown)), []).append(shown)
    hints = []
    for names in groups.values():
        if len(names) > 1:
            hints.append(_say(names))
            for name in names:
                alone[name].findings.append(TraceFinding("noted", hints[-1], name))
    return hints


def _find_alone(experiment: Experiment) -> str:
    """Return the file of an experiment that has only one trace, without a rank."""
    traces = list(experiment.traces.values())
    is_alone = len(traces) == 1 and traces[0].rank is None and traces[0].identity.world_size != 1
    return traces[0].file.shown if is_alone else ""


def _say(names: Sequence[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return (
        f"{', '.join(names[:2])}{more}: without a rank, each file is an experiment of its own [SL-rank-hint]; if they "
        "are the ranks of one run, write the rank into the names (rank0, rank1, ...) or match it: "
        f'--rank-pattern "{_find_pattern(names)}"'
    )


def _find_pattern(names: Sequence[str]) -> str:
    """Build a pattern for the number in the names that counts from 0, with the word before it."""
    found = [list(NUMBER.finditer(name)) for name in names]
    for numbers in zip(*found, strict=False):
        counts = {int(number[0]) for number in numbers} == set(range(len(names)))
        before = (WORD_BEFORE.search(number.string[: number.start()]) for number in numbers)
        words = {word[0] if word else "" for word in before}
        if not counts or len(words) > 1 or not (word := words.pop()):
            continue
        for start in ("", "/"):  # a folder may have the same beginning
            pattern = start + word.replace(".", r"\.") + r"(\d+)"
            if all(_finds(pattern, number) for number in numbers):
                return pattern
    return EXAMPLE


def _finds(pattern: str, number: re.Match[str]) -> bool:
    """Return whether the pattern finds this number in its name, and no earlier one."""
    found = re.search(pattern, number.string)
    return found is not None and found.start(1) == number.start()
