"""One helm release in the cluster: looked at, installed, removed, with the real helm.

Follows one release to its end: its custom resource, then its analysis Job. By watching, not by asking again.

Brings every release to its end, some at a time. One thread per release; the state belongs to the caller's thread.
"""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection, Patience
from stratlab.cluster.pod_phase import describe, has_started
from stratlab.cluster.pod_template import ANALYSIS, COMPONENT, find_failed_waiter, pick_jobs, read_job_end
from stratlab.cluster.watching import ADDED, DELETED, SYNCED, watch
from stratlab.cluster.workloads import ENDED, NO_STATUS, SUCCEEDED, Workload
from stratlab.sweep.planned_release import Planned, hash_asked
from stratlab.sweep.state import Decision, Seen, State

LOOK_S, INSTALL_S, UNINSTALL_S = 60, 300, 330


class HelmFailed(Exception):
    """Helm's own words."""


def look_at(helm: Path, namespace: str, name: str, context: str | None = None) -> Seen:
    """The release as helm knows it, without its custom resource. `context`: of the kubeconfig; None = the current one.

    Raises:
        HelmFailed: the cluster does not answer, or forbids it.
    """
    try:
        status = json.loads(_run(helm, ["status", name, "-n", namespace, "-o", "json"], LOOK_S, context))
    except HelmFailed as failure:
        if "not found" in str(failure):
            return Seen()
        raise
    asked = ["get", "metadata", name, "-n", namespace, "-o", "json"]
    metadata = json.loads(_run(helm, asked, LOOK_S, context))
    return Seen(status["info"]["status"], hash_asked(metadata["chart"], status.get("config") or {}))


def install(helm: Path, namespace: str, planned: Planned, context: str | None = None) -> None:
    """`helm install`, which returns when the objects are created; it does not wait for the run.

    Raises:
        HelmFailed: the cluster refused.
    """
    with tempfile.TemporaryDirectory() as folder:
        values = Path(folder) / "values.json"  # JSON is YAML, and leaves no room for how YAML reads a text
        values.write_text(json.dumps(planned.values))
        arguments = ["install", planned.release.name, str(planned.chart), "-n", namespace, "-f", str(values)]
        _run(helm, arguments, INSTALL_S, context)


def uninstall(helm: Path, namespace: str, name: str, context: str | None = None) -> None:
    """Removes the release and waits until its objects and pods are gone: the same name may come again.

    Raises:
        HelmFailed: it did not go.
    """
    arguments = [
        "uninstall",
        name,
        "-n",
        namespace,
        "--ignore-not-found",
        "--cascade",
        "foreground",
        "--wait",
    ]
    _run(helm, arguments, UNINSTALL_S, context)


def _run(helm: Path, arguments: Sequence[str], timeout_s: float, context: str | None) -> str:
    """Not in the terminal's process group: Ctrl-C ends the sweep, not an installation half way."""
    try:
        done = subprocess.run(
            [str(helm), *arguments, *(["--kube-context", context] if context else [])],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise HelmFailed(
            f"helm {arguments[0]} {arguments[1]}: no end after {timeout_s:.0f} s [SL-helm-no-end]"
        ) from None
    if done.returncode:
        words = [line for line in done.stderr.strip().splitlines() if not _is_remark(line)]
        said = " ".join(words).removeprefix("Error: ")
        raise HelmFailed(f"helm {arguments[0]}: {said} [SL-sweep-helm-failed]")
    return done.stdout


def _is_remark(line: str) -> bool:
    return line.startswith(("level=INFO", "level=WARN", "walk.go", "WARNING"))


@dataclass(frozen=True)
class Outcome:
    """How a release ended, training and analysis together."""

    succeeded: bool
    sentence: str


def follow_release(
    connection: Connection, namespace: str, planned: Planned, show: Callable[[str], None]
) -> Outcome:
    """Returns when training and analysis have ended. `show` gets what the release is doing whenever that changes.

    Raises:
        ClusterError: it cannot be watched: no right, no such API.
    """
    stop = threading.Event()
    seen = {"resource": "", "pods": ""}

    def show_both(part: str, text: str) -> None:
        seen[part] = text
        show("; ".join(filter(None, seen.values())))

    arguments = (connection, namespace, planned.release.name, partial(show_both, "pods"), stop)
    threading.Thread(target=_show_waiting_pods, args=arguments, daemon=True).start()
    try:
        trained = _follow_training(connection, namespace, planned, partial(show_both, "resource"))
        if not planned.has_analysis:
            return trained
        analysed = _follow_analysis(connection, namespace, planned.release.name, show)
    finally:
        stop.set()
    sentence = f"{trained.sentence}; {analysed.sentence}"
    return Outcome(trained.succeeded and analysed.succeeded, sentence)


def _follow_training(
    connection: Connection, namespace: str, planned: Planned, show: Callable[[str], None]
) -> Outcome:
    name, api = planned.release.name, planned.api
    query = {"fieldSelector": f"metadata.name={name}"}
    there = False
    for kind, changed in watch(connection, api.path(namespace), query, Patience(say=show)):
        if kind == DELETED or (kind == SYNCED and not there):
            return Outcome(False, f"its {api.kind} was removed before it had ended")
        there = True
        if kind == SYNCED:
            continue
        workload = Workload(api, changed)
        hint = ": no operator has looked at it" if workload.state == NO_STATUS else ""
        show(f"{api.kind} {workload.state}{hint}")
        if workload.state in ENDED:
            said = f": {workload.message}" if workload.state != SUCCEEDED and workload.message else ""
            return Outcome(workload.state == SUCCEEDED, f"{api.kind} {workload.state}{said}")
    raise AssertionError("a watch without an end ended")


def _follow_analysis(
    connection: Connection, namespace: str, name: str, show: Callable[[str], None]
) -> Outcome:
    """A run that was upgraded has several Jobs; one that is complete is enough."""
    query = {"labelSelector": f"app.kubernetes.io/instance={name}"}
    jobs: dict[str, Mapping[str, Any]] = {}
    synced = False
    show("analysis")
    for kind, changed in watch(
        connection, f"/apis/batch/v1/namespaces/{namespace}/jobs", query, Patience(say=show)
    ):
        if kind == SYNCED:
            synced = True
        elif kind == DELETED:
            jobs.pop(changed["metadata"]["name"], None)
        else:
            jobs[changed["metadata"]["name"]] = changed
        ends = [
            read_job_end(find_failed_waiter(job, jobs.values()) or job)
            for job in pick_jobs(jobs.values(), ANALYSIS)
        ]
        if any(end == "" for end in ends):
            return Outcome(True, "analysis Complete")
        if synced and all(end is not None for end in ends):
            reason = "; ".join(end for end in ends if end)
            # an ended Job goes by itself after ttlSecondsAfterFinished: nothing can be said about it then
            return Outcome(not ends, f"analysis Failed: {reason}" if ends else "the analysis Job is gone")
    raise AssertionError("a watch without an end ended")


def _show_waiting_pods(
    connection: Connection, namespace: str, name: str, show: Callable[[str], None], stop: threading.Event
) -> None:
    """A pod without a node or an image waits for ever and the resource says nothing: shown, never decided on."""
    query = {"labelSelector": f"app.kubernetes.io/instance={name},{COMPONENT}=training"}
    told: dict[str, str] = {}
    try:
        for kind, pod in watch(
            connection, f"/api/v1/namespaces/{namespace}/pods", query, Patience(stop=stop)
        ):
            if kind in (SYNCED, DELETED):
                continue
            pod_name = pod["metadata"]["name"]
            text = "" if has_started(pod) or (kind == ADDED and not pod.get("status")) else describe(pod)
            if told.get(pod_name, "") != text and not stop.is_set():
                told[pod_name] = text
                waiting = [f"pod {each} {told[each]}" for each in told if told[each]]
                show(waiting[0] if waiting else "")
    except ClusterError:
        return  # no right to see pods: the resource is followed all the same


TICK_S = 1.0


class Progress(Protocol):
    """Where the sweep tells what it does."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def show(self, name: str, text: str) -> None:
        """What a release is doing now; called every second."""

    def end(self, name: str, text: str) -> None:
        """The last line of a release."""


@dataclass(frozen=True)
class Told:
    """One message of a release's thread. `stage` is that of the state file, or `lost`: its end is not known."""

    name: str
    text: str
    stage: str = ""


@dataclass(frozen=True)
class Site:
    """Where the releases go. `context`: of the kubeconfig, for helm; None = the current one."""

    connection: Connection
    namespace: str
    helm: Path
    context: str | None = None


def work(
    todo: Sequence[tuple[Planned, Decision]],
    state: State,
    site: Site,
    progress: Progress,
    *,
    parallel: int,
    stop_on_failure: bool,
) -> tuple[State, list[str]]:
    """Carries out the decisions; returns the state, and a sentence per release whose end is not known.

    An exception in this thread (Ctrl-C) leaves what runs in the cluster alone: the state says how far it was.
    """
    waiting, news = list(todo), queue.SimpleQueue[Told]()
    doing: dict[str, str] = {}
    lost: list[str] = []
    failed = False
    while waiting or doing:
        while waiting and len(doing) < parallel and not (failed and stop_on_failure):
            planned, decision = waiting.pop(0)
            doing[planned.release.name] = decision.step
            state = _record_start(state, planned, decision)
            threading.Thread(target=_bring, args=(planned, decision, site, news), daemon=True).start()
        if not doing:
            progress.say(
                f"stopped after a failure; not started: {', '.join(p.release.name for p, _ in waiting)}"
            )
            break
        for told in _read(news):
            if told.stage == "running":
                state = state.record(told.name, stage="running")
            if told.stage in ("", "running"):
                doing[told.name] = told.text
                continue
            del doing[told.name]
            progress.end(told.name, told.text)
            failed = failed or told.stage != "succeeded"
            if told.stage == "lost":
                lost.append(f"{told.name}: {told.text}")
            else:
                state = state.record(told.name, stage=told.stage, sentence=told.text, ended=time.time())
        for name, text in doing.items():
            progress.show(name, text)
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


def _read(news: queue.SimpleQueue[Told]) -> list[Told]:
    """What came within a second, so that the caller can show that time passes."""
    try:
        found = [news.get(timeout=TICK_S)]
    except queue.Empty:
        return []
    while True:
        try:
            found.append(news.get_nowait())
        except queue.Empty:
            return found


def _bring(planned: Planned, decision: Decision, site: Site, news: queue.SimpleQueue[Told]) -> None:
    """The thread of one release: from the decision to the end. Its last word is always a stage."""
    name = planned.release.name

    def show(text: str) -> None:
        news.put(Told(name, text))

    try:
        if decision.step == "reinstall":
            show("removing what is there")
            uninstall(site.helm, site.namespace, name, site.context)
        if decision.step != "join":
            show("installing")
            install(site.helm, site.namespace, planned, site.context)
        news.put(Told(name, "running", "running"))
        outcome = follow_release(site.connection, site.namespace, planned, show)
        news.put(Told(name, outcome.sentence, "succeeded" if outcome.succeeded else "failed"))
    except HelmFailed as failure:
        news.put(Told(name, str(failure), "lost"))
    except ClusterError as failure:
        news.put(Told(name, f"cannot be followed: {failure}", "lost"))
    except Exception as bug:  # a thread that dies silently would leave the sweep waiting for ever
        news.put(
            Told(name, f"cannot be followed: {type(bug).__name__}: {bug} [SL-release-not-followed]", "lost")
        )
