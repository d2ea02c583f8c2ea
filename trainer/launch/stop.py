"""SIGTERM in the launcher, from its first moment to its last: heard once, a further one changes nothing.

Ctrl-C and a terminal that closes (SIGINT, SIGHUP) are the same wish, unless who started the process has them ignored
(nohup). SIGQUIT stays torch's: it ends the ranks at once.

Until main() listens the process just ends: nothing was started. Then the first signal interrupts what the launcher is
at, and while torch's agent runs the ranks, by torch's own exception: the agent passes it on and waits for the ranks,
which commit a checkpoint, until it is time to kill them. Ranks get another signal for it, for SIGTERM is what the agent
sends to those whose sibling has failed: they shall not wait for anything.

torch's own handler is not installed. It raises at every signal, so that a second one breaks off the waiting, and a
third leaves ranks behind (torch 2.13).
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

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # the second is what mpirun passes on to its processes as it is
OF_A_TERMINAL = (signal.SIGINT, signal.SIGHUP)
LEFT_TO_TORCH = "SIGQUIT"
TO_RANKS = signal.SIGUSR1
MEANT = {
    "SIGINT": " (Ctrl-C)",
    "SIGHUP": " (its terminal is closed)",
    "SIGUSR1": " (passed on by mpirun or SLURM)",
}
MARGIN_S = 15.0
"""Of the grace period, for what the launcher has to do behind its ranks; a third of a short one."""
LAST_S = 3.0
RANKS = (b"trainer.worker", b"trainer.environment.rank")
POLL_S = 0.05
PR_SET_PDEATHSIG = 1


class LauncherStopped(BaseException):  # so that nothing on the way takes it for an error
    """The launcher was told to stop."""


class Stop:
    """What the launcher knows of being told to stop.

    Attributes:
        asked_at: monotonic seconds of the first signal; None as long as there was none.
        asked_by: that signal, in words.
        interrupt: makes the exception that the first signal raises in the main thread; None = it is only noted.
    """

    def __init__(self) -> None:
        self.asked_at: float | None = None
        self.asked_by = ""
        self.interrupt: Callable[[], BaseException] | None = LauncherStopped

    def listen(self) -> None:
        """From here on signals are this object's."""
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
        """The outcome is known: what is heard from here on is noted and interrupts nothing."""
        self.interrupt = None

    def seconds_left(self, grace_s: float) -> float:
        """Of the grace period; infinite where nobody has asked."""
        return float("inf") if self.asked_at is None else self.asked_at + grace_s - time.monotonic()

    def watch(self, grace_s: float, last_deed: Callable[[], None], exit_code: int) -> None:
        """Ends ranks and process shortly before the grace period is over, wherever the launcher hangs then."""

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
    """Before anything is imported: the first process of a container has no default for a signal."""
    text = "before the launcher was there"
    os.write(2, f"stopped from outside (exit code 143):\n{text}\n".encode())
    with suppress(OSError):
        log = os.open("/dev/termination-log", os.O_WRONLY)
        os.write(
            log, b'{"exit_code": 143, "reason": "stopped from outside", "message": "%s"}\n' % text.encode()
        )
    os._exit(143)


def listen_early() -> None:
    """The first deed of a program."""
    for number in _heard():
        signal.signal(number, leave_at_once)


def ignore_further() -> None:
    """The last deed of a program whose exit code is settled. At its own end Python gives each signal its default back
    before it takes the libraries down (3.11, finisignal), and one more SIGTERM would make another end of it."""
    for number in _heard():
        signal.signal(number, signal.SIG_IGN)


def _heard() -> list[int]:
    return [*SIGNALS, *(n for n in OF_A_TERMINAL if signal.getsignal(n) is not signal.SIG_IGN)]


def end_with_launcher() -> None:
    """In a rank, as its first deed: the kernel kills it when the launcher that has started it is gone.

    In a container all ends with the first process. Elsewhere the ranks would train on, unseen, and write and remove
    checkpoints beside those of the next start, which takes the folder for free. The kernel looks at the thread that
    started the rank (prctl(2)): it is the launcher's main thread. A launcher that is gone by now it does not tell.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    launcher = os.environ.get(LAUNCHER_PID)
    if launcher and not Path(f"/proc/{launcher}").exists():
        os.kill(os.getpid(), signal.SIGKILL)


def rank_seconds(grace_s: float) -> int:
    """What of the grace period is the ranks'."""
    return int(grace_s - min(MARGIN_S, grace_s / 3))


def end_ranks(seconds: float) -> None:
    """Ends what is left: a rank that torch had only just started when it was interrupted is unknown to it."""
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
    """The ranks among the children of this process, but for those that have ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            words = (entry / "cmdline").read_bytes().split(b"\0") if int(parent) == os.getpid() else []
            if state != "Z" and any(rank in words for rank in RANKS):
                found.append(int(entry.name))
    return found
