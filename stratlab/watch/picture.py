"""All that is known about a run on the cluster, brought up to date by one change after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratlab.cluster.job_end import ANALYSIS, COMPONENT, find_failed_waiter, pick_jobs, read_job_end
from stratlab.cluster.pods import console_pod, has_log, node_rank, training_container
from stratlab.cluster.watching import DELETED, SYNCED
from stratlab.cluster.workloads import ENDED, Workload
from stratlab.watch.console_line import Progress, parse_attempt, parse_event, parse_progress
from stratlab.watch.ending import Termination, find_culprit, read_termination

WORKLOAD, PODS, EVENTS, JOBS, LOG, REFUSED, TROUBLE = (
    "workload",
    "pods",
    "events",
    "jobs",
    "log",
    "refused",
    "trouble",
)
WAIT = "wait"
"""The container that waits for the run: of the waiter's pod, or of the analysis' own."""
# Events that say again what the row of the pod says.
TOLD_BY_PODS = ("Error", "ExitedWithCode", "BackOff", "Failed", "Unschedulable", "PyTorchJobRestarting")


class Picture:
    """Changed by `apply_change` alone."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.deleted = False
        self.progress: Progress | None = None
        self.told: list[str] = []
        """What rank 0 has said of slow ranks and of what is not finite, oldest first; each sentence once."""
        self.refused: dict[str, str] = {}
        """What may not be looked at, and why."""
        self._pods: dict[str, Mapping[str, Any]] = {}
        self._events: dict[str, Mapping[str, Any]] = {}
        self._jobs: dict[str, Mapping[str, Any]] = {}
        self._gone: list[Termination] = []
        self._uids = {workload.uid}
        self._consoles: set[tuple[str, int]] = set()
        self._told_attempt = 0
        self._synced: set[str] = set()

    def apply_change(self, source: str, kind: str, changed: Any) -> None:
        """`changed` is an object of the API; a line of rank 0 for LOG; a sentence for REFUSED."""
        if kind == SYNCED:
            self._synced.add(source)
        elif source == WORKLOAD:
            self._apply_workload(kind, changed)
        elif source == PODS:
            self._apply_pod(kind, changed)
        elif source == EVENTS:
            _apply(self._events, kind, changed)
        elif source == JOBS:
            _apply(self._jobs, kind, changed)
            self._uids.add(changed["metadata"]["uid"])
        elif source == LOG:
            self.progress = parse_progress(changed) or self.progress
            self._told_attempt = parse_attempt(changed) or self._told_attempt
            if (event := parse_event(changed)) and event not in self.told:
                self.told.append(event)
        elif source == REFUSED:
            self.refused[kind] = changed
            self._synced.add(kind)

    @property
    def state(self) -> str:
        """The workload's, or "deleted"."""
        return "deleted" if self.deleted else self.workload.state

    @property
    def has_ended(self) -> bool:
        return self.deleted or self.workload.state in ENDED

    @property
    def attempt(self) -> int:
        """As the trainer says; else how often its console has started since we look. 0 before the first."""
        return max(self._told_attempt, len(self._consoles))

    @property
    def training_pods(self) -> list[Mapping[str, Any]]:
        """By name."""
        return self._pods_of("training")

    @property
    def rank_pods(self) -> list[tuple[Mapping[str, Any], int | None]]:
        """The training pods with their node ranks; None for the launcher of an MPIJob, which holds no ranks."""
        return [(pod, node_rank(pod, self.workload.has_master)) for pod in self.training_pods]

    @property
    def analysis_pods(self) -> list[Mapping[str, Any]]:
        return self._pods_of("analysis")

    @property
    def console(self) -> Mapping[str, Any] | None:
        """The pod to read rank 0's lines from, once its container has started."""
        pod = console_pod(self.training_pods)
        return pod if pod and has_log(pod, training_container(pod)) else None

    @property
    def events(self) -> list[Mapping[str, Any]]:
        """About this run's objects, oldest first; one for each reason and message."""
        mine = [
            each
            for each in self._events.values()
            if each["involvedObject"].get("uid") in self._uids and each.get("reason") not in TOLD_BY_PODS
        ]
        return sorted({_gist(each): each for each in mine}.values(), key=_when)

    @property
    def analysis(self) -> Mapping[str, Any] | None:
        """The newest analysis Job: after a change of its settings there are two."""
        return next(iter(pick_jobs(self._jobs.values(), ANALYSIS)[-1:]), None)

    @property
    def failed_waiter(self) -> Mapping[str, Any] | None:
        """The Job that should have started the analysis and has failed: the analysis fails with it."""
        return find_failed_waiter(self.analysis, self._jobs.values()) if self.analysis else None

    @property
    def analysis_state(self) -> str:
        """waiting for the run, analyzing, Complete, Failed, or pending; "" without an analysis."""
        if self.analysis is None:
            return ""
        return "Failed" if self.failed_waiter else _read_state(self.analysis, self.analysis_pods)

    @property
    def culprit(self) -> Termination | None:
        """Whose end made the run fail, if a pod has told."""
        found = find_culprit(filter(None, map(read_termination, self.training_pods)))
        return found or find_culprit(reversed(self._gone))

    def is_synced(self, source: str) -> bool:
        """Whether all that was there at first has been told, or was refused."""
        return source in self._synced

    def _apply_workload(self, kind: str, changed: Mapping[str, Any]) -> None:
        if kind == DELETED:
            self.deleted = True  # for good: another one of its name is another run
        elif not self.deleted:
            self.workload = Workload(self.workload.api, changed)

    def _apply_pod(self, kind: str, pod: Mapping[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        _apply(self._pods, kind, pod)
        self._uids.add(uid)
        if pod["metadata"].get("labels", {}).get(COMPONENT) != "training":
            return
        if kind == DELETED and (end := read_termination(pod)):
            self._gone.append(end)
        console = console_pod(self.training_pods)
        container = training_container(pod)
        if kind != DELETED and console is pod and has_log(pod, container):
            restarts = pod["status"]["containerStatuses"][0].get("restartCount", 0)
            self._consoles.add((uid, int(restarts)))

    def _pods_of(self, component: str) -> list[Mapping[str, Any]]:
        found = [
            p for p in self._pods.values() if p["metadata"].get("labels", {}).get(COMPONENT) == component
        ]
        return sorted(found, key=lambda pod: (len(pod["metadata"]["name"]), pod["metadata"]["name"]))


def _read_state(job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> str:
    if (end := read_job_end(job)) is not None:
        return "Failed" if end else "Complete"
    running = {
        each["name"]
        for pod in pods
        for listed in ("containerStatuses", "initContainerStatuses")
        for each in (pod.get("status") or {}).get(listed) or []
        if "running" in (each.get("state") or {})
    }
    if running - {WAIT}:
        return "analyzing"
    return "waiting for the run" if WAIT in running else "pending"


def count_shares(job: Mapping[str, Any]) -> int:
    """In how many pods the analysis reads the traces (run.analysis.shares)."""
    return int((job.get("spec") or {}).get("completions") or 1)


def _apply(known: dict[str, Mapping[str, Any]], kind: str, changed: Mapping[str, Any]) -> None:
    uid = changed["metadata"]["uid"]
    if kind == DELETED:
        known.pop(uid, None)
    else:
        known[uid] = changed


def _gist(event: Mapping[str, Any]) -> tuple[str, str, str]:
    return (
        event["involvedObject"].get("name", ""),
        event.get("reason", ""),
        str(event.get("message", "")).strip(),
    )


def _when(event: Mapping[str, Any]) -> str:
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(series or event.get("lastTimestamp") or event.get("eventTime") or "")
