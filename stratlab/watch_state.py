"""Hold the known state of a run on the cluster, updated by one change at a time.

These lines of rank 0's console are an interface (trainer/metrics/progress.py, trainer/metrics/tracking.py):

* `step 120/600  loss 0.4321  812 samples/s  78.9 ms/step  about 38 s left`
* `step 120: rank 1 (node a) takes 2.1 times as long as the others since step 103: they wait 51 % of each step`
* `step 120: the loss of step 118 is not finite, first on rank 1 (node a); of these 10 steps 1 are so, 1 left out`

The pods' termination messages, written by the trainer, contain the reason of a run's end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stratlab.cluster.pods import (
    console_pod,
    container_status,
    has_log,
    node_rank,
    place_of,
    training_container,
)
from stratlab.cluster.watching import DELETED, SYNCED
from stratlab.cluster.workloads import (
    ANALYSIS,
    COMPONENT,
    ENDED,
    TRAINING,
    Workload,
    find_failed_waiter,
    pick_jobs,
    read_job_end,
)
from stratlab_spec import exit_codes as codes

NUMBER = r"(-?[\d.]+(?:e[+-]?\d+)?|-?inf|nan)"
STEP = re.compile(
    rf"step (\d+)/(\d+)  loss {NUMBER}  {NUMBER} samples/s  {NUMBER} ms/step  about (\d+) s left\s*$"
)
EVENT = re.compile(r"step \d+: (?:rank \d+ .*takes .* times as long|the (?:loss|gradient) of step \d+ ).*$")
ATTEMPT = re.compile(r"attempt (\d+)\b")


@dataclass(frozen=True)
class TrainingProgress:
    """Hold the progress of training. `left_s` is the trainer's own estimate."""

    step: int
    steps: int
    loss: float
    samples_per_s: float
    step_time_ms: float
    left_s: int

    def __str__(self) -> str:
        return (
            f"step {self.step}/{self.steps}  loss {self.loss:.4f}  {self.samples_per_s:,.0f} samples/s"
            f"  {self.step_time_ms:.1f} ms/step  about {format_seconds(self.left_s)} left"
        )


def parse_progress(line: str) -> TrainingProgress | None:
    """Parse a line of progress; None for any other line. mpirun may prepend text."""
    found = STEP.search(line)
    if not found:
        return None
    step, steps, loss, speed, step_ms, left_s = found.groups()
    return TrainingProgress(int(step), int(steps), float(loss), float(speed), float(step_ms), int(left_s))


def parse_event(line: str) -> str | None:
    """Return the trainer's line about a slow rank or non-finite values; None for any other line."""
    found = EVENT.search(line)
    return found[0].rstrip() if found else None


def parse_attempt(line: str) -> int | None:
    """Return the attempt's number from the trainer's line ("demo: attempt 2, rank 0 of 4 on ...")."""
    found = ATTEMPT.search(line) if "rank 0 of" in line else None
    return int(found[1]) if found else None


def format_seconds(seconds: float) -> str:
    """Format seconds: 38 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


FAILED = codes.CRASHED
SURVIVORS = (
    codes.PEER_LOST,
    codes.TERMINATED,
)  # lost a peer, or were stopped: another pod is the culprit

# Exit code of the trainer -> solution.
ADVICE = {
    codes.BAD_CONFIG: "fix the settings named above, helm uninstall, and install again",
    codes.DATA_MISSING: "data and model named in the message above; run.config.dataset_path and model_path are "
    "paths on the results volume, because a pod sees no folder of yours (docs/cluster.md, Data of your own)",
    codes.ACCELERATORS_MISSING: "the node, its driver and device plugin, an image with VARIANT=cuda; on CPUs: "
    'run.accelerator=""',
    codes.OUT_OF_MEMORY: "a smaller run.config.micro_batch_size, or a strategy that shards more (zero2, fsdp)",
    codes.NOT_FINITE: "a smaller run.config.lr or run.config.clip_norm",
    codes.STORAGE_FULL: "free space on the results claim, then install again: the run resumes from its last checkpoint",
    codes.NO_PROGRESS: "what fails every time; the log on the results volume has all attempts, those of pods that are "
    "gone too",
    codes.DEADLINE_PASSED: "a larger run.config.deadline_s, or run.scheduling.waitSeconds if pods never met",
    137: "most often the memory of the pod: run.resources.limits.memory, run.sharedMemory.sizeLimit",
}


@dataclass(frozen=True)
class Termination:
    """Describe the end of a pod's training container."""

    pod: str
    role: str
    exit_code: int
    reason: str
    message: str
    finished: str


def read_termination(pod: Mapping[str, Any]) -> Termination | None:
    """Return the last end of the training container, if it has ended. The trainer writes one line of JSON."""
    status = container_status(pod, training_container(pod))
    states = (status.get("state") or {}, status.get("lastState") or {})
    ended = next((state["terminated"] for state in states if state.get("terminated")), None)
    if ended is None:
        return None
    said = _parse(ended.get("message", ""))
    return Termination(
        pod=str(pod["metadata"]["name"]),
        role=place_of(pod)[0],
        exit_code=int(said.get("exit_code", ended.get("exitCode", FAILED))),
        reason=str(said.get("reason") or ended.get("reason") or "ended"),
        message=str(said.get("message") or "").strip(),
        finished=str(ended.get("finishedAt") or ""),
    )


def find_culprit(terminations: Iterable[Termination]) -> Termination | None:
    """Return the end that made the run fail: a launcher's, else a permanent code before another, else the first."""
    failed = [each for each in terminations if each.exit_code]

    def rank(each: Termination) -> tuple[bool, bool, bool, str]:
        return (each.role != "launcher", each.exit_code >= 128, each.exit_code in SURVIVORS, each.finished)

    return min(failed, key=rank, default=None)


def _parse(message: str) -> dict[str, Any]:
    try:
        said = json.loads(message.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return said if isinstance(said, dict) else {}


WORKLOAD, PODS, EVENTS, JOBS, LOG = "workload", "pods", "events", "jobs", "log"
REFUSED, TROUBLE = "refused", "trouble"
WAIT = "wait"
"""The container that waits for the run: in the waiter's pod, or in the analysis' own."""
# Events that repeat the row of the pod.
TOLD_BY_PODS = ("Error", "ExitedWithCode", "BackOff", "Failed", "Unschedulable", "PyTorchJobRestarting")


class Picture:
    """Hold the state of a watched run. Only `apply_change` changes it."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.deleted = False
        self.progress: TrainingProgress | None = None
        self.told: list[str] = []
        """Rank 0's lines about slow ranks and non-finite values, oldest first; each sentence once."""
        self.refused: dict[str, str] = {}
        """Unreadable sources, with the reason."""
        self._pods: dict[str, Mapping[str, Any]] = {}
        self._events: dict[str, Mapping[str, Any]] = {}
        self._jobs: dict[str, Mapping[str, Any]] = {}
        self._gone: list[Termination] = []
        self._uids = {workload.uid}
        self._consoles: set[tuple[str, int]] = set()
        self._told_attempt = 0
        self._synced: set[str] = set()

    def apply_change(self, source: str, kind: str, changed: Any) -> None:
        """Apply a change: an object of the API; a line of rank 0 for LOG; a sentence for REFUSED."""
        if kind == SYNCED:
            self._synced.add(source)
        elif source == WORKLOAD and kind == DELETED:
            self.deleted = True  # for good: another object of its name is another run
        elif source == WORKLOAD:
            self.workload = self.workload if self.deleted else Workload(self.workload.api, changed)
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
        """Return the workload's state, or "deleted"."""
        return "deleted" if self.deleted else self.workload.state

    @property
    def has_ended(self) -> bool:
        return self.deleted or self.workload.state in ENDED

    @property
    def attempt(self) -> int:
        """Return the attempt in the trainer's line, else the starts of its console during this watch; initially 0."""
        return max(self._told_attempt, len(self._consoles))

    @property
    def training_pods(self) -> list[Mapping[str, Any]]:
        """Return the training pods by name."""
        return self._pods_of(TRAINING)

    @property
    def rank_pods(self) -> list[tuple[Mapping[str, Any], int | None]]:
        """Return the training pods with their node ranks; None for an MPIJob's launcher, which does not run ranks."""
        return [(pod, node_rank(pod, self.workload.has_master)) for pod in self.training_pods]

    @property
    def analysis_pods(self) -> list[Mapping[str, Any]]:
        return self._pods_of(ANALYSIS)

    @property
    def console(self) -> Mapping[str, Any] | None:
        """Return the pod with rank 0's lines, once its container has started."""
        pod = console_pod(self.training_pods)
        return pod if pod and has_log(pod, training_container(pod)) else None

    @property
    def events(self) -> list[Mapping[str, Any]]:
        """Return the Events of this run's objects, oldest first; one for each reason and message."""
        found = {}
        for event in self._events.values():
            about, reason = event["involvedObject"], event.get("reason", "")
            if about.get("uid") in self._uids and reason not in TOLD_BY_PODS:
                found[about.get("name", ""), reason, str(event.get("message", "")).strip()] = event
        return sorted(found.values(), key=_when)

    @property
    def analysis(self) -> Mapping[str, Any] | None:
        """Return the newest analysis Job: after a change of its settings there are two."""
        return next(iter(pick_jobs(self._jobs.values(), ANALYSIS)[-1:]), None)

    @property
    def failed_waiter(self) -> Mapping[str, Any] | None:
        """Return the failed Job that should have started the analysis: the analysis fails with it."""
        return find_failed_waiter(self.analysis, self._jobs.values()) if self.analysis else None

    @property
    def analysis_state(self) -> str:
        """Return waiting for the run, analyzing, Complete, Failed, or pending; "" without an analysis."""
        if self.analysis is None:
            return ""
        if self.failed_waiter:
            return "Failed"
        if (end := read_job_end(self.analysis)) is not None:
            return "Failed" if end else "Complete"
        running = {
            each["name"]
            for pod in self.analysis_pods
            for listed in ("containerStatuses", "initContainerStatuses")
            for each in (pod.get("status") or {}).get(listed) or []
            if "running" in (each.get("state") or {})
        }
        if running - {WAIT}:
            return "analyzing"
        return "waiting for the run" if WAIT in running else "pending"

    @property
    def culprit(self) -> Termination | None:
        """Return the end that made the run fail, if a pod has reported it."""
        found = find_culprit(filter(None, map(read_termination, self.training_pods)))
        return found or find_culprit(reversed(self._gone))

    def is_synced(self, source: str) -> bool:
        """Return whether all initial objects of the source have arrived, or the source was refused."""
        return source in self._synced

    def _apply_pod(self, kind: str, pod: Mapping[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        _apply(self._pods, kind, pod)
        self._uids.add(uid)
        if pod["metadata"].get("labels", {}).get(COMPONENT) != TRAINING:
            return
        if kind == DELETED and (end := read_termination(pod)):
            self._gone.append(end)
        console = console_pod(self.training_pods)
        container = training_container(pod)
        if kind != DELETED and console is pod and has_log(pod, container):
            restarts = pod["status"]["containerStatuses"][0].get("restartCount", 0)
            self._consoles.add((uid, int(restarts)))

    def _pods_of(self, component: str) -> list[Mapping[str, Any]]:
        pods = self._pods.values()
        found = [pod for pod in pods if pod["metadata"].get("labels", {}).get(COMPONENT) == component]
        return sorted(found, key=lambda pod: (len(pod["metadata"]["name"]), pod["metadata"]["name"]))


def count_shares(job: Mapping[str, Any]) -> int:
    """Return the number of pods in which the analysis reads the traces (run.analysis.shares)."""
    return int((job.get("spec") or {}).get("completions") or 1)


def _apply(known: dict[str, Mapping[str, Any]], kind: str, changed: Mapping[str, Any]) -> None:
    uid = changed["metadata"]["uid"]
    if kind == DELETED:
        known.pop(uid, None)
    else:
        known[uid] = changed


def _when(event: Mapping[str, Any]) -> str:
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(series or event.get("lastTimestamp") or event.get("eventTime") or "")
