"""Read every rank's trace and combine the ranks, with memory for one trace per process at a time.

First every rank is read on its own, in as many processes as there are cores: its reading is written into a scratch
folder. Then the calls of all ranks are matched, and every rank is finished with the result. So memory grows with the
number of collectives and of rows, not with the number of events.

Separate processes can each read a share of the ranks, on any machine; one more combines them. A share writes its
readings into `<index>-of-<count>/`, in one step, below `<run>/.analysis-shares/` or below the folder of its Job there
(share_job.py). They are used only with the very traces that they were made from.

What reads one trace in this process imports numpy and the decoder; processes and versions are imported by their users.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stratlab import UserError
from stratlab.analysis.collective_calls import CallKind, Matching
from stratlab.analysis.rank import (
    RankAnalysis,
    RankReading,
    finish_rank,
    load_reading,
    read_rank_trace,
    write_reading,
)
from stratlab.analysis.time_breakdown import choose_step
from stratlab.run_directory.files import LARGEST_WORLD, read_object
from stratlab.traces.chunks import TraceError
from stratlab.traces.discover import TraceFinding
from stratlab_spec.trace_events import Times

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

Progress = Callable[[str], None]

PARALLEL_FROM_BYTES = 32 << 20  # below, starting a process costs more than it saves
MOST_ALIGNED = 2000  # matched calls suffice for a median


@dataclass(frozen=True)
class Measures:
    """`call_ends_ns`: per rank when the calls that all ranks share ended, on the rank's absolute clock."""

    ranks: list[RankAnalysis]
    findings: list[TraceFinding]
    call_ends_ns: dict[int, Times]


def measure_traces(
    files: Mapping[int, Path],
    axes: Mapping[str, int] | None = None,
    *,
    progress: Progress = lambda sentence: None,
    processes: int | None = None,
) -> Measures:
    """Analyze one trace per rank; a file that cannot be is a finding.

    Args:
        files: rank -> trace.
        axes: of the run's mesh, with their sizes.
        processes: that read at the same time; None = one per core for large traces, else none but this one.
    """
    axes = dict(axes or {})
    with tempfile.TemporaryDirectory(prefix="stratlab-analysis-") as scratch:
        outcomes = read_traces(files, axes, Path(scratch), progress=progress, processes=processes)
        return join_readings(files, axes, outcomes)


def read_traces(
    files: Mapping[int, Path],
    axes: Mapping[str, int],
    folder: Path,
    *,
    progress: Progress = lambda sentence: None,
    processes: int | None = None,
) -> Iterator[tuple[int, Path | str]]:
    """Yield (rank, its reading in `folder` or the reason without one) for every rank on its own, as
    `measure_traces`.
    """
    work = {rank: (rank, file, dict(axes), folder) for rank, file in files.items()}
    for number, (rank, outcome) in enumerate(_read_all(work, _count_processes(files, processes)), 1):
        progress(f"rank {rank}: {files[rank].name} ({number} of {len(files)})")
        yield rank, outcome


def join_readings(
    files: Mapping[int, Path], axes: Mapping[str, int], outcomes: Iterable[tuple[int, Path | str]]
) -> Measures:
    """Combine the ranks.

    Args:
        files: the traces' places here; they may have been read on another machine.
        outcomes: of `read_traces`, in the order of the ranks.

    Raises:
        UserError: a reading belongs to another version.
    """
    findings: list[TraceFinding] = []
    kept: dict[int, Path] = {}
    matching = Matching(one_group=sum(size > 1 for size in axes.values()) <= 1)
    lengths: dict[int, list[int]] = {}
    for rank, outcome in outcomes:
        if isinstance(outcome, Path):
            kept[rank] = outcome
            measured = load_reading(outcome).measured
            matching.apply(measured.calls)
            for window in measured.segments.windows:
                lengths.setdefault(window.step, []).append(window.end_ns - window.start_ns)
        else:
            findings.append(TraceFinding("skipped", outcome, files[rank].name, rank))
    matches = matching.take()
    ranks, ends, drawn_step = [], {}, choose_step(lengths)
    shared = [kind for kind, match in matches.items() if match.ranks == len(kept)]
    for rank in sorted(kept):
        reading = replace(load_reading(kept[rank]), file=files[rank])
        ends[rank] = _call_ends(reading, shared)
        ranks.append(finish_rank(reading, matches, axes.get("pp", 1) > 1, drawn_step))
    return Measures(ranks, findings, ends)


def _count_processes(files: Mapping[int, Path], processes: int | None) -> int:
    if processes is not None:
        return processes
    large = sum(path.stat().st_size for path in files.values() if path.exists()) >= PARALLEL_FROM_BYTES
    return min(len(os.sched_getaffinity(0)), len(files)) if large else 1


Work = tuple[int, Path, dict[str, int], Path]


def _read_all(work: Mapping[int, Work], processes: int) -> Iterator[tuple[int, Path | str]]:
    """Yield (rank, scratch file or the reason without one), in the order of the ranks."""
    if processes < 2:
        yield from ((rank, READ(item)) for rank, item in work.items())
        return
    from concurrent.futures.process import BrokenProcessPool

    with ExitStack() as until_the_end:
        try:
            pool = until_the_end.enter_context(_build_pool(processes))
        except OSError:  # there can be no other process: a pod may have no /dev/shm to write to
            yield from ((rank, READ(item)) for rank, item in work.items())
            return
        futures = {rank: pool.submit(READ, item) for rank, item in work.items()}
        for rank, future in futures.items():
            try:
                yield rank, future.result()
            except BrokenProcessPool:  # a process was killed, and with it the pool: this rank's, or another's
                yield rank, _read_apart(work[rank])


def _build_pool(processes: int) -> ProcessPoolExecutor:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


def _read_apart(item: Work) -> Path | str:
    from concurrent.futures.process import BrokenProcessPool

    with _build_pool(1) as pool:
        try:
            return pool.submit(READ, item).result()
        except BrokenProcessPool:
            return "the process that read it was killed: too little memory? [SL-rank-process-killed]"


def _read_rank(item: Work) -> Path | str:
    rank, file, axes, scratch = item
    try:
        reading = read_rank_trace(rank, file, axes)
    except (TraceError, OSError) as failure:
        return str(failure)
    except MemoryError:
        return "needs more memory than there is [SL-rank-no-memory]"
    except Exception as bug:  # one odd file must not cost the report on all the others
        import traceback

        traceback.print_exc(file=sys.stderr)
        return f"a bug of stratlab met something new in it ({type(bug).__name__}: {bug}) [SL-rank-bug]"
    path = scratch / f"rank{rank}"
    write_reading(reading, path)
    return path


READ: Callable[[Work], Path | str] = _read_rank  # the function sent to a process; a test sends one that ends


def _call_ends(reading: RankReading, shared: list[CallKind]) -> Times:
    calls = reading.measured.calls
    found = [calls.ends[calls.kind == calls.kinds.index(kind)] for kind in shared]
    ends = np.concatenate([np.empty(0, np.int64), *found])
    return ends[:: max(1, len(ends) // MOST_ALIGNED)] + reading.origin_ns


SHARES = ".analysis-shares"
CONTENT = "share.json"
GIVEN = re.compile(r"(\d{1,5})/(\d{1,5})")


class MissingShare(UserError):
    """A share is missing, or was made from other traces."""


Readings = dict[int, Path | str]
"""rank -> its reading, or why it is missing."""


@dataclass(frozen=True)
class RankShare:
    """Every `count`-th rank with a trace, from the `index`-th on, counted from 0."""

    index: int
    count: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.index}-of-{self.count}"

    def choose(self, files: Mapping[int, Path]) -> dict[int, Path]:
        """Return the share's files."""
        return {rank: files[rank] for rank in sorted(files)[self.index :: self.count]}


def parse_share(text: str) -> RankShare:
    """Return the share of --share, `0/2`.

    Raises:
        UserError: it is something else.
    """
    found = GIVEN.fullmatch(text)
    if not found or not 0 <= int(found[1]) < int(found[2]) <= LARGEST_WORLD:
        raise UserError(
            f"--share {text}: expected INDEX/COUNT, the first is 0: 0/2 and 1/2 [SL-share-syntax]"
        )
    return RankShare(int(found[1]), int(found[2]))


def build_shares(count: int) -> list[RankShare]:
    """Return all shares that belong together."""
    return [RankShare(index, count) for index in range(count)]


def write_share(
    place: Path,
    share: RankShare,
    files: Mapping[int, Path],
    axes: Mapping[str, int],
    *,
    progress: Progress = lambda sentence: None,
) -> Path:
    """Read the traces of a share and write the readings; they replace an earlier share of the same name.

    Args:
        place: the folder of the shares.
        files, axes: of the whole run, as for `measure_traces`.
    """
    from stratlab.machine import read_version

    target, folder = place / share.name, place / f".{share.name}-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    try:
        mine = share.choose(files)
        outcomes = read_traces(mine, axes, folder, progress=progress)
        ranks = {
            str(rank): _describe(mine[rank]) | {"why": outcome if isinstance(outcome, str) else None}
            for rank, outcome in outcomes
        }
        content = {"version": read_version(), "axes": dict(axes), "ranks": ranks}
        (folder / CONTENT).write_text(json.dumps(content, indent=1) + "\n")
        shutil.rmtree(target, ignore_errors=True)
        os.rename(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return target


def find_shares(run_dir: Path, count: int, files: Mapping[int, Path], axes: Mapping[str, int]) -> Readings:
    """Return the readings of all shares of a run that were read one by one.

    Raises:
        MissingShare: a share is missing, or was made from other traces or by another version.
    """
    found: Readings = {}
    for share in build_shares(count):
        try:
            found |= find_share(run_dir / SHARES, share, files, axes)
        except MissingShare as missing:
            again = f"stratlab analyze {run_dir} --share {share.index}/{count}"
            raise MissingShare(f"{missing}: {again}") from None
    return found


def find_share(place: Path, share: RankShare, files: Mapping[int, Path], axes: Mapping[str, int]) -> Readings:
    """Return the readings of one share.

    Raises:
        MissingShare: it is missing, or was made from other traces or by another version.
    """
    from stratlab.machine import read_version

    subject, folder = f"share {share.index} of {share.count}", place / share.name
    content = read_object(folder / CONTENT, [], {"ranks": dict, "axes": dict})
    if not content.get("ranks") and share.choose(files):
        raise MissingShare(f"{subject} is missing [SL-share-missing]")
    if content and (content.get("version"), content.get("axes")) != (read_version(), dict(axes)):
        raise MissingShare(
            f"{subject} belongs to another version or to other settings [SL-share-other-version]"
        )
    found: Readings = {}
    for rank, file in share.choose(files).items():
        entry = content["ranks"].get(str(rank))
        why = entry.get("why") if isinstance(entry, dict) else None
        if entry != _describe(file) | {"why": why}:
            raise MissingShare(f"{subject} belongs to another trace of rank {rank} [SL-share-other-trace]")
        found[rank] = str(why) if why else folder / f"rank{rank}"
    return found


def _describe(file: Path) -> dict[str, Any]:
    try:
        status = file.stat()
    except OSError:  # reported when it is read
        return {"file": file.name, "bytes": None, "written_ns": None}
    return {"file": file.name, "bytes": status.st_size, "written_ns": status.st_mtime_ns}
