"""Brings every release to its end, some at a time. One thread per release; the state belongs to the caller's thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.sweep.decision import Decision
from stratlab.sweep.follow import follow_release
from stratlab.sweep.helm_release import HelmFailed, install, uninstall
from stratlab.sweep.planned_release import Planned
from stratlab.sweep.state import State

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
