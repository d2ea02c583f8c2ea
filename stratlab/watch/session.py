"""Watches one run to its end, then its analysis; the exit code is the run's outcome."""

from __future__ import annotations

import time
from typing import Protocol

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.resource_events import NO_STATUS_S, explain_no_status, read_events
from stratlab.cluster.workloads import NO_STATUS, SUCCEEDED, Workload
from stratlab.watch.ending import FAILED, SURVIVORS
from stratlab.watch.picture import JOBS, PODS, TROUBLE, WORKLOAD, Picture
from stratlab.watch.sources import Sources

TICK_S = 1.0
CULPRIT_S = 5.0  # the resource may fail before the pod's last words are here
LAST_LINES_S = 3.0
ANALYSIS_S = 15.0  # for the list of Jobs to arrive


class Display(Protocol):
    """What a session shows itself on."""

    def show(self, picture: Picture) -> None: ...

    def say(self, sentence: str) -> None: ...


def watch_run(connection: Connection, picture: Picture, display: Display, *, analysis: bool = True) -> int:
    """The exit code. 0: succeeded; else the trainer's own code, or 1 where nobody said one.

    Args:
        picture: a new one of the run; has what was seen last, also when this is interrupted.

    Raises:
        ClusterError: the workload or its pods may not be looked at.
    """
    sources = Sources(connection, picture.workload)
    sources.start()
    try:
        _follow(connection, picture, sources, display, analysis)
    finally:
        sources.stop()
    if picture.state == SUCCEEDED:
        return 0
    if picture.deleted or picture.culprit is None:
        return FAILED
    return picture.culprit.exit_code


def _follow(
    connection: Connection, picture: Picture, sources: Sources, display: Display, analysis: bool
) -> None:
    began = time.monotonic()
    ended: float | None = None
    explained = False
    while True:
        update = sources.take(TICK_S)
        while update:
            source, kind, changed = update
            if source == TROUBLE:
                display.say(changed)
            picture.apply_change(source, kind, changed)
            update = sources.take(0)
        for needed in (WORKLOAD, PODS):
            if needed in picture.refused:
                raise ClusterError(picture.refused[needed])
        sources.follow(picture.console)
        display.show(picture)
        now = time.monotonic()
        if not explained and picture.state == NO_STATUS and now - began >= NO_STATUS_S:
            explained = True
            for sentence in _explain(connection, picture.workload):
                display.say(sentence)
        if picture.has_ended and picture.is_synced(PODS):
            ended = ended or now
            if _is_told(picture, now - ended) and not (analysis and _is_analysis_due(picture, now - ended)):
                return


def _is_told(picture: Picture, since_s: float) -> bool:
    """Whether all that belongs to the end has arrived: the last line of rank 0, or the pod's last words."""
    if picture.state == SUCCEEDED:
        last = picture.progress
        return since_s >= LAST_LINES_S or (last is not None and last.step == last.steps)
    end = picture.culprit  # after a survivor's end the culprit's may still come
    return since_s >= CULPRIT_S or (end is not None and end.exit_code not in SURVIVORS)


def _is_analysis_due(picture: Picture, since_s: float) -> bool:
    """Whether an analysis is still to end. A deleted run has none."""
    if JOBS in picture.refused or picture.deleted:
        return False
    job = picture.analysis
    if job is None:
        return since_s < ANALYSIS_S and not picture.is_synced(
            JOBS
        )  # helm made it with the run, or there is none
    return picture.analysis_state not in ("Complete", "Failed")


def _explain(connection: Connection, workload: Workload) -> list[str]:
    try:
        return explain_no_status(workload, read_events(connection, workload.namespace, workload.uid))
    except ClusterError as failure:
        return [str(failure)]
