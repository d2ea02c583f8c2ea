"""`stratlab analyze RUN_DIR --share INDEX/COUNT --job NAME`: one of the processes of a Job whose last one merges.

Any of them may be killed at any time and be started again, before or after the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stratlab.analysis.analyze import analyze_found, check_replaceable
from stratlab.analysis.hta.bridge import HTA_LIMITS, HtaLimits
from stratlab.analysis.measuring.measure import Progress
from stratlab.analysis.measuring.merger import (
    choose_merger,
    finish_merge,
    is_merged,
    locate_job,
    read_merger,
)
from stratlab.analysis.measuring.shares import (
    MissingShare,
    Readings,
    Share,
    build_shares,
    find_share,
    write_share,
)
from stratlab.analysis.reporting.run_facts import RunFacts, read_facts
from stratlab.run_directory.files import read_object
from stratlab.traces.chunks import LIMITS, Limits
from stratlab.traces.discover import Found, find_traces


def analyze_in_job(
    run_dir: Path,
    share: Share,
    job: str,
    *,
    tracking_uri: str | None,
    progress: Progress = lambda sentence: None,
    limits: Limits = LIMITS,
    hta_limits: HtaLimits = HTA_LIMITS,
) -> dict[str, Any] | None:
    """Reads a share of the traces of one run; where all shares of the Job are there it merges them, as `analyze_run`.

    Args:
        job: what the processes of one Job have in common, and no other Job has.

    Returns:
        The content of report.json; None = another share merges.

    Raises:
        NoRun, UserError, NoTraces: as `analyze_run`; `job` is no name.
    """
    facts = read_facts(run_dir)
    check_replaceable(run_dir / "analysis")
    place = locate_job(run_dir, job)
    report = read_object(run_dir / "analysis" / "report.json", [])
    if read_merger(place) == share.index and is_merged(place) and report:  # killed in its last moment
        finish_merge(run_dir, place)
        return report
    found = find_traces(run_dir / "traces", facts.world_size, limits)
    merger = read_merger(place)
    if merger is None:
        _keep_share(place, share, found, facts, limits, progress)
        merger = choose_merger(place, share)
    if merger != share.index:
        waiting = "the last one merges" if merger is None else f"share {merger} merges"
        progress(f"share {share.index} of {share.count} is read; {waiting}")
        return None
    readings: Readings = {}
    for each in build_shares(share.count):  # of traces that have changed since: read again
        readings |= _keep_share(place, each, found, facts, limits, progress)
    report = analyze_found(
        facts,
        found,
        str(run_dir / "traces"),
        tracking_uri=tracking_uri,
        progress=progress,
        limits=limits,
        hta_limits=hta_limits,
        readings=readings,
        scratch=place,  # what a killed process leaves there goes with the shares
    )
    finish_merge(run_dir, place)
    return report


def _keep_share(
    place: Path, share: Share, found: Found, facts: RunFacts, limits: Limits, progress: Progress
) -> Readings:
    """What a share has read; it is read where that is not there, so that it is never taken from under a merger."""
    try:
        if (place / share.name).is_dir():
            return find_share(place, share, found.files, facts.axes)
    except MissingShare as missing:
        progress(str(missing))
    write_share(place, share, found.files, facts.axes, limits=limits, progress=progress)
    return find_share(place, share, found.files, facts.axes)
