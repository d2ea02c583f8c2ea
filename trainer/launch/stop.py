"""Handle SIGTERM in the launcher from the first signal to the end; further signals change nothing.

Ctrl-C and a closed terminal (SIGINT, SIGHUP) count as the same request, unless the parent process ignores them
(nohup). torch keeps SIGQUIT: it ends the ranks at once.

Until main() listens, the process just ends, because it has started nothing yet. After that the first signal
interrupts the launcher's current work. While torch's agent runs the ranks, it does so by torch's own exception: the
agent passes the signal on and waits for the ranks, which commit a checkpoint, until it is time to kill them. Ranks
receive a different signal for a stop, because the agent sends SIGTERM to ranks whose sibling has failed, and those
must not wait.

torch's own handler is not installed. It raises at every signal, so that a second one interrupts the waiting and a
third leaves orphaned ranks (torch 2.13).
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from stratlab_spec.run_directory import LAUNCHER_PID

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # mpirun passes the second on to its processes unchanged
OF_A_TERMINAL = (signal.SIGINT, signal.SIGHUP)
LEFT_TO_TORCH = "SIGQUIT"
TO_RANKS = signal.SIGUSR1
MEANT = {
    "SIGINT": " (Ctrl-C)",
    "SIGHUP": " (its terminal is closed)",
    "SIGUSR1": " (passed on by mpirun or SLURM)",
}
MARGIN_S = 15.0
"""Part of the grace period for the launcher's work after its ranks have ended; a third of a short period."""
LAST_S = 3.0
RANKS = (b"trainer.worker", b"trainer.environment.rank")
POLL_S = 0.05
PR_SET_PDEATHSIG = 1


class LauncherStopped(BaseException):  # so that nothing on the way takes it for an error
    """Raised in the launcher when a signal requests a stop."""


class Stop:
    """The launcher's knowledge of a request to stop.

    Attributes:
        asked_at: monotonic seconds of the first signal; None before it.
        asked_by: that signal, in words.
        interrupt: builds the exception that the first signal raises in the main thread; None = it is only noted.
    """

    def __init__(self) -> None:
        self.asked_at: float | None = None
        self.asked_by = ""
        self.interrupt: Callable[[], BaseException] | None = LauncherStopped

    def listen(self) -> None:
        """Handle signals by this object."""
        for number in _heard():
            signal.signal(number, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked_at is None:
            self.asked_at = time.monotonic()
            name = signal.Signals(number).name
            self.asked_by = f"by {name}{MEANT.get(name, '')}"
            if self.interrupt:
                raise self.interrupt()

    def settle(self) -> None:
        """Ignore later signals: the outcome is known."""
        self.interrupt = None

    def seconds_left(self, grace_s: float) -> float:
        """Return the remaining seconds of the grace period; infinite without a request to stop."""
        return float("inf") if self.asked_at is None else self.asked_at + grace_s - time.monotonic()

    def watch(self, grace_s: float, last_deed: Callable[[], None], exit_code: int) -> None:
        """End ranks and process shortly before the grace period is over, even if the launcher hangs."""

        def end_in_time() -> None:
            while self.seconds_left(grace_s) > LAST_S:
                time.sleep(min(1.0, LAST_S))
            for rank in find_ranks():
                with suppress(ProcessLookupError):
                    os.kill(rank, signal.SIGKILL)
            with suppress(Exception):
                last_deed()
            os._exit(exit_code)

        threading.Thread(target=end_in_time, name="grace", daemon=True).start()


def leave_at_once(number: int, frame: FrameType | None) -> None:
    """Install a handler before anything is imported: the first process of a container has no default for a signal."""
    text = "before the launcher was there"
    os.write(2, f"stopped from outside (exit code 143):\n{text}\n".encode())
    with suppress(OSError):
        log = os.open("/dev/termination-log", os.O_WRONLY)
        os.write(
            log, b'{"exit_code": 143, "reason": "stopped from outside", "message": "%s"}\n' % text.encode()
        )
    os._exit(143)


def listen_early() -> None:
    """Handle signals before anything else in a program."""
    for number in _heard():
        signal.signal(number, leave_at_once)


def ignore_further() -> None:
    """Ignore signals at the end of a program, when its exit code is settled.

    At its own end Python restores each signal's default before it closes the libraries (3.11, finisignal), and one
    more SIGTERM would change the exit code.
    """
    for number in _heard():
        signal.signal(number, signal.SIG_IGN)


def _heard() -> list[int]:
    return [*SIGNALS, *(n for n in OF_A_TERMINAL if signal.getsignal(n) is not signal.SIG_IGN)]


def end_with_launcher() -> None:
    """In a rank, before anything else: let the kernel kill it when its launcher ends.

    In a container all processes end with the first one. Elsewhere the ranks would continue unnoticed, and write and
    remove checkpoints while the next start uses the folder. The kernel watches the thread that started the rank
    (prctl(2)): the launcher's main thread. It does not report a launcher that has already ended, so that case is
    checked here.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    launcher = os.environ.get(LAUNCHER_PID)
    if launcher and not Path(f"/proc/{launcher}").exists():
        os.kill(os.getpid(), signal.SIGKILL)


def rank_seconds(grace_s: float) -> int:
    """Return the ranks' share of the grace period, in seconds."""
    return int(grace_s - min(MARGIN_S, grace_s / 3))


def end_ranks(seconds: float) -> None:
    """End the remaining ranks: torch does not know a rank that it had just started when it was interrupted."""
    deadline = time.monotonic() + seconds
    for rank in find_ranks():
        with suppress(ProcessLookupError):
            os.kill(rank, signal.SIGTERM)
    while find_ranks() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for rank in find_ranks():
        with suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)


def find_ranks() -> list[int]:
    """Return the ranks among this process's children, except those that have ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            words = (entry / "cmdline").read_bytes().split(b"\0") if int(parent) == os.getpid() else []
            if state != "Z" and any(rank in words for rank in RANKS):
                found.append(int(entry.name))
    return found
