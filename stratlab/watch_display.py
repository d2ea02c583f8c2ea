"""Show a watched run: a live table on a terminal, elsewhere a line for each change.

`build_farewell` builds the last lines: the end, the reason and the next command. `find_remedy` returns the solution for
a pod that does not start, by Kubernetes' own words.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stratlab.cluster.pod_phase import PodRow, build_row
from stratlab.cluster.pods import format_event, node_rank
from stratlab.cluster.workloads import FAILED, RUNNING, SUCCEEDED
from stratlab.progress import build_lines
from stratlab.trainer_program import name_settings
from stratlab.watch_state import ADVICE, Picture, count_shares
from stratlab_spec.exit_codes import BAD_CONFIG, DATA_MISSING, NO_PROGRESS

REFUSED = (BAD_CONFIG, DATA_MISSING)
NO_IMAGE = re.compile(r"ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull")
REMEDIES = {
    re.compile(r'persistentvolumeclaim "[^"]+" not found'): (
        "namespace {namespace} lacks objects that runs need: was -n left out of helm install? "
        "`stratlab check -n {namespace}` lists them"
    ),
    NO_IMAGE: "run.image (repository, tag, pullSecrets) as the nodes can pull it; helm uninstall, and install again",
    re.compile(r"didn't match Pod's node affinity/selector"): (
        "run.scheduling.nodeSelector as nodes are labelled: kubectl get nodes --show-labels"
    ),
    re.compile(r"untolerated taint"): "run.scheduling.tolerations for the taint that is named",
    re.compile(r"Insufficient (?P<amount>cpu|memory)\b"): (
        "a smaller run.resources.requests.{amount}, or fewer pods at a time"
    ),
    re.compile(r"Insufficient [\w.-]+/[\w.-]+"): (
        "fewer of them (run.nodes x run.processesPerNode), or wait until others have ended: `stratlab check` counts "
        "the free ones; on CPUs run.accelerator="
    ),
}
"""Kubernetes' reason why a pod does not start -> solution; the first match counts."""
OF_ANALYSIS = "helm upgrade with --reuse-values and run.analysis.image as the nodes can pull it"
PROGRESS_EVERY_S = 5.0
COLOURS = {SUCCEEDED: "green", RUNNING: "green", FAILED: "red", "deleted": "red", "Pending": "yellow"}
EVENTS_SHOWN = 5
TOLD_SHOWN = 3
LEAST_PODS = 3
FRAME = 8
"""Lines of the screen that are neither a pod nor an answer."""
HELPS, ANALYSIS = "what helps: ", "analysis: "


def build_farewell(picture: Picture) -> list[str]:
    """Return the lines to print."""
    workload = picture.workload
    here = f"{workload.release} -n {workload.namespace}"
    if picture.state == SUCCEEDED:
        lines = [f"{workload.release}: succeeded"]
    elif picture.deleted:
        lines = [f"{workload.release}: {workload.title} was deleted before it ended"]
    else:
        lines = _explain_failure(picture)
        # the failed pods are gone, and the launcher that ended only counted them
        earlier = " --previous" if picture.culprit and picture.culprit.exit_code == NO_PROGRESS else ""
        lines.append(f"next: stratlab logs {here}{_rank_option(picture)}{earlier}")
    job = picture.analysis
    state = picture.analysis_state
    directory, claim = workload.facts.run_directory, workload.facts.results_claim or "of the results"
    if _is_refused(picture):
        pass  # the files in its folder, and any report, belong to another run
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
    if picture.state == SUCCEEDED and not directory:  # a check, whose table is in rank 0's log
        lines.append(f"next: stratlab logs {here}")
    elif picture.state == SUCCEEDED:
        comparison = directory.split("/")[-2]
        lines.append(f"next: stratlab compare {comparison} --on-cluster -n {workload.namespace}")
    return lines


def _is_refused(picture: Picture) -> bool:
    """Return whether it ended before its first step, because of its settings, data or model."""
    never_began = picture.state != SUCCEEDED and picture.progress is None
    return never_began and picture.culprit is not None and picture.culprit.exit_code in REFUSED


def describe_left(picture: Picture | None) -> str:
    """Describe the run after the watch was stopped; None = no run was seen."""
    if picture is None:
        return "the run does not exist yet"
    if not picture.has_ended:
        return "the run continues"
    return f"the run is {picture.state}" + (", its analysis continues" if picture.analysis else "")


def build_ending(picture: Picture, exit_code: int) -> dict[str, Any]:
    """Return the end for programs.

    `analysis` is the state of its Job, null without one; `culprit` describes the pod that failed the run.
    """
    workload, end, progress = picture.workload, picture.culprit, picture.progress
    return {
        "release": workload.release,
        "namespace": workload.namespace,
        "state": picture.state,
        "exit_code": exit_code,
        "attempts": picture.attempt,
        "step": progress and progress.step,
        "steps": progress and progress.steps,
        "culprit": dataclasses.asdict(end) if end and exit_code else None,
        "analysis": picture.analysis_state or None,
        "run_directory": workload.facts.run_directory,
        "results_claim": workload.facts.results_claim,
    }


def _explain_failure(picture: Picture) -> list[str]:
    end = picture.culprit
    if end is None:
        said = picture.workload.message or "and no pod is left with a reason"
        return [f"{picture.workload.release}: failed: {said}"]
    lines = [f"{picture.workload.release}: failed: {end.reason} (exit code {end.exit_code}, pod {end.pod})"]
    lines += [f"  {name_settings(line)}" for line in end.message.splitlines()]
    if end.exit_code in ADVICE:
        lines.append(f"what helps: {ADVICE[end.exit_code]}")
    return lines


def _rank_option(picture: Picture) -> str:
    """Return --rank of the culprit's first rank, unless it is 0 or unknown."""
    workload, end = picture.workload, picture.culprit
    pod = next((p for p in picture.training_pods if end and p["metadata"]["name"] == end.pod), None)
    index = node_rank(pod, workload.has_master) if pod else None
    if not index or not workload.facts.processes:
        return ""
    return f" --rank {index * (workload.facts.processes // workload.nodes)}"


def find_remedy(note: str, namespace: str, *, is_analysis: bool = False) -> str:
    """Return one sentence about the obstacle of a pod that does not run; "" if no solution is known.

    Args:
        note: from the pod's row.
    """
    for words, remedy in REMEDIES.items():
        if found := words.search(note):
            remedy = OF_ANALYSIS if is_analysis and words is NO_IMAGE else remedy
            return remedy.format(namespace=namespace, **found.groupdict())
    return ""


def describe_state(picture: Picture) -> str:
    """Return "PyTorchJob demo: Running, attempt 2"."""
    attempt = f", attempt {picture.attempt}" if picture.attempt > 1 else ""
    return f"{picture.workload.title}: {picture.state}{attempt}"


def describe_waiting(picture: Picture) -> str:
    """Describe the wait before the first step: the missing pods and their obstacles; "" when all run."""
    rows = [build_row(pod) for pod, rank in picture.rank_pods if rank is not None]
    running = [row for row in rows if row.phase == "Running"]
    if picture.has_ended or picture.progress or not running or len(running) >= picture.workload.nodes:
        return ""
    if any(row.phase in (SUCCEEDED, FAILED) for row in rows):
        return ""  # a pod that has ended does not hold up the others
    missing = [f"{row.name}, {row.note or row.phase}" for row in rows if row.phase != "Running"]
    if unborn := picture.workload.nodes - len(rows):
        missing.append(f"{unborn} {'is' if unborn == 1 else 'are'} not created yet")
    run = "runs and waits" if len(running) == 1 else "run and wait"
    return f"{len(running)} of {picture.workload.nodes} pods {run} for the others: {'; '.join(missing)}"


def list_remedies(picture: Picture) -> list[str]:
    """Return the solutions for pods that do not start, each sentence once."""
    pods = [(pod, False) for pod in picture.training_pods]
    pods += [(pod, True) for pod in picture.analysis_pods[-1:]]
    namespace = picture.workload.namespace
    found = [find_remedy(build_row(pod).note, namespace, is_analysis=is_last) for pod, is_last in pods]
    return [f"{HELPS}{sentence}" for sentence in dict.fromkeys(filter(None, found))]


def describe_analysis(picture: Picture) -> str:
    """Return "analysis: analyzing", with the obstacle of its pod; "" without an analysis."""
    job = picture.analysis
    if job is None:
        return ""
    state, shares = picture.analysis_state, count_shares(job)
    text, noted = f"{ANALYSIS}{state}", [row for row in map(build_row, picture.analysis_pods) if row.note]
    if shares == 1:
        last = [row for row in noted if row.name == picture.analysis_pods[-1]["metadata"]["name"]]
        return text + (f": {last[0].note}" if last and state != "Complete" else "")
    if (done := int((job.get("status") or {}).get("succeeded") or 0)) == shares:
        return f"{text}, {shares} shares"
    held = next((f": {row.name}: {row.note}" for row in noted if row.phase != FAILED), "")
    return f"{text}, {done} of {shares} shares done{held}"


class Lines:
    """Print the changes since the last `show`."""

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
                continue  # two reasons may alternate every few seconds
            self._tell(f"pod {row.name}", str(row))
        for event in picture.events:
            about = event["involvedObject"].get("name", "")
            subject = f"event {event['metadata'].get('uid', about)}"
            self._tell(subject, f"{about}: {format_event(event, with_count=False)}")
        for sentence in list_remedies(picture):
            self._tell(sentence, sentence)
        for sentence in picture.told:
            self._tell(f"told {sentence}", sentence)
        for source, sentence in picture.refused.items():
            self._tell(f"refused {source}", f"{source} is not readable: {sentence}")
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


class LiveTable:
    """Draw the newest picture, at most four times a second; sentences scroll above it."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4)

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._live.stop()

    def say(self, sentence: str) -> None:
        self._live.console.print(Text(sentence), soft_wrap=True)

    def show(self, picture: Picture) -> None:
        self._live.update(render(picture, self._live.console.height))


def render(picture: Picture, height: int = 40) -> Group:
    """Render state and progress, pods, then further lines for the user. No text is read as markup.

    Args:
        height: of the terminal, which cuts the end: as many pods are shown as fit.
    """
    parts: list[RenderableType] = [Text(describe_state(picture), style=COLOURS.get(picture.state, "bold"))]
    if picture.progress:
        step, steps = picture.progress.step, picture.progress.steps
        bar = Table.grid(padding=(0, 2))
        bar.add_row(ProgressBar(total=steps, completed=step, width=20), Text(str(picture.progress)))
        parts.append(bar)
    answers = [*_list_answers(picture)]
    rows = [build_row(pod) for pod in picture.training_pods]
    if rows:
        parts.append(_table(rows, max(LEAST_PODS, height - len(answers) - FRAME)))
    return Group(*parts, build_lines(answers))


def _list_answers(picture: Picture) -> Iterator[tuple[str, Text]]:
    """Yield (label, line): the obstacles, messages of ranks and Kubernetes, solutions, the analysis, the log."""
    events = [
        f"{event['involvedObject'].get('name', '')}: {format_event(event)}"
        for event in picture.events[-EVENTS_SHOWN:]
    ]
    kinds = {
        "Waiting": [describe_waiting(picture)],
        "Ranks": picture.told[-TOLD_SHOWN:],
        "Events": events,
        "Helps": [sentence.removeprefix(HELPS) for sentence in list_remedies(picture)],
        "Unseen": [f"{source} is not readable: {sentence}" for source, sentence in picture.refused.items()],
    }
    for label, sentences in kinds.items():
        for number, sentence in enumerate(filter(None, sentences)):
            yield "" if number else label, Text(sentence, style="yellow")
    if analysis := describe_analysis(picture):
        yield "Analysis", Text(analysis.removeprefix(ANALYSIS))
    yield "Log", Text(f"stratlab logs {picture.workload.release} -n {picture.workload.namespace}")


def _table(rows: list[PodRow], most: int) -> Table:
    """Build a table of at most `most` pods, those with problems first. Leave out columns without a problem."""
    shown = sorted(rows, key=lambda row: not row.note)[:most] if len(rows) > most else rows
    cells = {
        "pod": [Text(row.name) for row in shown],
        "phase": [Text(row.phase, style=COLOURS.get(row.phase, "")) for row in shown],
        "ready": [Text(row.ready) for row in shown],
        "restarts": [Text(str(row.restarts or "")) for row in shown],
        "node": [Text(row.node) for row in shown],
        "why": [Text(row.note) for row in shown],
    }
    filled = {name: column for name, column in cells.items() if any(cell.plain for cell in column)}
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in filled:
        table.add_column(name, overflow="fold", justify="right" if name == "restarts" else "left")
    for row in zip(*filled.values(), strict=True):
        table.add_row(*row)
    if len(rows) > len(shown):
        table.add_row(f"and {len(rows) - len(shown)} more")
    return table
