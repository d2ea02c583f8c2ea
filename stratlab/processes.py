"""Start processes and end all their descendants.

torch's elastic launcher starts its workers in sessions of their own, so a process group does not reach them.
All descendants of one `Processes` carry the same unique variable, which identifies them.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from stratlab.user_error import UserError

MARK = "STRATLAB_REHEARSAL"
TICK_S = 0.1
CRASH = "Fatal Python error"
"""First text of a dump of Python's faulthandler."""
EXTENSIONS = "Extension modules:"
"""Start of its last line, which has some thousand characters."""
SEARCHED_BYTES = 1 << 20  # of the end of a log: the peers of a dead process print much after it
PORTS = range(20000, 32768)  # Linux gives outgoing connections ports from 32768, others from 49152
LEAST_S, MOST_S = 5.0, 60.0
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


class Processes:
    """Track the processes started here, and all their descendants."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.started: list[subprocess.Popen[bytes]] = []

    def start(
        self, arguments: Sequence[str], env: Mapping[str, str], log: Path, *, folder: str | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own; its output is appended to `log`.

        Raises:
            UserError: the program does not exist.
        """
        with log.open("ab") as output:
            try:
                process = subprocess.Popen(
                    list(arguments),
                    env={**env, MARK: self.mark},
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
            except (FileNotFoundError, PermissionError) as failure:
                raise UserError(
                    f"{arguments[0]}: cannot be started ({failure.strerror}) [SL-program-not-started]"
                ) from failure
        self.started.append(process)
        return process

    def members(self) -> list[psutil.Process]:
        """Return every living process that carries the mark."""
        return [process for process in psutil.process_iter() if self._is_member(process)]

    def _is_member(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            return False

    def stop(self, grace_s: float = 10.0) -> None:
        """End all processes: send SIGTERM to the groups; kill the rest once they are gone, or after `grace_s`.

        Also in a container, the remaining processes are killed as soon as its first process has ended.
        """
        for process in self._running():
            _signal_group(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self._running() and time.monotonic() < deadline:
            time.sleep(TICK_S)
        for process in self._running():
            _signal_group(process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10.0
        while (left := self.members()) and time.monotonic() < deadline:
            for member in left:
                try:
                    member.kill()
                except psutil.Error:
                    continue
            time.sleep(0.02)
        for process in self.started:
            if not _has_ended(process):
                process.wait(timeout=10.0)
        self.started.clear()

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self.started if not _has_ended(process)]


def _end_with_parent() -> None:
    """Request SIGTERM for a process whose parent was killed: a second start would meet it in the run's folder.

    The kernel watches the thread that started it (prctl(2)): use one that lives as long as the process.
    """
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the process has ended, also asking the kernel.

    `process.poll` and `process.wait` always fail if a signal's handler raised while either held Popen's lock
    (subprocess.py, `_internal_poll` and `_wait`).
    """
    if process.poll() is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def free_port() -> int:
    """Return a TCP port without a listener, from below the ports that systems give to outgoing connections.

    The system may give a port that it picked itself to another connection, until the intended process has bound it.

    Raises:
        UserError: no free port was found in many tries.
    """
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
    raise UserError(f"no free TCP port found between {PORTS.start} and {PORTS.stop - 1} [SL-no-free-port]")


def exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code as a shell or a container does: 128 + n for signal n; None while it runs."""
    code = process.poll()
    return 128 - code if code is not None and code < 0 else code


def tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log file, preceded by the stack of a process that a signal ended.

    The output of its peers would otherwise hide this stack.
    """
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - SEARCHED_BYTES))
        text = file.read().decode(errors="replace").strip()
    found = [line for line in text.splitlines() if not line.startswith(EXTENSIONS)]
    last = max(0, len(found) - lines)
    crash = next((i for i, line in enumerate(found[:last]) if line.startswith(CRASH)), last)
    if crash + lines < last:
        return "\n".join([*found[crash : crash + lines], "...", *found[last:]])
    return "\n".join(found[crash:])


class GrowingWait:
    """Compute how long until a message is repeated: twice as long each time, at most a minute.

    The wait begins with a message. Times are seconds of one clock.
    """

    def __init__(self, began: float, least_s: float = LEAST_S) -> None:
        self.began, self.told = began, began
        self.wait_s, self.least_s = least_s, least_s

    def is_over(self, now: float) -> bool:
        """Return whether to repeat the message; if so, lengthen the next wait."""
        if now - self.told < self.wait_s:
            return False
        self.told, self.wait_s = now, min(2 * self.wait_s, max(MOST_S, self.least_s))
        return True

    def is_least_over(self, now: float) -> bool:
        """Return whether a new message may be printed."""
        return now - self.told >= self.least_s
