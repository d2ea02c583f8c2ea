"""`stratlab analyze RUN_DIR --share INDEX/COUNT --job NAME`: one of the processes of a Job; the last one merges.

Any of them may be killed at any time and be started again, before or after the others.

Exactly one of the shares of a Job merges: one that finds all of them complete.

The decision is the folder `merger/` in the Job's folder of shares, made in one step. So a process that was killed and
started again finds its task, and does neither too little nor the same again.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from pathlib import Path
from typing import Any

from stratlab import UserError
from stratlab.analysis.hta_bridge import HTA_LIMITS, HtaLimits
from stratlab.analysis.measure import (
    SHARES,
    MissingShare,
    Progress,
    RankShare,
    Readings,
    build_shares,
    find_share,
    write_share,
)
from stratlab.analysis.run_analysis import analyze_found, check_replaceable
from stratlab.analysis.run_facts import RunFacts, read_facts
from stratlab.run_directory.files import read_object
from stratlab.traces.discover import Found, find_traces

MERGER = "merger"
SHARE, DONE = "share", "done"
GIVEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def locate_job(run_dir: Path, job: str) -> Path:
    """Return the folder of the shares of a Job.

    Raises:
        UserError: `job` is not a valid name.
    """
    if not GIVEN.fullmatch(job):
        raise UserError(f"--job {job}: expected letters, digits and . _ -, 100 at most [SL-job-name]")
    return run_dir / SHARES / f"job-{job}"


def read_merger(place: Path) -> int | None:
    """Return the index of the share that merges; None = a share is missing still."""
    try:
        return int((place / MERGER / SHARE).read_text())
    except FileNotFoundError:
        return None


def choose_merger(place: Path, share: RankShare) -> int | None:
    """Return the merger; if all shares are complete and there is no merger yet, it becomes `share`."""
    there = os.listdir(place)
    if not all(each.name in there for each in build_shares(share.count)):
        return None
    folder = place / f".{MERGER}-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    try:
        (folder / SHARE).write_text(f"{share.index}\n")
        os.rename(folder, place / MERGER)
    except OSError:
        if read_merger(place) is None:
            raise
    finally:  # another share was quicker: a folder is not renamed over one that holds something
        shutil.rmtree(folder, ignore_errors=True)
    return read_merger(place)


def finish_merge(run_dir: Path, place: Path) -> None:
    """Note that the merger has finished. Remove everything else: these shares, and leftovers of other Jobs."""
    (place / MERGER / DONE).touch()
    for path in [*place.iterdir(), *(run_dir / SHARES).iterdir()]:
        if path not in (place, place / MERGER):
            shutil.rmtree(path, ignore_errors=True)


def analyze_in_job(
    run_dir: Path,
    share: RankShare,
    job: str,
    *,
    tracking_uri: str | None,
    progress: Progress = lambda sentence: None,
    hta_limits: HtaLimits | None = HTA_LIMITS,
    merge: bool = True,
) -> dict[str, Any] | None:
    """Read a share of the traces of one run; if all shares of the Job are complete, merge them as `analyze_run`.

    Args:
        job: a name that the processes of one Job share, and that no other Job has.

    Returns:
        The content of report.json; None = another share merges.

    Raises:
        NoRun, UserError, NoTraces: as `analyze_run`; `job` is not a valid name.
    """
    facts = read_facts(run_dir)
    check_replaceable(run_dir / "analysis")
    place = locate_job(run_dir, job)
    report = read_object(run_dir / "analysis" / "report.json", [])
    is_merged = (place / MERGER / DONE).is_file()
    if read_merger(place) == share.index and is_merged and report:  # killed in its last moment
        finish_merge(run_dir, place)
        return report
    found = find_traces(run_dir / "traces", facts.world_size)
    merger = read_merger(place)
    if merger is None:
        _keep_share(place, share, found, facts, progress)
        merger = choose_merger(place, share)
    if merger != share.index:
        waiting = "the last one merges" if merger is None else f"share {merger} merges"
        progress(f"share {share.index} of {share.count} is read; {waiting}")
        return None
    readings: Readings = {}
    for each in build_shares(share.count):  # of traces that have changed since: read again
        readings |= _keep_share(place, each, found, facts, progress)
    report = analyze_found(
        facts,
        found,
        str(run_dir / "traces"),
        tracking_uri=tracking_uri,
        progress=progress,
        hta_limits=hta_limits,
        merge=merge,
        readings=readings,
        scratch=place,  # a killed process's leftovers are removed with the shares
    )
    finish_merge(run_dir, place)
    return report


def _keep_share(place: Path, share: RankShare, found: Found, facts: RunFacts, progress: Progress) -> Readings:
    """Return a share's readings; read it only if they are missing, so that a merger never loses them."""
    try:
        if (place / share.name).is_dir():
            return find_share(place, share, found.files, facts.axes)
    except MissingShare as missing:
        progress(str(missing))
    write_share(place, share, found.files, facts.axes, progress=progress)
    return find_share(place, share, found.files, facts.axes)
