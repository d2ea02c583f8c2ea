"""Record every start and end of a pod on the results volume, and its termination message for Kubernetes.

The training operator (v1.9) replaces a pod that ended with a code from 128 without limit, and checks a deadline only
when another event of the job occurs. So the pod itself keeps the bounds: it refuses a start with a code that the
operator treats as final. Each pod has its own file, because lines appended by two nodes may overwrite each other on
NFS.

mpirun and srun return only one exit code: the first or the highest. `python -m trainer.program culprit` reads the
ledgers of all pods and returns the exit code of the run.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stratlab_spec import exit_codes as failures
from stratlab_spec.exit_codes import DeadlinePassed, NoProgress, first_failure
from stratlab_spec.run_directory import RunDirectory, append_line, read_events
from stratlab_spec.settings.config import Config, ConfigError

LONGEST_SENTENCE = 1000  # of 4,096 bytes that Kubernetes keeps of a pod's end


def read_pod_name(env: Mapping[str, str]) -> str:
    """Return the pod's name, the same again when it is replaced."""
    return env.get("HOSTNAME") or socket.gethostname()


@dataclass(frozen=True)
class _Start:
    """One start of the pod, from its lines."""

    t: float
    step: int
    met_at: float | None
    """When all pods had met; None if they never did."""
    exit_code: int | None
    is_running: bool

    @property
    def was_alone(self) -> bool:
        """Whether it has lost its peers without having had them."""
        return self.met_at is None and self.exit_code == failures.PEER_LOST

    @property
    def waited(self) -> bool:
        """Whether it has spent its time waiting for the others, or still does."""
        return self.met_at is None and (self.was_alone or self.is_running)


class Ledger:
    """The starts and ends of one pod of one run.

    A line is {"t", "event", "launcher", "step" | "exit_code", "reason"}, with "text" if the pod knows more than its
    code. A pod that was refused because accelerators are missing leaves one line: {"t", "event", "exit_code",
    "reason", "text"}.
    """

    def __init__(self, folder: RunDirectory, pod: str) -> None:
        self.pod = pod
        self._folder = folder
        self._path = folder.pod_ledger(pod)
        self._lines = read_events(self._path)
        self._running = ""
        """The launcher of this process, once its start is recorded."""
        self._step = max([reached_step(folder), *(line["step"] for line in self._lines)])

    def check(self, config: Config) -> None:
        """Raise an error if this start exceeds a bound.

        Raises:
            NoProgress: `max_attempts` starts have ended without a new step. Starts that were stopped (143: suspended,
                drained, deleted) do not count, and neither do starts that never had all pods of the run.
            DeadlinePassed: the run began more than `deadline_s` ago, or has waited for pods for `wait_s`.
        """
        wasted = sum(
            start.step == self._step and start.exit_code != failures.TERMINATED and not start.was_alone
            for start in self._read_starts()
        )
        if wasted >= config.max_attempts:
            last = self._lines[-1]
            reason = last.get("text") or last.get("reason") or failures.reason(137)  # without a reason
            raise NoProgress(
                f"{wasted} starts of this pod ended at step {self._step} without progress. The last one ended with: "
                f"{reason}; fix the cause, or allow more than TRAINER_MAX_ATTEMPTS={config.max_attempts} "
                "[SL-no-progress]"
            )
        if self.seconds_left(config) <= 0:
            raise DeadlinePassed(self.deadline_sentence(config))
        if self._waiting_since() is not None and self.wait_left(config) <= 0:
            raise DeadlinePassed(self.wait_sentence(config))

    def seconds_left(self, config: Config) -> float:
        """Return the seconds until the deadline, counted from this pod's first start, also while the run is suspended.

        The time before the pods first meet does not count.
        """
        began = [start.met_at or start.t for start in self._read_starts() if not start.waited]
        return (began[0] if began else time.time()) + config.deadline_s - time.time()

    def wait_left(self, config: Config) -> float:
        """Return how long this pod may still wait for the others."""
        since = self._waiting_since()
        return config.wait_s - (time.time() - since if since is not None else 0.0)

    def wait_sentence(self, config: Config) -> str:
        """Return the message when the pods have never met."""
        return (
            f"the pods of this run never ran at the same time within run.scheduling.waitSeconds={config.wait_s}; "
            "`stratlab watch` shows why a pod has no node [SL-pods-never-met]"
        )

    def _read_starts(self) -> list[_Start]:
        """Return the starts since the run last finished: after that it starts again only to evaluate."""
        done = [i for i, line in enumerate(self._lines) if line.get("exit_code") == failures.DONE]
        lines = self._lines[done[-1] + 1 :] if done else self._lines
        met = {line["launcher"]: line["t"] for line in lines if line["event"] == "met"}
        codes = {line["launcher"]: line["exit_code"] for line in lines if line.get("exit_code") is not None}
        return [
            _Start(
                t=line["t"],
                step=line["step"],
                met_at=met.get(line["launcher"]),
                exit_code=codes.get(line["launcher"]),
                is_running=line["launcher"] == self._running,
            )
            for line in lines
            if line["event"] == "started"
        ]

    def _waiting_since(self) -> float | None:
        """Return when this pod began to wait for the others; None if its last start had them, or was stopped."""
        since = None
        for start in self._read_starts():
            since = (since or start.t) if start.waited else None
        return since

    def deadline_sentence(self, config: Config) -> str:
        """Return the message of a passed deadline."""
        return (
            f"the run began more than TRAINER_DEADLINE_S={config.deadline_s} s ago and had reached step {self._step} "
            "[SL-deadline-passed]"
        )

    def record_start(self, launcher: str) -> None:
        """Record the start before torch is imported, so that every later failure counts."""
        self._folder.pods.mkdir(parents=True, exist_ok=True)
        self._append(event="started", launcher=launcher, step=self._step)
        self._running = launcher

    def record_met(self, launcher: str) -> None:
        """Record that all pods have met and torch has started the ranks. A full volume is ignored."""
        with suppress(OSError):
            self._append(event="met", launcher=launcher)

    def record_end(self, launcher: str, exit_code: int, text: str = "") -> None:
        """Record the end; `text` adds to the code's own reason, because the pod's log is lost when it is replaced."""
        self._append(event="ended", launcher=launcher, **describe_end(exit_code, text))

    def record_refusal(self, exit_code: int, text: str) -> None:
        """Record for `helm test` why this pod did not start a run. A full volume is ignored."""
        with suppress(OSError):
            self._folder.pods.mkdir(parents=True, exist_ok=True)
            self._append(event="refused", exit_code=exit_code, reason=failures.reason(exit_code), text=text)

    def _append(self, **facts: Any) -> None:
        line = {"t": time.time(), **facts}
        append_line(self._path, line)
        self._lines.append(line)


def describe_end(exit_code: int, text: str) -> dict[str, Any]:
    """Return the fields of an end; `text` is included if it adds to the exit code's own reason."""
    reason = failures.reason(exit_code)
    found: dict[str, Any] = {"exit_code": exit_code, "reason": reason}
    return found | ({"text": text[:LONGEST_SENTENCE]} if exit_code and text and text != reason else {})


def read_last_codes(folder: RunDirectory, since: float) -> dict[str, int]:
    """Return {pod: exit code} of the pods whose newest line is an end after `since` (seconds since 1970)."""
    files = {path.stem: read_events(path) for path in sorted(folder.pods.glob("*.jsonl"))}
    last = {pod: lines[-1] for pod, lines in files.items() if lines}
    ended = {pod: line for pod, line in last.items() if line.get("exit_code") is not None}
    return {pod: line["exit_code"] for pod, line in ended.items() if line["t"] >= since}


def reached_step(folder: RunDirectory) -> int:
    """Return the highest step in metrics.jsonl, over all attempts; 0 without one."""
    if not folder.metrics.exists():
        return 0
    with open(folder.metrics, "rb") as file:
        return max((_read_step(line) for line in file), default=0)


class _LedgerLine(msgspec.Struct):
    step: int


_decode = msgspec.json.Decoder(_LedgerLine).decode


def _read_step(line: bytes) -> int:
    try:
        return _decode(line).step if line.endswith(b"\n") else 0
    except (msgspec.DecodeError, UnicodeDecodeError):  # a line that a full volume has cut
        return 0


TERMINATION_LOG = Path("/dev/termination-log")  # Kubernetes shows it in `kubectl describe pod`


def end(code: int, text: str) -> int:
    """Print the reason and pass it to Kubernetes; return `code` even if neither can be written."""
    if code != failures.DONE:
        with suppress(OSError):  # a log on the volume that is full
            print(f"{failures.reason(code)} (exit code {code}):\n{text}", file=sys.stderr, flush=True)
    leave_last_words(code, failures.reason(code), text)
    return code


def drop_unwritten() -> None:
    """Drop output that a full volume did not accept: Python would exit with 120 because of it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())


def leave_last_words(code: int, reason: str, text: str) -> None:
    """Write the termination message of Kubernetes."""
    if TERMINATION_LOG.exists():
        line = {"exit_code": code, "reason": reason, "message": text[:2000]}
        try:
            TERMINATION_LOG.write_text(json.dumps(line) + "\n")
        except OSError as failure:
            with suppress(OSError):
                print(f"{TERMINATION_LOG}: {failure}", file=sys.stderr)


def find_culprit(folder: RunDirectory, since: float, code: int) -> int:
    """Return the exit code to pass on: a survivor may end before the culprit.

    Args:
        since: seconds since 1970; ends before it belong to an earlier start.
        code: the starter's own exit code, used if no ledger has one; a signal as a negative number.
    """
    codes = {pod: last for pod, last in read_last_codes(folder, since).items() if last != failures.DONE}
    if not codes:
        return code if code > 0 else 128 - code
    permanent = {pod: last for pod, last in codes.items() if 0 < last < 128}  # it would come again
    codes = permanent or codes
    return first_failure({index: codes[pod] for index, pod in enumerate(sorted(codes))})[1]


def main(arguments: list[str]) -> int:
    """Print the code of the run that the environment names."""
    parser = argparse.ArgumentParser(
        "python -m trainer.program culprit",
        description="The exit code of a run, read from its pods' ledgers: below 128 it would end so again.",
        epilog="example: TRAINER_RUN=try TRAINER_RESULTS=runs python -m trainer.program culprit --since 1764085440 "
        "--code 134",
    )
    parser.add_argument("--since", type=float, required=True, help="seconds since 1970, when it was started")
    parser.add_argument("--code", type=int, required=True, help="what the starter knows")
    options = parser.parse_args(arguments)
    try:
        config = Config.from_env(os.environ)
    except ConfigError as failure:
        return end(failures.BAD_CONFIG, str(failure))
    print(
        find_culprit(RunDirectory(config.results, config.comparison, config.run), options.since, options.code)
    )
    return failures.DONE


def explain_planted_kill(faults: Path, since_s: float) -> str:
    """Return a sentence if a rank ended itself as a fault test asked; "" otherwise.

    Args:
        faults: folder of the marks that trainer/fault_injection.py leaves.
        since_s: seconds of Unix time; older marks belong to an earlier start.
    """
    with suppress(OSError, ValueError, KeyError):  # an unreadable volume must not change the exit code
        for mark in sorted(faults.glob("kill@*")):
            for line in mark.read_text().splitlines():
                happened = json.loads(line)
                if happened["t"] >= since_s:
                    return (
                        f"by run.config.fault, on rank {happened['rank']} at step {happened['step']} "
                        "[SL-kill-planted]"
                    )
    return ""
