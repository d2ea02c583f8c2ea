"""The other pods of a run: waited for as long as the chart says. A start that never had them all is no attempt.

Nodes come one at a time: of two pods one may run for hours before the other has a node. torch starts the ranks of a pod
when all pods have met, so the first rank's mark says that they have.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path

from trainer import failures
from trainer.failures import PeerLost
from trainer.launch.ledger import read_last_codes
from trainer.launch.node_rank import read_node_rank
from trainer.record.run_directory import RunDirectory

MARK = "STRATLAB_MARK"  # the file that a rank makes as its first deed
POLL_S = 0.5
SAY_EVERY_S = 30.0
CONNECT_S = 5.0

log = logging.getLogger("trainer")


class Peers(threading.Thread):
    """From the start of a pod to the meeting of all.

    Args:
        pod: this one's name.
        nodes: pods of the run.
        wait_s: how long this start may wait.
        on_met: called once, when all are there.
    """

    def __init__(
        self, folder: RunDirectory, pod: str, nodes: int, wait_s: float, on_met: Callable[[], None]
    ) -> None:
        super().__init__(name="peers", daemon=True)
        self.wait_s = max(1.0, wait_s)
        self.met_at: float | None = None
        """Seconds since 1970; None as long as somebody is missing."""
        self.in_vain = ""
        """Why nobody will come any more."""
        self._folder, self._pod, self._nodes, self._on_met = folder, pod, nodes, on_met
        self._began = time.time()
        self._over = threading.Event()
        self._mark = Path(tempfile.mkdtemp(prefix="stratlab-")) / "mark"
        self._store: object = None

    def set_environment(self, env: MutableMapping[str, str]) -> None:
        """How long torch waits, by its own options; and where a rank leaves its mark."""
        env[MARK] = str(self._mark)
        option = "join_timeout" if "PET_RDZV_ENDPOINT" in env else "timeout"
        given = [each for each in env.get("PET_RDZV_CONF", "").split(",") if each.partition("=")[0] != option]
        if "PET_RDZV_ENDPOINT" in env or "PET_MASTER_ADDR" in env:
            env["PET_RDZV_CONF"] = ",".join([*filter(None, given), f"{option}={self.wait_s:.0f}"])

    def keep_store(self, env: Mapping[str, str], open_store: Callable[[str, int], object]) -> None:
        """In the first pod: the store of the rendezvous lives as long as this launcher, not as long as one meeting.

        For the next rung the pods meet again at the same port. A server that ends when Python collects the last
        meeting's takes with it whoever was there earlier for the next one.

        Args:
            open_store: torch's server at (host, port); its RuntimeError says that the port cannot be had.
        """
        if self._store is not None or read_node_rank(env, self._pod) != 0:
            return
        host, _, port = env["PET_RDZV_ENDPOINT"].rpartition(":")
        self._store = open_store(host, int(port))

    def run(self) -> None:
        told = time.monotonic()
        while not self._over.wait(POLL_S):
            if self._look():
                return
            if time.monotonic() - told >= SAY_EVERY_S:
                told = time.monotonic()
                waited_s = time.time() - self._began
                what = f"all {self._nodes} pods" if self._nodes > 1 else "the ranks to meet"
                log.info("waiting for %s, %.0f s of %.0f s", what, waited_s, self.wait_s)
            if why := self._find_final_end():
                self.in_vain = why
                os.kill(os.getpid(), signal.SIGTERM)  # torch's launcher has no other way out
                return

    def stop(self) -> None:
        """Ends the thread, after a last look."""
        self._over.set()
        self.join()
        self._look()
        self._mark.unlink(missing_ok=True)
        self._mark.parent.rmdir()

    def _look(self) -> bool:
        if self.met_at is None and self._mark.exists():
            self.met_at = time.time()
            self._on_met()
        return self.met_at is not None

    def _find_final_end(self) -> str:
        for pod, code in read_last_codes(self._folder, self._began).items():
            if pod != self._pod and failures.DONE < code < 128:
                return (
                    f"pod {pod} has ended for good: {failures.reason(code)} (exit code {code}) "
                    "[SL-pod-ended-for-good]"
                )
        return ""


def leave_mark(env: Mapping[str, str]) -> None:
    """A rank's first deed."""
    if path := env.get(MARK):
        Path(path).touch()


def wait_for_host(endpoint: str, wait_s: float, poll_s: float = 0.5) -> None:
    """Until the pod that hosts the rendezvous listens: torch gives up on it after its read timeout, of seconds.

    Raises:
        PeerLost: it does not within `wait_s`.
    """
    host, _, port = endpoint.rpartition(":")
    began = time.monotonic()
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=CONNECT_S):
                return
        except OSError as failure:
            if time.monotonic() - began > wait_s:
                raise PeerLost(
                    f"{endpoint} was not there for {wait_s:.0f} s: {failure} [SL-host-absent]"
                ) from failure
        time.sleep(poll_s)
