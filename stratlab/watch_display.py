"""A run as plain lines: one whenever something changed, where there is no terminal.

The last lines of a watch: how it ended, why, and what to type next.

What helps a pod that does not start, by the words in which Kubernetes says why.

A run as a live table, on a terminal.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stratlab.cluster.pod_phase import PodRow, build_row
from stratlab.cluster.pods import format_event, node_rank
from stratlab.cluster.workloads import FAILED, RUNNING, SUCCEEDED
from stratlab.trainer_program import name_settings
from stratlab.watch_state import ADVICE, Picture, count_shares

REFUSED = (2, 3)  # of the trainer: settings, data or a model
NO_PROGRESS = 14  # of the trainer; the pods that failed are gone, this one only counted them


def build_farewell(picture: Picture) -> list[str]:
    """Lines to print."""
    workload = picture.workload
    here = f"{workload.release} -n {workload.namespace}"
    if picture.state == SUCCEEDED:
        lines = [f"{workload.release}: succeeded"]
    elif picture.deleted:
        lines = [f"{workload.release}: {workload.title} was deleted before it ended"]
    else:
        lines = _explain_failure(picture)
        earlier = " --previous" if picture.culprit and picture.culprit.exit_code == NO_PROGRESS else ""
        lines.append(f"next: stratlab logs {here}{_rank_option(picture)}{earlier}")
    job = picture.analysis
    state = picture.analysis_state
    directory, claim = workload.facts.run_directory, workload.facts.results_claim or "of the results"
    if _is_refused(picture):
        pass  # what lies in its folder, and any report, is another run's
    elif job and state == "Failed":
        job = picture.failed_waiter or job
        name = job["metadata"]["name"]
        several = f"-l batch.kubernetes.io/job-name={name} --prefix --tail=-1"
        pods = f"job/{name}" if count_shares(job) == 1 else several
        lines.append(f"the analysis failed: kubectl logs {pods} -n {workload.namespace}")
    elif state == "Complete" and directory:
        lines.append(f"report: {directory}/analysis/report.html on the claim {claim}")
    elif directory and not picture.deleted:
        lines.append(f"results: {directory} on the claim {claim}")
    if picture.state == SUCCEEDED and not directory:  # a check, whose table is rank 0's log
        lines.append(f"next: stratlab logs {here}")
    elif picture.state == SUCCEEDED:
        comparison = directory.split("/")[-2]
        lines.append(f"next: stratlab compare {comparison} --on-cluster -n {workload.namespace}")
    return lines


def _is_refused(picture: Picture) -> bool:
    """Whether it has ended before its first step, for its settings, data or model."""
    end = picture.culprit
    return (
        picture.state != SUCCEEDED
        and picture.progress is None
        and end is not None
        and end.exit_code in REFUSED
    )


def describe_left(picture: Picture | None) -> str:
    """What goes on without whoever watched; None = no run has been seen."""
    if picture is None:
        return "no such run has come yet"
    if not picture.has_ended:
        return "the run goes on"
    return (
        f"the run is {picture.state}, its analysis goes on"
        if picture.analysis
        else f"the run is {picture.state}"
    )


def build_ending(picture: Picture, exit_code: int) -> dict[str, Any]:
    """The same for programs. `analysis` is the state of its Job, null without one; `culprit` who made the run fail."""
    workload, end, progress = picture.workload, picture.culprit, picture.progress
    return {
        "release": workload.release,
        "namespace": workload.namespace,
        "state": picture.state,
        "exit_code": exit_code,
        "attempts": picture.attempt,
        "step": progress.step if progress else None,
        "steps": progress.steps if progress else None,
        "culprit": dataclasses.asdict(end) if end and exit_code else None,
        "analysis": picture.analysis_state or None,
        "run_directory": workload.facts.run_directory,
        "results_claim": workload.facts.results_claim,
    }


def _explain_failure(picture: Picture) -> list[str]:
    end = picture.culprit
    if end is None:
        said = picture.workload.message or "and no pod is left to say why"
        return [f"{picture.workload.release}: failed: {said}"]
    lines = [f"{picture.workload.release}: failed: {end.reason} (exit code {end.exit_code}, pod {end.pod})"]
    lines += [f"  {name_settings(line)}" for line in end.message.splitlines()]
    if end.exit_code in ADVICE:
        lines.append(f"what helps: {ADVICE[end.exit_code]}")
    return lines


def _rank_option(picture: Picture) -> str:
    """--rank of the culprit's first rank, unless it is 0 or unknown."""
    workload, end = picture.workload, picture.culprit
    pod = next((p for p in picture.training_pods if end and p["metadata"]["name"] == end.pod), None)
    index = node_rank(pod, workload.has_master) if pod else None
    if not index or not workload.facts.processes:
        return ""
    return f" --rank {index * (workload.facts.processes // workload.nodes)}"


NO_CLAIM = re.compile(r'persistentvolumeclaim "[^"]+" not found')
NO_IMAGE = re.compile(r"ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull")
NO_LABEL = re.compile(r"didn't match Pod's node affinity/selector")
TAINTED = re.compile(r"untolerated taint")
TOO_LITTLE = re.compile(r"Insufficient (cpu|memory)\b")
NO_DEVICE = re.compile(r"Insufficient [\w.-]+/[\w.-]+")


def find_remedy(note: str, namespace: str, *, is_analysis: bool = False) -> str:
    """One sentence for what keeps a pod from running; "" where nothing is known to help.

    Args:
        note: of the pod's row.
    """
    if NO_CLAIM.search(note):
        return (
            f"namespace {namespace} lacks what runs need: was -n left out of helm install? "
            f"`stratlab check -n {namespace}` says what is missing"
        )
    if NO_IMAGE.search(note):
        if is_analysis:
            return "helm upgrade with --reuse-values and run.analysis.image as the nodes can pull it"
        return "run.image (repository, tag, pullSecrets) as the nodes can pull it; helm uninstall, and install again"
    if NO_LABEL.search(note):
        return "run.scheduling.nodeSelector as nodes are labelled: kubectl get nodes --show-labels"
    if TAINTED.search(note):
        return "run.scheduling.tolerations for the taint that is named"
    if found := TOO_LITTLE.search(note):
        return f"a smaller run.resources.requests.{found[1]}, or fewer pods at a time"
    if NO_DEVICE.search(note):
        return (
            "fewer of them (run.nodes x run.processesPerNode), or wait until others have ended: `stratlab check` "
            "counts the free ones; on CPUs run.accelerator="
        )
    return ""


PROGRESS_EVERY_S = 5.0
ENDED = ("Succeeded", "Failed")


def describe_state(picture: Picture) -> str:
    """ "PyTorchJob demo: Running, attempt 2"."""
    attempt = f", attempt {picture.attempt}" if picture.attempt > 1 else ""
    return f"{picture.workload.title}: {picture.state}{attempt}"


def describe_waiting(picture: Picture) -> str:
    """Before the first step: which pods the others wait for, and what keeps those from running; "" when all run."""
    rows = [build_row(pod) for pod, rank in picture.rank_pods if rank is not None]
    running = [row for row in rows if row.phase == "Running"]
    if picture.has_ended or picture.progress or not running or len(running) >= picture.workload.nodes:
        return ""
    if any(row.phase in ENDED for row in rows):
        return ""  # nobody waits for a pod that has ended
    missing = [f"{row.name}, {row.note or row.phase}" for row in rows if row.phase != "Running"]
    if unborn := picture.workload.nodes - len(rows):
        missing.append(f"{unborn} {'is' if unborn == 1 else 'are'} not there yet")
    run = "runs and waits" if len(running) == 1 else "run and wait"
    return f"{len(running)} of {picture.workload.nodes} pods {run} for the others: {'; '.join(missing)}"


def list_remedies(picture: Picture) -> list[str]:
    """What helps the pods that do not start, each sentence once."""
    namespace = picture.workload.namespace
    found = [find_remedy(build_row(pod).note, namespace) for pod in picture.training_pods]
    found += [
        find_remedy(build_row(pod).note, namespace, is_analysis=True) for pod in picture.analysis_pods[-1:]
    ]
    return [f"what helps: {sentence}" for sentence in dict.fromkeys(filter(None, found))]


def describe_analysis(picture: Picture) -> str:
    """ "analysis: analyzing", with what keeps its pod from running; "" without an analysis."""
    job = picture.analysis
    if job is None:
        return ""
    state = picture.analysis_state
    if (shares := count_shares(job)) > 1:
        return f"analysis: {state}" + _describe_shares(job, shares, picture)
    notes = [row.note for row in map(build_row, picture.analysis_pods[-1:]) if row.note]
    return f"analysis: {state}" + (f": {notes[0]}" if notes and state != "Complete" else "")


def _describe_shares(job: Mapping[str, Any], shares: int, picture: Picture) -> str:
    """How many of an Indexed Job's pods are done, and what keeps one of the others from running."""
    if (done := int((job.get("status") or {}).get("succeeded") or 0)) == shares:
        return f", {shares} shares"
    rows = [row for row in map(build_row, picture.analysis_pods) if row.phase != "Failed" and row.note]
    return f", {done} of {shares} shares done" + (f": {rows[0].name}: {rows[0].note}" if rows else "")


class Lines:
    """Prints what is new since the last `show`."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._told: dict[str, str] = {}
        self._progress_at = 0.0

    def say(self, sentence: str) -> None:
        self._write(sentence)

    def show(self, picture: Picture) -> None:
        self._tell("state", describe_state(picture))
        self._tell("waiting", describe_waiting(picture))
        for pod in picture.training_pods:
            row = build_row(pod)
            if NO_IMAGE.search(row.note) and NO_IMAGE.search(self._told.get(f"pod {row.name}", "")):
                continue  # two reasons take turns, every few seconds
            self._tell(f"pod {row.name}", str(row))
        for event in picture.events:
            about = event["involvedObject"].get("name", "")
            self._tell(
                f"event {event['metadata'].get('uid', about)}",
                f"{about}: {format_event(event, with_count=False)}",
            )
        for sentence in list_remedies(picture):
            self._tell(sentence, sentence)
        for sentence in picture.told:
            self._tell(f"told {sentence}", sentence)
        for source, sentence in picture.refused.items():
            self._tell(f"refused {source}", f"{source} cannot be looked at: {sentence}")
        self._tell_progress(picture)
        self._tell("analysis", describe_analysis(picture))

    def _tell_progress(self, picture: Picture) -> None:
        progress, now = picture.progress, time.monotonic()
        if progress is None or str(progress) == self._told.get("progress"):
            return
        if now - self._progress_at >= PROGRESS_EVERY_S or progress.step == progress.steps:
            self._progress_at = now
            self._tell("progress", str(progress))

    def _tell(self, subject: str, text: str) -> None:
        if text and self._told.get(subject) != text:
            self._told[subject] = text
            self._write(text)


COLOURS = {SUCCEEDED: "green", RUNNING: "green", FAILED: "red", "deleted": "red", "Pending": "yellow"}
EVENTS_SHOWN = 5
TOLD_SHOWN = 3
PODS_SHOWN = 32


class LiveTable:
    """The newest picture, drawn four times a second at most; sentences scroll above it."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4)

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, sentence: str) -> None:
        self._live.console.print(Text(sentence), soft_wrap=True)

    def show(self, picture: Picture) -> None:
        self._live.update(render(picture))


def render(picture: Picture) -> Group:
    """State, progress, pods, the last warnings, the analysis. Nothing of it is markup."""
    parts: list[RenderableType] = [Text(describe_state(picture), style=COLOURS.get(picture.state, "bold"))]
    if waiting := describe_waiting(picture):
        parts.append(Text(waiting, style="yellow"))
    if picture.progress:
        parts += [
            ProgressBar(total=picture.progress.steps, completed=picture.progress.step, width=60),
            Text(str(picture.progress)),
        ]
    parts += [Text(sentence, style="yellow") for sentence in picture.told[-TOLD_SHOWN:]]
    rows = [build_row(pod) for pod in picture.training_pods]
    if rows:
        parts.append(_table(rows))
    for event in picture.events[-EVENTS_SHOWN:]:
        about = event["involvedObject"].get("name", "")
        parts.append(Text(f"{about}: {format_event(event)}", style="yellow"))
    parts += [Text(sentence, style="yellow") for sentence in list_remedies(picture)]
    for source, sentence in picture.refused.items():
        parts.append(Text(f"{source} cannot be looked at: {sentence}", style="yellow"))
    if analysis := describe_analysis(picture):
        parts.append(Text(analysis))
    return Group(*parts)


def _table(rows: list[PodRow]) -> Table:
    table = Table("pod", "phase", "ready", "restarts", "node", "why")
    # A pod in trouble is shown even if there are many.
    shown = sorted(rows, key=lambda row: not row.note)[:PODS_SHOWN] if len(rows) > PODS_SHOWN else rows
    for row in shown:
        phase = Text(row.phase, style=COLOURS.get(row.phase, ""))
        table.add_row(Text(row.name), phase, row.ready, str(row.restarts), Text(row.node), Text(row.note))
    if len(rows) > len(shown):
        table.add_row(f"and {len(rows) - len(shown)} more", "", "", "", "", "")
    return table
