"""Forks N ranks per scenario from one parent that has imported the heavy packages already.

A gloo scenario of two ranks takes 0.3-3 s instead of 15 s under torchrun. The parent must only import: a thread
pool that exists before the fork does not survive it. `warm` imports also what the libraries import lazily.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

HEAVY = (
    "torch",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.distributed.fsdp",
    "transformers.models.vit.modeling_vit",
    "deepspeed",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.stage_1_and_2",
    "sklearn.datasets",
)


@dataclass(frozen=True)
class RankResult:
    rank: int
    exit_code: int
    output: str


@functools.cache
def warm() -> None:
    """Imports, without computing anything."""
    os.environ.update(OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu", TRANSFORMERS_VERBOSITY="error")
    for name in HEAVY:
        importlib.import_module(name)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fork_ranks(
    target: Callable[[], Any],
    world_size: int,
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
    grace_s: float = 5.0,
) -> list[RankResult]:
    """Runs `target` in forked processes with the variables that torchrun sets; keeps every rank's output.

    A rank that hangs does not hang the test: all are killed at `timeout_s`, or `grace_s` after the first failure.
    """
    warm()
    port = free_port()
    sys.stdout.flush()
    sys.stderr.flush()
    logs = [tempfile.TemporaryFile() for _ in range(world_size)]  # noqa: SIM115
    processes = []
    for rank in range(world_size):
        process = os.fork()
        if process == 0:
            _be_rank(target, rank, world_size, port, logs[rank].fileno(), env or {})
        processes.append(process)
    codes = _wait(processes, timeout_s, grace_s)
    results = []
    for rank, log in enumerate(logs):
        log.seek(0)
        results.append(RankResult(rank, codes[rank], log.read().decode(errors="replace")))
        log.close()
    return results


def run_ranks(target: Callable[[], Any], world_size: int, **options: Any) -> None:
    """`fork_ranks`, and an assertion that shows the output of the ranks that failed."""
    results = fork_ranks(target, world_size, **options)
    failed = [r for r in results if r.exit_code > 0] or [r for r in results if r.exit_code]
    assert not failed, "\n".join(
        f"rank {r.rank} ended with {r.exit_code}\n{r.output[-3000:]}" for r in failed
    )


def _be_rank(
    target: Callable[[], Any], rank: int, world: int, port: int, log: int, env: Mapping[str, str]
) -> None:
    code = 1
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(world),
            LOCAL_WORLD_SIZE=str(world),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            **env,
        )
        target()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # no atexit handlers: they belong to the parent


def _wait(processes: list[int], timeout_s: float, grace_s: float) -> list[int]:
    codes: dict[int, int] = {}
    deadline = time.monotonic() + timeout_s
    while len(codes) < len(processes):
        for rank, process in enumerate(processes):
            if rank in codes:
                continue
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                codes[rank] = os.waitstatus_to_exitcode(status)
                if codes[rank] != 0:
                    deadline = min(deadline, time.monotonic() + grace_s)
        if time.monotonic() > deadline:
            for rank, process in enumerate(processes):
                if rank not in codes:
                    os.kill(process, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.02)
    return [codes[rank] for rank in range(len(processes))]
