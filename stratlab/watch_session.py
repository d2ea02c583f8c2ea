"""Watch one run on the cluster to its end, then its analysis; the exit code is the run's outcome.

`await_workload` finds the release, also if its resource appears after the start of the command. `Sources` fill one
queue from one thread per type of object, and one for the log of rank 0.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from stratlab import UserError
from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection, Patience
from stratlab.cluster.pods import NO_STATUS_S, explain_no_status, training_container
from stratlab.cluster.volume_pod import check_namespace
from stratlab.cluster.watching import ADDED, DELETED, SYNCED, follow_log, watch
from stratlab.cluster.workloads import (
    APIS,
    INSTANCE,
    NO_STATUS,
    SUCCEEDED,
    Api,
    Workload,
    find_workload,
    list_workloads,
)
from stratlab.watch_state import (
    EVENTS,
    FAILED,
    JOBS,
    LOG,
    PODS,
    REFUSED,
    SURVIVORS,
    TROUBLE,
    WORKLOAD,
    Picture,
)
from stratlab.wording import FEW, name_allowed

APPEAR_S = 20.0


def await_workload(
    connection: Connection, release: str, say: Callable[[str], None], appear_s: float = APPEAR_S
) -> Workload:
    """Return the workload of `release`; wait up to `appear_s` seconds for it.

    Raises:
        UserError: it does not exist, with the names of the others; or the namespace does not exist.
        ClusterError: the cluster is unavailable.
    """
    namespace, found = connection.namespace, find_workload(connection, release)
    if found is None:
        check_namespace(connection)
        say(f"no run {release} in namespace {namespace} yet, waiting {appear_s:.0f} s for it")
        found = _watch_for(connection, release, appear_s)
    if found is None:
        states = {each.release: f"{each.release} ({each.state})" for each in list_workloads(connection)}
        others = f"there is {', '.join(states.values()) or 'none at all'}"
        if len(states) > FEW:
            place = f"that `stratlab list --on-cluster -n {namespace}` lists"
            others = name_allowed(release, list(states), "there are", place)
        raise UserError(f"no run {release} in namespace {namespace}; {others} [SL-release-not-found]")
    return found


def _watch_for(connection: Connection, release: str, appear_s: float) -> Workload | None:
    """Watch for the release in all APIs."""
    arrived: queue.Queue[Workload | Exception] = queue.Queue()
    stop = threading.Event()
    patience = Patience(deadline=time.monotonic() + appear_s, stop=stop)

    def follow(api: Api) -> None:
        try:
            for kind, changed in watch(connection, api.path(connection.namespace), None, patience):
                if kind in (SYNCED, DELETED):
                    continue
                workload = Workload(api, changed)
                if release in (workload.name, workload.release):
                    arrived.put(workload)
                    return
        except ClusterError:
            return  # this API is not served, or not readable
        except Exception as bug:
            arrived.put(bug)

    for api in APIS.values():
        threading.Thread(target=follow, args=(api,), name=f"await {api.plural}", daemon=True).start()
    try:
        found = arrived.get(timeout=appear_s)
        if isinstance(found, Exception):
            raise found
        return found
    except queue.Empty:
        return None
    finally:
        stop.set()


Update = tuple[str, str, Any]
DIED = "DIED"


class Sources:
    """Collect changes; `take` returns the next (source, kind, object), in the order of arrival."""

    def __init__(self, connection: Connection, workload: Workload) -> None:
        self._connection, self._workload = connection, workload
        self._updates: queue.Queue[Update] = queue.Queue()
        self._stop = threading.Event()
        self._followed: set[str] = set()

    def start(self) -> None:
        workload, core = self._workload, self._connection.core
        of_release = {"labelSelector": f"{INSTANCE}={workload.release}"}
        for source, path, query in (
            (
                WORKLOAD,
                workload.api.path(workload.namespace),
                {"fieldSelector": f"metadata.name={workload.name}"},
            ),
            (PODS, f"{core}/pods", of_release),
            (EVENTS, f"{core}/events", {"fieldSelector": "type=Warning"}),
            (JOBS, self._connection.jobs, of_release),
        ):
            self._run(source, watch(self._connection, path, query, self._patience()))

    def follow(self, pod: Mapping[str, Any] | None) -> None:
        """Also read the log of this pod, from its first line."""
        if pod is None or pod["metadata"]["uid"] in self._followed:
            return
        self._followed.add(pod["metadata"]["uid"])
        lines = follow_log(self._connection, pod, training_container(pod), self._patience())
        self._run(LOG, ((ADDED, line) for line in lines))

    def take(self, timeout_s: float) -> Update | None:
        """Return None if no change came within `timeout_s`. Raises the exception that ended a thread."""
        try:
            update = self._updates.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None
        if update[1] == DIED:
            raise update[2]
        return update

    def stop(self) -> None:
        self._stop.set()

    def _patience(self) -> Patience:
        return Patience(stop=self._stop, say=lambda sentence: self._updates.put((TROUBLE, "", sentence)))

    def _run(self, source: str, changes: Iterator[tuple[str, Any]]) -> None:
        def drain() -> None:
            try:
                for kind, changed in changes:
                    self._updates.put((source, kind, changed))
            except ClusterError as failure:
                self._updates.put((REFUSED, source, str(failure)))
            except Exception as bug:  # else the caller would wait for it for ever
                self._updates.put((source, DIED, bug))

        threading.Thread(target=drain, name=f"watch {source}", daemon=True).start()


TICK_S = 1.0
CULPRIT_S = 5.0  # the resource may fail before the pod's termination message arrives
LAST_LINES_S = 3.0
ANALYSIS_S = 15.0  # for the list of Jobs to arrive


class WatchDisplay(Protocol):
    """Define the display of a session."""

    def show(self, picture: Picture) -> None: ...

    def say(self, sentence: str) -> None: ...


def watch_run(
    connection: Connection, picture: Picture, display: WatchDisplay, *, analysis: bool = True
) -> int:
    """Return the exit code. 0: succeeded; else the trainer's own code, or 1 if it is unknown.

    Args:
        picture: a new one of the run; holds the last state, also when this is interrupted.

    Raises:
        ClusterError: the workload or its pods are not readable.
    """
    sources = Sources(connection, picture.workload)
    sources.start()
    try:
        _follow(connection, picture, sources, display, analysis)
    finally:
        sources.stop()
    if picture.state == SUCCEEDED:
        return 0
    return FAILED if picture.deleted or picture.culprit is None else picture.culprit.exit_code


def _follow(
    connection: Connection, picture: Picture, sources: Sources, display: WatchDisplay, analysis: bool
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
            for sentence in explain_no_status(connection, picture.workload):
                display.say(sentence)
        if picture.has_ended and picture.is_synced(PODS):
            ended = ended or now
            if _is_told(picture, now - ended) and not (analysis and _is_analysis_due(picture, now - ended)):
                return


def _is_told(picture: Picture, since_s: float) -> bool:
    """Return whether everything about the end has arrived: rank 0's last line, or the pod's termination message."""
    if picture.state == SUCCEEDED:
        last = picture.progress
        return since_s >= LAST_LINES_S or (last is not None and last.step == last.steps)
    end = picture.culprit  # the culprit's end may follow a survivor's
    return since_s >= CULPRIT_S or (end is not None and end.exit_code not in SURVIVORS)


def _is_analysis_due(picture: Picture, since_s: float) -> bool:
    """Return whether an analysis has still to end. A deleted run has no analysis."""
    if JOBS in picture.refused or picture.deleted:
        return False
    if picture.analysis is None:  # helm creates it with the run, or not at all
        return since_s < ANALYSIS_S and not picture.is_synced(JOBS)
    return picture.analysis_state not in ("Complete", "Failed")
