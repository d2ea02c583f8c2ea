"""Inspect, install, follow and remove the helm releases of a sweep.

`work` brings every release to its end, several at a time. Each release has one thread, while the state belongs to the
caller's thread. Watches follow a release: first its custom resource, then its analysis Job.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection, Patience
from stratlab.cluster.pod_phase import describe, has_started
from stratlab.cluster.watching import ADDED, DELETED, SYNCED, watch
from stratlab.cluster.workloads import (
    ANALYSIS,
    COMPONENT,
    ENDED,
    INSTANCE,
    NO_STATUS,
    SUCCEEDED,
    TRAINING,
    Workload,
    find_failed_waiter,
    pick_jobs,
    read_job_end,
)
from stratlab.helm import HelmFailed, run_helm, write_values
from stratlab.progress import SweepDisplay
from stratlab.sweep.planned_release import Planned, hash_asked
from stratlab.sweep.state import Decision, SeenRelease, State

LOOK_S, INSTALL_S, UNINSTALL_S = 60, 300, 330
TICK_S = 1.0
REMARKS = ("level=INFO", "level=WARN", "walk.go", "WARNING")


def look_at(helm: Path, namespace: str, name: str, context: str | None = None) -> SeenRelease:
    """Return the release from helm, without its custom resource. `context`: of the kubeconfig; None = the current one.

    Raises:
        HelmFailed: the cluster does not answer, or denies the request.
    """
    try:
        status = json.loads(_run(helm, ["status", name, "-n", namespace, "-o", "json"], LOOK_S, context))
    except HelmFailed as failure:
        if "not found" in str(failure):
            return SeenRelease()
        raise
    asked = ["get", "metadata", name, "-n", namespace, "-o", "json"]
    metadata = json.loads(_run(helm, asked, LOOK_S, context))
    return SeenRelease(status["info"]["status"], hash_asked(metadata["chart"], status.get("config") or {}))


def install(helm: Path, namespace: str, planned: Planned, context: str | None = None) -> None:
    """Run `helm install`, which returns when the objects are created; it does not wait for the run.

    Raises:
        HelmFailed: the cluster refused the release.
    """
    with write_values(planned.values) as values:
        arguments = ["install", planned.release.name, str(planned.chart), "-n", namespace, "-f", str(values)]
        _run(helm, arguments, INSTALL_S, context)


def uninstall(helm: Path, namespace: str, name: str, context: str | None = None) -> None:
    """Remove the release and wait until its objects and pods are gone, so that its name can be used again.

    Raises:
        HelmFailed: the release was not removed.
    """
    options = ["--ignore-not-found", "--cascade", "foreground", "--wait"]
    _run(helm, ["uninstall", name, "-n", namespace, *options], UNINSTALL_S, context)


def _run(helm: Path, arguments: Sequence[str], timeout_s: float, context: str | None) -> str:
    of_context = ["--kube-context", context] if context else []
    try:
        return run_helm(helm, [*arguments, *of_context], timeout_s=timeout_s, remarks=REMARKS)
    except subprocess.TimeoutExpired:
        raise HelmFailed(
            f"helm {arguments[0]} {arguments[1]}: did not end within {timeout_s:.0f} s [SL-helm-no-end]"
        ) from None
    except HelmFailed as failure:
        said = " ".join(str(failure).splitlines())
        raise HelmFailed(f"helm {arguments[0]}: {said} [SL-sweep-helm-failed]") from None


@dataclass(frozen=True)
class ReleaseEnd:
    """Describe how a release ended, training and analysis together."""

    succeeded: bool
    sentence: str


def follow_release(connection: Connection, planned: Planned, show: Callable[[str], None]) -> ReleaseEnd:
    """Return when training and analysis have ended. `show` receives the release's state whenever it changes.

    Raises:
        ClusterError: the release cannot be watched: a permission or the API is missing.
    """
    stop = threading.Event()
    seen = {"resource": "", "pods": ""}

    def show_both(part: str, text: str) -> None:
        seen[part] = text
        show("; ".join(filter(None, seen.values())))

    name = planned.release.name
    arguments = (connection, name, partial(show_both, "pods"), stop)
    threading.Thread(target=_show_waiting_pods, args=arguments, daemon=True).start()
    try:
        trained = _follow_training(connection, planned, partial(show_both, "resource"))
        if not planned.has_analysis:
            return trained
        analysed = _follow_analysis(connection, name, show)
    finally:
        stop.set()
    return ReleaseEnd(trained.succeeded and analysed.succeeded, f"{trained.sentence}; {analysed.sentence}")


def _follow_training(connection: Connection, planned: Planned, show: Callable[[str], None]) -> ReleaseEnd:
    name, api = planned.release.name, planned.api
    query = {"fieldSelector": f"metadata.name={name}"}
    there = False
    for kind, changed in watch(connection, api.path(connection.namespace), query, Patience(say=show)):
        if kind == DELETED or (kind == SYNCED and not there):
            return ReleaseEnd(False, f"its {api.kind} was removed before it ended")
        there = True
        if kind == SYNCED:
            continue
        workload = Workload(api, changed)
        hint = ": no operator has acted on it" if workload.state == NO_STATUS else ""
        show(f"{api.kind} {workload.state}{hint}")
        if workload.state in ENDED:
            said = f": {workload.message}" if workload.state != SUCCEEDED and workload.message else ""
            return ReleaseEnd(workload.state == SUCCEEDED, f"{api.kind} {workload.state}{said}")
    raise AssertionError("a watch without an end ended")


def _follow_analysis(connection: Connection, name: str, show: Callable[[str], None]) -> ReleaseEnd:
    """Follow the analysis. An upgraded run has several Jobs; one complete Job is enough."""
    query = {"labelSelector": f"{INSTANCE}={name}"}
    jobs: dict[str, Mapping[str, Any]] = {}
    synced = False
    show("analysis")
    for kind, changed in watch(connection, connection.jobs, query, Patience(say=show)):
        if kind == SYNCED:
            synced = True
        elif kind == DELETED:
            jobs.pop(changed["metadata"]["name"], None)
        else:
            jobs[changed["metadata"]["name"]] = changed
        analyses = pick_jobs(jobs.values(), ANALYSIS)
        ends = [read_job_end(find_failed_waiter(job, jobs.values()) or job) for job in analyses]
        if "" in ends:
            return ReleaseEnd(True, "analysis Complete")
        if synced and all(end is not None for end in ends):
            reason = "; ".join(end for end in ends if end)
            # an ended Job disappears after ttlSecondsAfterFinished: its result is then unknown
            return ReleaseEnd(not ends, f"analysis Failed: {reason}" if ends else "the analysis Job is gone")
    raise AssertionError("a watch without an end ended")


def _show_waiting_pods(
    connection: Connection, name: str, show: Callable[[str], None], stop: threading.Event
) -> None:
    """Show pods without a node or an image, which wait without limit while the resource reports no problem."""
    query = {"labelSelector": f"{INSTANCE}={name},{COMPONENT}={TRAINING}"}
    told: dict[str, str] = {}
    try:
        for kind, pod in watch(connection, f"{connection.core}/pods", query, Patience(stop=stop)):
            if kind in (SYNCED, DELETED):
                continue
            pod_name = pod["metadata"]["name"]
            text = "" if has_started(pod) or (kind == ADDED and not pod.get("status")) else describe(pod)
            if told.get(pod_name, "") != text and not stop.is_set():
                told[pod_name] = text
                waiting = [f"pod {each} {told[each]}" for each in told if told[each]]
                show(waiting[0] if waiting else "")
    except ClusterError:
        return  # not permitted to read pods: follow the resource only


@dataclass(frozen=True)
class News:
    """Carry a message of a release's thread. `stage` is a stage of the state file, or `lost` if the end is unknown."""

    name: str
    text: str
    stage: str = ""


@dataclass(frozen=True)
class Site:
    """Locate the releases. `context`: of the kubeconfig, for helm; None = the current one."""

    connection: Connection
    namespace: str
    helm: Path
    context: str | None = None


def work(
    todo: Sequence[tuple[Planned, Decision]],
    state: State,
    site: Site,
    display: SweepDisplay,
    *,
    parallel: int,
    stop_on_failure: bool,
) -> tuple[State, list[str]]:
    """Carry out the decisions; return the state, and a sentence per release whose end is unknown.

    An exception in this thread (Ctrl-C) does not stop the runs in the cluster; the state records the progress.
    """
    waiting, messages = list(todo), queue.SimpleQueue[News]()
    doing: dict[str, str] = {}
    lost: list[str] = []
    failed = False
    while waiting or doing:
        while waiting and len(doing) < parallel and not (failed and stop_on_failure):
            planned, decision = waiting.pop(0)
            doing[planned.release.name] = decision.step
            state = _record_start(state, planned, decision)
            threading.Thread(target=_bring, args=(planned, decision, site, messages), daemon=True).start()
        if not doing:
            left = ", ".join(planned.release.name for planned, _ in waiting)
            display.say(f"stopped after a failure; not started: {left}")
            break
        for news in _read(messages):
            if news.stage == "running":
                state = state.record(news.name, stage="running")
            if news.stage in ("", "running"):
                doing[news.name] = news.text
                continue
            del doing[news.name]
            display.end(news.name, news.text)
            failed = failed or news.stage != "succeeded"
            if news.stage == "lost":
                lost.append(f"{news.name}: {news.text}")
            else:
                state = state.record(news.name, stage=news.stage, sentence=news.text, ended=time.time())
        for name, text in doing.items():
            display.show(name, text)
    return state, lost


def _record_start(state: State, planned: Planned, decision: Decision) -> State:
    joins = decision.step == "join"
    known = state.releases.get(planned.release.name)
    return state.record(
        planned.release.name,
        stage="running" if joins else "installing",
        asked=planned.asked,
        sentence="",
        started=known.started if known and joins else time.time(),
        ended=0.0,
    )


def _read(messages: queue.SimpleQueue[News]) -> Iterator[News]:
    """Yield the messages that arrive within a second, so that the caller can show progress."""
    try:
        yield messages.get(timeout=TICK_S)
        while True:
            yield messages.get_nowait()
    except queue.Empty:
        return


def _bring(planned: Planned, decision: Decision, site: Site, messages: queue.SimpleQueue[News]) -> None:
    """Bring one release from its decision to its end, in its own thread. The last message is always a stage."""
    name = planned.release.name

    def show(text: str, stage: str = "") -> None:
        messages.put(News(name, text, stage))

    try:
        if decision.step == "reinstall":
            show("removing the present release")
            uninstall(site.helm, site.namespace, name, site.context)
        if decision.step != "join":
            show("installing")
            install(site.helm, site.namespace, planned, site.context)
        show("running", "running")
        end = follow_release(site.connection, planned, show)
        show(end.sentence, "succeeded" if end.succeeded else "failed")
    except HelmFailed as failure:
        show(str(failure), "lost")
    except ClusterError as failure:
        show(f"cannot be followed: {failure}", "lost")
    except Exception as bug:  # if a thread died silently, the sweep would wait for ever
        show(f"cannot be followed: {type(bug).__name__}: {bug} [SL-release-not-followed]", "lost")
