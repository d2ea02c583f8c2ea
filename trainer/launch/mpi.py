"""An MPIJob: its launcher pod, `python -m trainer.mpi_launcher`, and the first process of its worker pods.

The launcher waits for the worker pods, starts `python -m trainer` once in each with mpirun, and ends with the
culprit's exit code. The workers see the variables of a PyTorchJob and train over torch's own rendezvous. MPI only
starts them and carries their output. The operator of MPIJob v1 reaches its workers by `kubectl exec` and gives them
no DNS names, so their addresses come from the API server. The operator of v2beta1 uses ssh and names that resolve.

    python -m trainer.program worker_pod SECONDS [COMMAND ...]     # the first process of a worker pod

mpirun starts the trainer in the worker pod from outside, as a process next to the first one, and the pod ends with
its first process. When Kubernetes stops the pod, the first process passes the signal to the trainer and stays until
the trainer has ended, so that its ranks can commit a checkpoint. It then ends with 0, because the operator of v1
treats the job as failed when a worker has failed. It ends with 124 when SECONDS are over. COMMAND is the pod's
program, for example sshd; the pod ends with it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from stratlab_spec import exit_codes as failures
from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import Config, ConfigError
from trainer.launch.ledger import end, find_culprit, read_last_codes
from trainer.launch.stop import TO_RANKS, LauncherStopped, Stop, rank_seconds

TOO_LATE = 124  # of timeout(1)
OF_A_RUN = ("TRAINER_RUN", "TRAINER_RESULTS")
TRAINER = [b"-m", b"trainer"]
WATCHED = {signal.SIGTERM, signal.SIGCHLD}
WORKER_POLL_S = 0.2
STARTED_BY_MPIRUN = "OMPI_COMM_WORLD_RANK"
CULPRIT_S = 3.0
LAST_WORDS_S = 1.0
"""Time for the trainer's last output to reach mpirun."""


def main_of_worker_pod(arguments: list[str]) -> int:
    """Wait; return the exit code."""
    try:
        deadline = time.monotonic() + float(arguments[0])
    except (IndexError, ValueError):
        print(__doc__, file=sys.stderr)
        return 2
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # it could not wait for an ignored signal
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    child = 0
    if command := arguments[1:]:
        child = subprocess.Popen(
            command, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        ).pid
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
    """Wait before a trainer that has lost a peer ends, so that the culprit can write its reason to its ledger.

    mpirun kills all processes when one has failed, and a survivor may end before the culprit.
    """
    if STARTED_BY_MPIRUN in env:
        time.sleep(CULPRIT_S)


def _reap() -> dict[int, int]:
    """Return {pid: exit code} of the children that have ended, including orphans of this pod."""
    ended = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = failures.from_status(os.waitstatus_to_exitcode(status))
    return ended


def _stop_trainer() -> None:
    for pid in find_trainers():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    found = False
    while find_trainers():
        found = True
        _reap()
        time.sleep(WORKER_POLL_S)
    time.sleep(LAST_WORDS_S * found)


def find_trainers() -> list[int]:
    """Return processes that are `python -m trainer` of the same run: mpirun gives them the pod's settings."""
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


MPI_FILES = Path("/etc/mpi")  # hostfile, and kubexec.sh in v1: mounted by the operators
KUBECTL = Path("/opt/kube/kubectl")  # brought by the init container of v1
RENDEZVOUS_PORT = 23456  # the training operator's for a PyTorchJob
POLL_S = 2.0
SIGNAL_POLL_S = 0.2
SAY_EVERY_S = 30.0
LOOK_S = 5.0
LINGER_S = 60.0
"""After a pod has failed mpirun has so much, or the grace period, to end the others: more than they take."""
LAST_S = 10.0
# Set by Kubernetes or MPI for this pod alone. PATH and HOME go along: the image is the same, and sshd has its own.
OWN_VARIABLES = ("HOSTNAME", "STRATLAB_NODE", "PWD", "OLDPWD", "SHLVL", "_", "NVIDIA_VISIBLE_DEVICES")
OWN_PREFIXES = ("KUBERNETES_", "OMPI_", "PMIX_", "I_MPI_", "HYDRA_", "CUDA_")

log = logging.getLogger("trainer")


def main() -> int:
    """Run the whole job; return the exit code that the operator of the job sees."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    stop = Stop()
    stop.listen()
    try:
        config = Config.from_env(os.environ)
        code = launch(config, read_hosts(MPI_FILES / "hostfile"), stop)
        stop.settle()
    except ConfigError as failure:
        stop.settle()
        return end(failures.BAD_CONFIG, str(failure))
    except LauncherStopped:
        return end(failures.TERMINATED, stop.asked_by)
    text = failures.reason(code)
    if config.mode == "check" and code == failures.CRASHED:
        text = "the check found problems, its table is above"
    return end(code, f"mpirun: {text}")


def launch(config: Config, hosts: list[str], stop: Stop) -> int:
    """Run the trainer in all workers, again while its exit code allows it; return the last exit code.

    The operator of v1 treats the job as failed when its launcher has failed, so the launcher itself starts the
    attempts. The operator of v2beta1 starts the launcher again. An end because a worker was stopped (143) does not
    count as an attempt.
    """
    by_exec = (MPI_FILES / "kubexec.sh").exists()
    left = config.max_attempts if by_exec else 1
    folder = RunDirectory(config.results, config.comparison, config.run)
    while True:
        find = find_by_kubectl if by_exec else find_by_name
        addresses = wait_for_workers(hosts, find, timeout_s=config.deadline_s)
        if addresses is None:
            log.error("some worker pods are missing after %d s [SL-workers-absent]", config.deadline_s)
            return failures.PEER_LOST
        env = {**os.environ, "PET_RDZV_ENDPOINT": f"{addresses[0]}:{RENDEZVOUS_PORT}"}
        began = time.time()
        lingering = Lingering(folder, began, max(LINGER_S, config.grace_s))
        code = _run(build_command(len(hosts), env), env, stop, config.grace_s, lingering)
        if code != failures.DONE:
            code = find_culprit(folder, began, code)
        left -= 1 if code != failures.TERMINATED or not by_exec else 0
        if code < 128 or not left:
            return code
        log.warning("%s (exit code %d), %d attempts left", failures.reason(code), code, left)


def read_hosts(hostfile: Path) -> list[str]:
    """Return the workers' names in order: the first word of each line ("ddp-worker-0 slots=2").

    Raises:
        ConfigError: the file is missing or empty.
    """
    try:
        lines = hostfile.read_text().splitlines()
    except OSError as failure:
        raise ConfigError(
            f"{hostfile}: {failure.strerror}; the operator of an MPIJob puts it there [SL-hostfile-unreadable]"
        ) from None
    hosts = [line.split()[0] for line in lines if line.strip()]
    if not hosts:
        raise ConfigError(f"{hostfile}: names no worker [SL-hostfile-empty]")
    return hosts


def wait_for_workers(
    hosts: list[str], find: Callable[[str], str | None], timeout_s: float, poll_s: float = POLL_S
) -> list[str] | None:
    """Return addresses of all workers, or None after `timeout_s`. v1 starts the launcher at once (mpi-operator issue
    386).
    """
    began = reported = time.monotonic()
    found: dict[str, str] = {}
    while True:
        for host in hosts:
            if host not in found and (address := find(host)):
                found[host] = address
        if len(found) == len(hosts):
            return [found[host] for host in hosts]
        now = time.monotonic()
        if now - began > timeout_s:
            return None
        if now - reported > SAY_EVERY_S:
            reported = now
            missing = [host for host in hosts if host not in found]
            log.info("waiting for %d of %d workers: %s ...", len(missing), len(hosts), missing[0])
        time.sleep(poll_s)


def find_by_name(host: str) -> str | None:
    """Return `host` itself once it resolves."""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return None
    return host


def find_by_kubectl(name: str, kubectl: Path = KUBECTL) -> str | None:
    """Return the address of a pod that is ready, by the rights that the operator gives the launcher."""
    done = subprocess.run(
        [str(kubectl), "get", "pod", name, "--output", "json"], capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        return None
    pod = json.loads(done.stdout)
    if "deletionTimestamp" in pod.get("metadata", {}):  # its stop was requested, and it still exists
        return None
    status = pod.get("status", {})
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))
    return status.get("podIP") if ready else None


def build_command(nodes: int, env: Mapping[str, str]) -> list[str]:
    """Return mpirun with one `python -m trainer` per node; variables are passed by name, so that their values stay
    hidden.
    """
    names = [n for n in sorted(env) if n not in OWN_VARIABLES and not n.startswith(OWN_PREFIXES)]
    forwarded = [part for name in names for part in ("-x", name)]
    return [
        "mpirun", "-np", str(nodes), "--map-by", "ppr:1:node", "--bind-to", "none",
        "--mca", "plm_rsh_no_tree_spawn", "1",  # workers cannot reach each other that way
        *forwarded, "python", "-m", "trainer",
    ]  # fmt: skip


class Lingering:
    """Detect an mpirun that stays although a pod has failed.

    If a node is lost, mpirun waits for a daemon that never answers, and the remaining pods would never end.

    Args:
        since: seconds since 1970; ends before it belong to an earlier attempt.
        seconds: how long it may stay.
    """

    def __init__(self, folder: RunDirectory, since: float, seconds: float) -> None:
        self._folder, self._since, self._seconds = folder, since, seconds
        self._looked = time.monotonic()
        self._failed_at: float | None = None

    def seconds_over(self) -> float:
        """Return the seconds since mpirun should have ended; negative before."""
        now = time.monotonic()
        if self._failed_at is None and now - self._looked >= LOOK_S:
            self._looked = now
            if any(read_last_codes(self._folder, self._since).values()):
                self._failed_at = now
        return -math.inf if self._failed_at is None else now - self._failed_at - self._seconds


def _run(
    command: list[str], env: Mapping[str, str], stop: Stop, grace_s: float, lingering: Lingering | None = None
) -> int:
    """Run mpirun; return its exit code.

    A stop is passed on as SIGUSR1, which mpirun forwards to its processes; they end on their own. SIGTERM to mpirun
    comes last, because it would kill them within a second (Open MPI 4.1).

    Raises:
        Stopped: after mpirun has ended, if there was a SIGTERM.
    """
    before, stop.interrupt = stop.interrupt, None
    process = subprocess.Popen(command, env=dict(env))
    passed_on, given_up, code = False, False, None
    while code is None:
        if stop.asked_at is not None and not passed_on:
            process.send_signal(TO_RANKS)
            passed_on = True
        if stop.seconds_left(grace_s) < grace_s - rank_seconds(grace_s):
            process.terminate()
        over_s = lingering.seconds_over() if lingering else -math.inf
        if over_s >= 0 and not given_up:
            log.warning("a pod has failed, and mpirun has not ended: it is ended here")
            process.terminate()
            given_up = True
        if over_s >= LAST_S:
            process.kill()
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(SIGNAL_POLL_S)
    stop.interrupt = before
    if stop.asked_at is not None:
        raise LauncherStopped
    return failures.from_status(code)
