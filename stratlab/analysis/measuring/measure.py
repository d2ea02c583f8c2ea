"""Reads every rank's trace and brings the ranks together, with memory for one trace per process at a time.

First every rank alone, in as many processes as there are cores: what a rank leaves behind goes into a scratch folder.
Then the calls of all ranks are matched, and every rank is finished with what that tells. So memory grows with the
number of collectives and of rows, not with the number of events.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from stratlab.analysis.dividing.calls import CallKind
from stratlab.analysis.dividing.matching import Matching
from stratlab.analysis.measuring.rank import RankAnalysis, Reading, finish_rank, read_rank_trace
from stratlab.analysis.measuring.readings import load_reading, write_reading
from stratlab.traces.chunks import LIMITS, Limits, TraceError
from stratlab.traces.discover import Finding
from stratlab.traces.intervals import Times

Progress = Callable[[str], None]

PARALLEL_FROM_BYTES = 32 << 20  # below, starting a process costs more than it saves
MOST_ALIGNED = 2000  # matched calls suffice for a median


@dataclass(frozen=True)
class Measures:
    """`call_ends_ns`: per rank when the calls that all ranks share ended, on the rank's absolute clock."""

    ranks: list[RankAnalysis]
    findings: list[Finding]
    call_ends_ns: dict[int, Times]


def measure_traces(
    files: Mapping[int, Path],
    axes: Mapping[str, int] | None = None,
    *,
    limits: Limits = LIMITS,
    progress: Progress = lambda sentence: None,
    processes: int | None = None,
) -> Measures:
    """Analyses one trace per rank; a file that cannot be is a finding.

    Args:
        files: rank -> trace.
        axes: of the run's mesh, with their sizes.
        processes: that read at the same time; None = one per core for large traces, else none but this one.
    """
    axes = dict(axes or {})
    with tempfile.TemporaryDirectory(prefix="stratlab-analysis-") as scratch:
        outcomes = read_traces(
            files, axes, Path(scratch), limits=limits, progress=progress, processes=processes
        )
        return join_readings(files, axes, outcomes)


def read_traces(
    files: Mapping[int, Path],
    axes: Mapping[str, int],
    folder: Path,
    *,
    limits: Limits = LIMITS,
    progress: Progress = lambda sentence: None,
    processes: int | None = None,
) -> Iterator[tuple[int, Path | str]]:
    """Every rank alone, as `measure_traces`: (rank, its reading in `folder` or why there is none), in their order."""
    work = {rank: (rank, file, dict(axes), limits, folder) for rank, file in files.items()}
    for number, (rank, outcome) in enumerate(_outcomes(work, _count_processes(files, processes)), 1):
        progress(f"rank {rank}: {files[rank].name} ({number} of {len(files)})")
        yield rank, outcome


def join_readings(
    files: Mapping[int, Path], axes: Mapping[str, int], outcomes: Iterable[tuple[int, Path | str]]
) -> Measures:
    """Brings the ranks together.

    Args:
        files: where the traces lie here; whoever read them may have seen them elsewhere.
        outcomes: of `read_traces`, in the order of the ranks.

    Raises:
        UserError: a reading is none of this version.
    """
    findings: list[Finding] = []
    kept: dict[int, Path] = {}
    matching = Matching(one_group=sum(size > 1 for size in axes.values()) <= 1)
    for rank, outcome in outcomes:
        if isinstance(outcome, Path):
            kept[rank] = outcome
            matching.apply(load_reading(outcome).measured.calls)
        else:
            findings.append(Finding("skipped", outcome, files[rank].name, rank))
    matches = matching.take()
    ranks, ends = [], {}
    shared = [kind for kind, match in matches.items() if match.ranks == len(kept)]
    for rank in sorted(kept):
        reading = replace(load_reading(kept[rank]), file=files[rank])
        ends[rank] = _call_ends(reading, shared)
        ranks.append(finish_rank(reading, matches, axes.get("pp", 1) > 1))
    return Measures(ranks, findings, ends)


def _count_processes(files: Mapping[int, Path], processes: int | None) -> int:
    if processes is not None:
        return processes
    large = sum(path.stat().st_size for path in files.values() if path.exists()) >= PARALLEL_FROM_BYTES
    return min(len(os.sched_getaffinity(0)), len(files)) if large else 1


Work = tuple[int, Path, dict[str, int], Limits, Path]


def _outcomes(work: Mapping[int, Work], processes: int) -> Iterator[tuple[int, Path | str]]:
    """(rank, scratch file or why there is none), in the order of the ranks."""
    pool = _start_pool(processes)
    if pool is None:
        yield from ((rank, READ(item)) for rank, item in work.items())
        return
    with pool:
        futures: dict[int, Future[Path | str]] = {
            rank: pool.submit(READ, item) for rank, item in work.items()
        }
        for rank, future in futures.items():
            try:
                yield rank, future.result()
            except BrokenProcessPool:  # a process was killed, and with it the pool: this rank's, or another's
                yield rank, _read_apart(work[rank])


def _start_pool(processes: int) -> ProcessPoolExecutor | None:
    """None where one process is enough, or where there can be no other: a pod may have no /dev/shm to write to."""
    try:
        return ProcessPoolExecutor(processes, mp_context=get_context("spawn")) if processes > 1 else None
    except OSError:
        return None


def _read_apart(item: Work) -> Path | str:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(READ, item).result()
        except BrokenProcessPool:
            return "the process that read it was killed: too little memory? [SL-rank-process-killed]"


def _read_rank(item: Work) -> Path | str:
    rank, file, axes, limits, scratch = item
    try:
        reading = read_rank_trace(rank, file, axes, limits)
    except (TraceError, OSError) as failure:
        return str(failure)
    except MemoryError:
        return "needs more memory than there is [SL-rank-no-memory]"
    except Exception as bug:  # one odd file must not cost the report on all the others
        traceback.print_exc(file=sys.stderr)
        return f"a bug of stratlab met something new in it ({type(bug).__name__}: {bug}) [SL-rank-bug]"
    path = scratch / f"rank{rank}"
    write_reading(reading, path)
    return path


READ = _read_rank  # what a process is sent; a test sends one that dies


def _call_ends(reading: Reading, shared: list[CallKind]) -> Times:
    calls = reading.measured.calls
    found = [calls.ends[calls.kind == calls.kinds.index(kind)] for kind in shared]
    ends = np.concatenate(found) if found else np.empty(0, np.int64)
    return ends[:: max(1, len(ends) // MOST_ALIGNED)] + reading.origin_ns
