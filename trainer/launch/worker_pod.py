"""First process of an MPIJob's worker pod: `python -m trainer.program worker_pod SECONDS [COMMAND ...]`.

mpirun starts the trainer from outside, beside this process, and all of a pod ends with its first process. So that one
is told to go, tells the trainer, and stays until it has ended: until then its ranks commit a checkpoint. It ends well
then (the operator of v1 calls the job failed when a worker has failed), and with 124 when SECONDS are over.

COMMAND is what the pod runs meanwhile, as sshd; the pod ends with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

TOO_LATE = 124  # of timeout(1)
OF_A_RUN = ("TRAINER_RUN", "TRAINER_RESULTS")
TRAINER = [b"-m", b"trainer"]
WATCHED = {signal.SIGTERM, signal.SIGCHLD}
POLL_S = 0.2
STARTED_BY_MPIRUN = "OMPI_COMM_WORLD_RANK"
CULPRIT_S = 3.0
LAST_WORDS_S = 1.0
"""For what the trainer has said last to reach mpirun."""


def main(arguments: list[str]) -> int:
    """Waits; returns the exit code."""
    try:
        deadline = time.monotonic() + float(arguments[0])
    except (IndexError, ValueError):
        print(__doc__, file=sys.stderr)
        return 2
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # an ignored one cannot be waited for
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    child = _start(arguments[1:]) if arguments[1:] else 0
    while (left := deadline - time.monotonic()) > 0:
        heard = signal.sigtimedwait(WATCHED, min(left, 60.0))
        codes = _reap()
        if child in codes:
            return codes[child]
        if heard and heard.si_signo == signal.SIGTERM:
            _stop_trainer()
            return 0
    return TOO_LATE


def leave_to_culprit(env: Mapping[str, str]) -> None:
    """What a trainer that has lost a peer does last. mpirun kills all of them when one has failed: a survivor that is
    faster than the culprit would keep it from saying why, in its ledger, where the launcher and people look."""
    if STARTED_BY_MPIRUN in env:
        time.sleep(CULPRIT_S)


def _start(command: list[str]) -> int:
    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)

    return subprocess.Popen(command, preexec_fn=unblock).pid


def _reap() -> dict[int, int]:
    """{pid: exit code} of the children that have ended; what has lost its parent in this pod is a child too."""
    ended = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            code = os.waitstatus_to_exitcode(status)
            ended[pid] = code if code >= 0 else 128 - code
    return ended


def _stop_trainer() -> None:
    for pid in find_trainers():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    found = False
    while find_trainers():
        found = True
        _reap()
        time.sleep(POLL_S)
    time.sleep(LAST_WORDS_S * found)


def find_trainers() -> list[int]:
    """Processes that are `python -m trainer` of the same run: mpirun gives them the pod's settings."""
    ours = {f"{name}={os.environ[name]}".encode() for name in OF_A_RUN if name in os.environ}
    if len(ours) < len(OF_A_RUN):
        return []
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (entry / "cmdline").read_bytes().split(b"\0")[1:3] != TRAINER:
                continue
            if ours <= {*(entry / "environ").read_bytes().split(b"\0")}:
                found.append(int(entry.name))
    return found
