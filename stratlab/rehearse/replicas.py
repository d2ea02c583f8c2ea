"""Runs pods to their end, and says which exit code counts."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stratlab.machine.processes import TICK_S, Processes, exit_code
from stratlab.rendering.pod_commands import Command, Pod

PEER_LOST = 134
AFTER_FAILURE_S = 30.0


@dataclass(frozen=True)
class PodEnd:
    """How a pod ended; `stopped` when only because another one had failed and this one went on."""

    pod: str
    log: Path
    code: int
    stopped: bool = False


@dataclass
class _Replica:
    pod: Pod
    log: Path
    waiting: list[Command]
    process: subprocess.Popen[bytes]


def run_pods(
    pods: Sequence[Pod],
    processes: Processes,
    machine_env: Mapping[str, str],
    logs: Mapping[str, Path],
    tick: Callable[[], None],
    *,
    after_failure_s: float = AFTER_FAILURE_S,
) -> list[PodEnd]:
    """Starts all pods at once and returns how they ended, in the order in which they did.

    When one has failed the others have `after_failure_s` to notice and to end by themselves; then they are
    stopped. In any case nothing of them runs any more on return. `logs` is by pod name; `tick` is called all
    along.
    """
    ends: list[PodEnd] = []
    deadline = float("inf")

    def start(command: Command, log: Path) -> subprocess.Popen[bytes]:
        return processes.start(command.arguments, {**machine_env, **command.env}, log, folder=command.folder)

    try:
        running = [
            _Replica(pod, logs[pod.name], list(pod.commands[1:]), start(pod.commands[0], logs[pod.name]))
            for pod in pods
        ]
        while running:
            for replica in list(running):
                code = exit_code(replica.process)
                if code is None:
                    continue
                if code == 0 and replica.waiting:
                    replica.process = start(replica.waiting.pop(0), replica.log)
                    continue
                running.remove(replica)
                ends.append(PodEnd(replica.pod.name, replica.log, code))
                if code:
                    deadline = min(deadline, time.monotonic() + after_failure_s)
            if time.monotonic() > deadline:
                left = [(replica, replica.process) for replica in running]
                processes.stop()
                ends += [
                    PodEnd(replica.pod.name, replica.log, exit_code(process) or 0, stopped=True)
                    for replica, process in left
                ]
                break
            tick()
            time.sleep(TICK_S)
    finally:
        processes.stop()
    return ends


def deciding_end(ends: Sequence[PodEnd]) -> PodEnd:
    """The end that is the run's: the first failure; but a permanent one wins over a signal, that over 134.

    A code below 128 is permanent: the operator fails the job for it, whatever the others ended with. 134 says
    'a peer was lost', so whoever has another code is the peer.
    """
    failed = [end for end in ends if end.code and not end.stopped]
    permanent = [end for end in failed if end.code < 128]
    culprits = [end for end in failed if end.code != PEER_LOST]
    return (permanent or culprits or failed or list(ends))[0]
