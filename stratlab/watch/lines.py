"""A run as plain lines: one whenever something changed, where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from stratlab.cluster.pod_row import build_row
from stratlab.cluster.resource_events import format_event
from stratlab.watch.picture import Picture, count_shares
from stratlab.watch.pod_remedies import NO_IMAGE, find_remedy

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
