"""Decide where and when the pods of a run meet: each pod's ranks, its waiting time, and who may write the folder.

Ranks follow the pods: pod `ddp-worker-2` of 2 processes each holds ranks 4 and 5, and worker-0 has rank 0's console.
torch's c10d rendezvous numbers the nodes in the order of their addresses as text, in which 10.1.0.10 comes before
10.1.0.9 (dynamic_rendezvous.py, torch 2.13). So rank 0 can be in any pod, for example after a restart. The launcher
owns the store, not rank 0, so that the ranks can be reassigned before the process group is built.

A pod waits for the other pods as long as the chart allows. A start that never had them all does not count as an
attempt. Nodes arrive one at a time: one of two pods may run for hours before the other has a node. torch starts the
ranks of a pod when all pods have met, so the first rank's mark shows that they have met.

Only one start may write a run directory: the launcher of rank 0 writes a mark every two seconds. Two releases of one
name in two namespaces that share a volume, or a rehearsal during a cluster run, would write into one folder. The
check watches whether another start's file changes; its age does not matter. Clocks of nodes differ, and a killed pod
leaves its file.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stratlab_spec import exit_codes as failures
from stratlab_spec.exit_codes import PeerLost
from stratlab_spec.run_directory import RunDirectory, read_line, write_json
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.wording import name_removal
from trainer.launch.ledger import read_last_codes

POD_INDEX = re.compile(r"-worker-(\d+)$")


def read_node_rank(env: Mapping[str, str], pod_name: str) -> int | None:
    """Return the pod's index, or None if torch's own numbering is right: no rendezvous, or pods without an index."""
    found = POD_INDEX.search(pod_name)
    return int(found.group(1)) if found and "PET_RDZV_ENDPOINT" in env else None


def holds_rank_0(env: Mapping[str, str], pod_name: str, nodes: int) -> bool:
    """Return whether the first rank will be in this pod; False if only torch's rendezvous will know."""
    if nodes == 1:
        return True
    node = read_node_rank(env, pod_name)
    if node is None and "PET_RDZV_ENDPOINT" not in env:  # a TrainJob, or a PyTorchJob with a master
        return env.get("PET_NODE_RANK") == "0"
    return node == 0


def read_rank(env: Mapping[str, str], pod_name: str) -> int:
    """Return this process's rank, from the variables of torch's launcher and its pod."""
    node = read_node_rank(env, pod_name)
    if node is None:
        return int(env["RANK"])
    return node * int(env["LOCAL_WORLD_SIZE"]) + int(env["LOCAL_RANK"])


MARK = "STRATLAB_MARK"  # the file that a rank makes as its first deed
POLL_S = 0.5
SAY_EVERY_S = 30.0
CONNECT_S = 5.0

log = logging.getLogger("trainer")


class Peers(threading.Thread):
    """Wait from the start of a pod until all pods have met.

    Args:
        pod: name of this pod.
        nodes: pods of the run.
        wait_s: how long this start may wait.
        on_met: called once, when all have met.
    """

    def __init__(
        self, folder: RunDirectory, pod: str, nodes: int, wait_s: float, on_met: Callable[[], None]
    ) -> None:
        super().__init__(name="peers", daemon=True)
        self.wait_s = max(1.0, wait_s)
        self.met_at: float | None = None
        """Seconds since 1970; None while a pod is missing."""
        self.in_vain = ""
        """Why no further pod will come."""
        self._folder, self._pod, self._nodes, self._on_met = folder, pod, nodes, on_met
        self._began = time.time()
        self._over = threading.Event()
        self._mark = Path(tempfile.mkdtemp(prefix="stratlab-")) / "mark"
        self._store: object = None

    def set_environment(self, env: MutableMapping[str, str]) -> None:
        """Set how long torch waits, by its own options, and the place of the ranks' marks."""
        env[MARK] = str(self._mark)
        option = "join_timeout" if "PET_RDZV_ENDPOINT" in env else "timeout"
        given = [each for each in env.get("PET_RDZV_CONF", "").split(",") if each.partition("=")[0] != option]
        if "PET_RDZV_ENDPOINT" in env or "PET_MASTER_ADDR" in env:
            env["PET_RDZV_CONF"] = ",".join([*filter(None, given), f"{option}={self.wait_s:.0f}"])

    def keep_store(self, env: Mapping[str, str], open_store: Callable[[str, int], object]) -> None:
        """In the first pod, keep the store of the rendezvous for as long as this launcher lives.

        For the next rung the pods meet again at the same port. A server that ended with the previous meeting would
        drop the pods that had already joined the next one.

        Args:
            open_store: torch's server at (host, port); it raises RuntimeError if the port is taken.
        """
        if self._store is not None or read_node_rank(env, self._pod) != 0:
            return
        host, _, port = env["PET_RDZV_ENDPOINT"].rpartition(":")
        self._store = open_store(host, int(port))

    def run(self) -> None:
        reported = time.monotonic()
        while not self._over.wait(POLL_S):
            if self._look():
                return
            if time.monotonic() - reported >= SAY_EVERY_S:
                reported = time.monotonic()
                waited_s = time.time() - self._began
                what = f"all {self._nodes} pods" if self._nodes > 1 else "the ranks to meet"
                log.info("waiting for %s, %.0f s of %.0f s", what, waited_s, self.wait_s)
            if why := self._find_final_end():
                self.in_vain = why
                os.kill(os.getpid(), signal.SIGTERM)  # torch's launcher has no other way out
                return

    def stop(self) -> None:
        """End the thread, after a last look."""
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
                why = f"{failures.reason(code)} (exit code {code})"
                return f"pod {pod} has ended and will not restart: {why} [SL-pod-ended-for-good]"
        return ""


def leave_mark(env: Mapping[str, str]) -> None:
    """Write a rank's mark, before anything else."""
    if path := env.get(MARK):
        Path(path).touch()


def wait_for_host(endpoint: str, wait_s: float, poll_s: float = 0.5) -> None:
    """Wait until the pod that hosts the rendezvous listens: torch gives up after its read timeout, of seconds.

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
                absent = f"{endpoint} did not answer for {wait_s:.0f} s: {failure} [SL-host-absent]"
                raise PeerLost(absent) from failure
        time.sleep(poll_s)


RENEW_S = 2.0
WATCH_S = 8.0
"""Several renewals: a busy node or a slow volume may leave one out."""


class Lease(threading.Thread):
    """The claim of one launcher: `check` before anything is read, `take` before it is written, `release` at the end.

    Args:
        launcher: of this start.
        pod: its name, for the sentence that the other one gets.
    """

    def __init__(self, folder: RunDirectory, launcher: str, pod: str) -> None:
        super().__init__(name="lease", daemon=True)
        self._folder = folder
        own = {"launcher": launcher, "pod": pod, "host": socket.gethostname()}
        self._facts = own | _describe(os.getpid())
        self._released = threading.Event()
        self._left: dict[str, Any] = {}
        """An earlier start's file, which does not change."""

    def take(self) -> None:
        """Claim the folder.

        Raises:
            ConfigError: another start is at work in it.
        """
        self.check()
        self._write(0)
        self.start()

    def check(self) -> None:
        """Watch the file of an earlier start for a few seconds: does it still change? This start does not write.

        Raises:
            ConfigError: it does.
        """
        held = _read(self._folder)
        if held in ({}, self._left):
            return
        process = _describe(held.get("pid", 0))
        # of this machine or container: it may be suspended (Ctrl-Z) while its ranks train; others cannot be checked
        is_there = process and process["pid"] != os.getpid() and process.items() <= held.items()
        if again := held if is_there else _watch(self._folder, held):
            who = f"pod {again.get('pod')} on {again.get('host')}, process {again.get('pid', 'unknown')}"
            raise ConfigError(
                f"{self._folder.path}: is being written by another start of this run, {who}; end that start "
                "first, or choose another name (TRAINER_RUN) [SL-run-being-written]"
            )
        self._left = held

    def run(self) -> None:
        beat = 0
        while not self._released.wait(RENEW_S):
            beat += 1
            self._write(beat)

    def release(self) -> None:
        self._released.set()
        if self.ident is not None:
            self.join()
            with suppress(OSError):
                self._folder.lease.unlink(missing_ok=True)

    def _write(self, beat: int) -> None:
        with suppress(OSError):  # a full volume costs the protection, not the run
            if not beat:  # later it was removed, and must not be recreated
                self._folder.path.mkdir(parents=True, exist_ok=True)
            write_json(self._folder.lease, {**self._facts, "beat": beat})


def _describe(pid: int) -> dict[str, Any]:
    """Return an existing process: its number, its moment of start, and the container that counts it; {} if it does not
    exist.
    """
    with suppress(OSError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if state != "Z":
            return {"pid": pid, "began": rest[18], "seen_from": os.readlink("/proc/self/ns/pid")}
    return {}


def _read(folder: RunDirectory) -> dict[str, Any]:
    try:
        return read_line(folder.lease.read_bytes())
    except OSError:
        return {}


def _watch(folder: RunDirectory, held: dict[str, Any]) -> dict[str, Any]:
    """Return the file as soon as it differs from `held`; {} if it does not within WATCH_S, or is gone."""
    deadline = time.monotonic() + WATCH_S
    while time.monotonic() < deadline:
        time.sleep(0.2)
        if (now := _read(folder)) != held:
            return now
    return {}


def refuse_finished(config: Config, folder: RunDirectory, env: Mapping[str, str]) -> None:
    """Reject a finished run; evaluations and checks of the environment pass."""
    if config.mode == "train" and folder.summary.exists():
        raise ConfigError(
            f"{folder.path}: this run has finished already; choose another name (TRAINER_RUN) or comparison "
            f"(TRAINER_COMPARISON), or remove the folder [SL-run-finished]: {name_removal(folder.path, env)}"
        )
