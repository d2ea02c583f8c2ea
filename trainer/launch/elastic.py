"""Starts the ranks of this pod through torch's elastic launcher, in this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from trainer.launch.stop import LAUNCHER_PID, LEFT_TO_TORCH, TO_RANKS, Stop, rank_seconds
from trainer.settings.deepspeed_rules import has_gpu


def run_ranks(
    module: str, per_node: int, grace_s: float, stop: Stop, before: Callable[[], None] = lambda: None
) -> None:
    """Returns when all ranks of this pod have ended well.

    Args:
        module: that each rank runs.
        per_node: ranks of this pod.
        before: called when torch is there, and interrupted as the ranks are.

    Raises:
        ChildFailedError: torch's; a rank has failed.
        SignalException: torch's; this process was told to stop.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // per_node)))
    if not has_gpu():  # else each trace would say "ERROR gpuGetDeviceCount failed"
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException

    # the variable of --shutdown-timeout, an option that torch 2.11 does not have (30 s there)
    os.environ["PET_SHUTDOWN_TIMEOUT"] = str(rank_seconds(grace_s))
    options = ["--signals-to-handle", LEFT_TO_TORCH, "-m", module]  # the others are heard by `stop`
    if "PET_RDZV_ENDPOINT" in os.environ:
        if address := read_own_address():
            os.environ.setdefault("PET_LOCAL_ADDR", address)
    elif "PET_MASTER_ADDR" not in os.environ:
        options = ["--standalone", "--nproc-per-node", str(per_node), *options]
    os.environ[LAUNCHER_PID] = str(os.getpid())
    try:
        stop.interrupt = lambda: SignalException("stopped", TO_RANKS)
        before()
        with _heard_between_looks(stop):
            run.run(run.parse_args(options))
    finally:
        stop.interrupt = None


@contextmanager
def _heard_between_looks(stop: Stop) -> Iterator[None]:
    """While torch's agent looks at its ranks, ten times a second, a signal is noted, and heard when it has looked.

    Raised in there it may be lost: the agent times each look, and where the exception comes before its clock is read
    another one takes its place (`UnboundLocalError: ... 'start'`, torch 2.13, elastic/metrics/api.py), for which it
    ends the ranks at once instead of letting them save. Ranks that have failed are told as that; where all have ended
    well nobody waits for other pods, which may not come.
    """
    from torch.distributed.elastic.agent.server.api import WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    look = LocalElasticAgent._monitor_workers

    def look_undisturbed(agent: LocalElasticAgent, group: Any) -> Any:
        interrupt, stop.interrupt = stop.interrupt, None
        try:
            found = look(agent, group)
        finally:
            stop.interrupt = interrupt
        if (
            stop.asked_at is not None
            and interrupt
            and found.state in (WorkerState.HEALTHY, WorkerState.SUCCEEDED)
        ):
            raise interrupt()
        return found

    LocalElasticAgent._monitor_workers = look_undisturbed  # type: ignore[method-assign]
    try:
        yield
    finally:
        LocalElasticAgent._monitor_workers = look  # type: ignore[method-assign]


def read_own_address() -> str | None:
    """The address under which other pods reach this one; None on a machine that only knows its loopback.

    torch would hand out the host name, which nobody resolves in an MPIJob v1; and to torch a pod that comes back under
    the same name is the one it has lost.
    """
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return None
    return None if address.startswith("127.") else address
