"""Watch the ranks of a pod, and name the rank that does not arrive before a collective's time-out ends the others.

torch ends the waiting ranks; it cannot name the missing one, and gloo does not even record it. So this thread of the
launcher, which no rank can block, reads each rank's pulse:

    a rank waits for the time-out minus a margin
        ─▶ every rank is asked: a witness for collectives, a signal for its Python stack
        ─▶ hangs/<pod>.json, next to the other pods' files
        ─▶ the verdict, by each pod

    time-out: torch ends the waiting ranks
        ─▶ later: if a pod's only fault is a rank that does not arrive, its launcher ends the pod
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stratlab_spec.run_directory import RunDirectory, read_line, write_json
from trainer.hang_detection.heartbeat import (
    ASK,
    FOLDER,
    Frame,
    Group,
    HangVerdict,
    HeartbeatReading,
    Listener,
    RankState,
    answer_file,
    judge,
    pulse_file,
    read_process_state,
    read_stack,
    stack_file,
    state_from,
)

MARGIN, LEAST_MARGIN_S, MOST_MARGIN_S = 0.25, 2.0, 30.0
"""Share of the time-out for asking all ranks."""
ANSWER_S = 2.5
"""A witness that has not answered by then does not run."""
STACK_S = 0.5
ENOUGH_S = 20.0
"""After the time-out: torch has then ended the waiting ranks."""

log = logging.getLogger("trainer")


class Watchdog(threading.Thread):
    """Watch a pod's ranks from their start to their end.

    Args:
        pod, node: names of this pod and its node.
        nodes: pods of the run.
        processes: of this pod.
        timeout_s: of a collective.
        recorded: collectives that NCCL's flight recorder keeps on a rank.
    """

    def __init__(
        self,
        folder: RunDirectory,
        pod: str,
        node: str,
        nodes: int,
        processes: int,
        timeout_s: float,
        recorded: int,
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self.verdict: HangVerdict | None = None
        """None while no rank hangs."""
        self.ended = False
        """Whether the ranks of this pod were ended by it."""
        self._folder, self._pod, self._node = folder, pod, node
        self._nodes, self._processes = nodes, processes
        self._timeout_s, self._recorded = timeout_s, recorded
        self._margin_s = min(MOST_MARGIN_S, max(LEAST_MARGIN_S, MARGIN * timeout_s))
        self._poll_s = min(1.0, timeout_s / 20)
        self._over = threading.Event()
        self._pulses = Path(tempfile.mkdtemp(prefix="stratlab-pulse-"))
        self._ranks: dict[int, Listener] = {}
        self._looked = self._awake = time.monotonic()
        self._alarm: float | None = None
        """When the rank began to wait that raised it."""
        self._stacks: dict[int, str] = {}
        self._step = 0  # the highest of this pod's ranks at the alarm

    def set_environment(self, env: MutableMapping[str, str]) -> None:
        """Set the variables for the ranks' pulse files and for torch's flight recorder, which writes when a collective
        times out.
        """
        env[FOLDER] = str(self._pulses)
        env.setdefault("TORCH_FR_BUFFER_SIZE", str(self._recorded))
        env.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1" if self._recorded else "0")
        env.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(self._folder.flight_recorder / "rank_"))

    def run(self) -> None:
        own = self._folder.pod_hang(self._pod)
        with suppress(OSError):  # an earlier attempt's file would count for this attempt on other pods
            own.unlink(missing_ok=True)
        while not self._over.wait(self._poll_s):
            try:
                self._look()
            except Exception:  # the watchdog must not end a run
                log.exception("the watchdog could not look")

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self.join()
        shutil.rmtree(self._pulses, ignore_errors=True)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked > self._poll_s + self._margin_s:
            self._awake = now  # this process did not run either: the whole machine was suspended
        self._looked = now
        self._find_ranks()
        readings = {rank: listener.read() for rank, listener in self._ranks.items()}
        limit = self._timeout_s - self._margin_s
        waits = max((self._since(now, r.waiting_ns) for r in readings.values()), default=0.0)
        still = max((self._since(now, r.moved_ns) for r in readings.values()), default=0.0)
        if self._alarm is not None:
            self._follow(now, readings)
        elif waits >= limit or (
            still >= limit / 2
            and self._nodes > 1
            and any(content.get("alarm") for content in self._read_pods())  # another pod asks
        ):
            self._alarm = now - max(waits, limit)
            self._step = max((r.step for r in readings.values()), default=0)
            self._raise_alarm()

    def _follow(self, now: float, readings: dict[int, HeartbeatReading]) -> None:
        """After the alarm: cancel it if the ranks continue, and end them if they do not end on their own."""
        assert self._alarm is not None
        latest = max((r.moved_ns for r in readings.values()), default=0) / 1e9
        ends = self._alarm + self._timeout_s
        if (
            ends - self._margin_s < latest < ends - 1.0
            or max((r.step for r in readings.values()), default=0) > self._step
        ):
            log.warning("the ranks continue: %s", self.verdict.sentence if self.verdict else "")
            self._alarm, self.verdict = None, None
            with suppress(OSError):
                self._folder.pod_hang(self._pod).unlink(missing_ok=True)
        elif now > ends + ENOUGH_S and not self.ended:
            self.ended = True
            for reading in readings.values():
                with suppress(OSError):  # it has ended
                    os.kill(reading.process, signal.SIGKILL)

    def _since(self, now: float, then_ns: int) -> float:
        """Return the elapsed seconds; 0 if `then_ns` is 0."""
        return now - max(then_ns / 1e9, self._awake) if then_ns else 0.0

    def _find_ranks(self) -> None:
        for local in range(self._processes):
            path, known = pulse_file(self._pulses, local), self._ranks.get(local)
            with suppress(OSError, ValueError):
                # torch may start the ranks of a pod anew
                if known is None or path.stat().st_ino != known.inode:
                    self._ranks[local] = Listener(path)

    def _raise_alarm(self) -> None:
        waited_s = time.monotonic() - (self._alarm or 0)
        log.warning("a rank has waited for others for %.0f s: asking all", waited_s)
        states = self._ask_ranks()
        until = time.monotonic() + self._margin_s / 2
        while True:
            self._write(states)
            pods = self._read_pods()
            if len(pods) >= self._nodes or time.monotonic() > until or self._over.wait(self._poll_s):
                break
        known = {state.rank: state for pod in pods for state in map(state_from, pod["ranks"])}
        # a full volume must not prevent a verdict
        known |= {state.rank: state for state in states}
        self.verdict = judge([known[rank] for rank in sorted(known)], self._nodes * self._processes)
        self._write(states)
        log.error("%s; stacks: %s", self.verdict.sentence, self._folder.hangs)

    def _ask_ranks(self) -> list[RankState]:
        """Return the answers of this pod's ranks, and the visible state of silent ranks."""
        questions = {local: listener.ask() for local, listener in self._ranks.items()}
        sizes = {local: _size(stack_file(listener.path)) for local, listener in self._ranks.items()}
        for listener in self._ranks.values():
            with suppress(OSError):
                os.kill(listener.read().process, ASK)
        until = time.monotonic() + ANSWER_S
        while time.monotonic() < until:
            if all(listener.read().told >= questions[local] for local, listener in self._ranks.items()):
                break
            time.sleep(0.05)
        time.sleep(STACK_S)
        return [self._describe(each, questions[local], sizes[local]) for local, each in self._ranks.items()]

    def _describe(self, listener: Listener, question: int, before: int) -> RankState:
        reading, now = listener.read(), time.monotonic()
        answers = reading.told >= question
        answer: dict[str, Any] = {}
        text = ""
        with suppress(OSError):
            answer = read_line(answer_file(listener.path).read_bytes()) if answers else {}
        with suppress(OSError):
            text = stack_file(listener.path).read_text(errors="replace")[before:]
        self._stacks[reading.rank] = text
        return RankState(
            rank=reading.rank,
            pod=self._pod,
            node=self._node,
            step=reading.step,
            still_s=self._since(now, reading.moved_ns),
            answers=answers,
            process_state=read_process_state(reading.process),
            phase=answer.get("phase", ""),
            waits_s=self._since(now, reading.waiting_ns) if answers else 0.0,
            pending=answer.get("pending", []),
            groups={name: Group(**group) for name, group in answer.get("groups", {}).items()},
            stack=read_stack(text, reading.thread) or [Frame(*frame) for frame in answer.get("stack", [])],
        )

    def _write(self, states: list[RankState]) -> None:
        content = {
            "t": time.time(),
            "pod": self._pod,
            "alarm": True,
            "verdict": asdict(self.verdict) if self.verdict else None,
            "ranks": [asdict(state) for state in states],
            "stacks": {str(rank): text for rank, text in self._stacks.items()},
        }
        try:
            self._folder.hangs.mkdir(parents=True, exist_ok=True)
            write_json(self._folder.pod_hang(self._pod), content)
        except OSError as failure:
            log.warning("the stacks are not written down: %s", failure)

    def _read_pods(self) -> list[dict[str, Any]]:
        found = []
        for path in sorted(self._folder.hangs.glob("*.json")):
            with suppress(OSError):
                found.append(read_line(path.read_bytes()))
        return [content for content in found if isinstance(content.get("ranks"), list)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
