"""Forks N ranks per scenario from one warmed process: a gloo scenario of two ranks takes 0.3-3 s instead of 15 s.

The warmed process, the nursery, is an interpreter of its own that imports the heavy packages once and never computes:
a thread pool that exists before a fork does not survive it, and pytest's process has computed by then.
What a rank shall do travels as a cloudpickle, so that closures and lambdas work.

    python -m tests.ranks FOLDER PID        # the nursery, one for all test processes: see tests/session.py
"""

import contextlib
import faulthandler
import functools
import gc
import importlib
import os
import pickle
import re
import resource
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import cloudpickle

from stratlab.machine import EXTENSIONS, free_port
from tests.budget import charge, running_test
from tests.programs import HANDLES, STARTS, serve_program, write_stand_in
from tests.session import TICK_S, find_server, has_ended, tell_address
from tests.tiers import refuse_in_fast

HEAVY = (  # with pytest: a function of a test file brings its file's imports into the rank
    "torch", "torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.fsdp",
    "torch.distributed.checkpoint.state_dict", "torch.distributed.pipelining.schedules",
    "torch.distributed.tensor.parallel", "transformers.models.vit.modeling_vit",
    "transformers.models.qwen2.modeling_qwen2", "transformers.models.qwen3_moe.modeling_qwen3_moe", "peft",
    "deepspeed", "deepspeed.runtime.zero.stage3", "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.module_inject.auto_ep_layer", "deepspeed.runtime.zero.muon.muon_optimizer", "deepspeed.comm.mori",
    "deepspeed.ops.op_builder.all_ops", "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.utils.pin_memory", "torch._subclasses.schema_check_mode", "torch.distributed._tools.fsdp2_mem_tracker",
    "torch.distributed.checkpoint._fsspec_filesystem", "torch.profiler._cupti_monitor",
    "torch.utils.serialization.config", "transformers.models.vit.image_processing_vit",
    "peft.utils.transformers_weight_conversion", "setuptools", "torch.distributed.run",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "torch.distributed.elastic.agent.server.local_elastic_agent", "msgspec", "pydantic._internal._dataclasses",
    "pytest", "stratlab_spec.settings.rules", "trainer.memory_estimation.steps", "trainer.data.images",
    "trainer.data.text.token_rows", "trainer.data.text.tokenizer", "trainer.models.cnn", "trainer.models.export",
    "trainer.models.hugging_face", "trainer.tasks.image_task", "trainer.tasks.text_task",
    "trainer.measuring.operators", "trainer.worker", "trainer.strategies.ddp", "trainer.strategies.fsdp",
    "trainer.strategies.single", "trainer.strategies.zero", "trainer.strategies.nd",
)  # fmt: skip
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "DS_ACCELERATOR": "cpu",
    "TRANSFORMERS_VERBOSITY": "error",
    # With AVX-512 a product of bf16 numbers takes 1 MB inside, without it 83 kB: no test may depend on the CPU.
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "KINETO_LOG_LEVEL": "99",  # as trainer/__main__.py sets it without a GPU; read when torch is loaded
}
CORRUPT = re.compile(r"^(malloc|free|realloc|double free|corrupted|munmap_chunk)\b.*", re.MULTILINE)
"""First words of glibc's sentences about a heap."""
RANKS = b"r"
"""First byte of a conversation; the other kind is a program's (tests/programs.py)."""


@dataclass(frozen=True)
class RankResult:
    rank: int
    exit_code: int
    output: str


def fork_ranks(
    target: Callable[[], Any],
    world_size: int,
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 300.0,
    grace_s: float = 5.0,
) -> list[RankResult]:
    """Runs `target` in forked processes with the variables that torchrun sets; keeps every rank's output.

    A rank that hangs does not hang the test: all are killed at `timeout_s`, or `grace_s` after the first failure.
    """
    refuse_in_fast("rank processes")
    nursery = _reach_nursery()
    _send(nursery, (cloudpickle.dumps(target), world_size, dict(env or {}), timeout_s, grace_s))
    results, cpu_s = _receive(nursery)
    charge(cpu_s, running_test())
    return [RankResult(*fields) for fields in results]


def run_ranks(target: Callable[[], Any], world_size: int, **options: Any) -> None:
    """`fork_ranks`, and an assertion that shows the output of the ranks that failed.

    A rank whose heap glibc finds corrupt is told as a warning, and all run once more: it happened once in some ten
    thousand tests, inside a gloo collective, and never again (LAB.md, 2026-11-26). Twice in a row is a failure.
    """
    results = fork_ranks(target, world_size, **options)
    if any(is_heap_corrupt(each) for each in results):
        told = next(each for each in results if is_heap_corrupt(each)).output.partition(EXTENSIONS)[0][-3000:]
        warnings.warn(f"a rank's heap was corrupt, its test is repeated:\n{told}", stacklevel=2)
        results = fork_ranks(target, world_size, **options)
    ended = [r for r in results if r.exit_code]
    # the first failure has the others killed after a while
    failed = [r for r in ended if r.exit_code != -signal.SIGKILL] or ended
    assert not failed, "\n".join(
        f"rank {r.rank} ended with {r.exit_code}\n{r.output.partition(EXTENSIONS)[0][-3000:]}" for r in failed
    )


def is_heap_corrupt(result: RankResult) -> bool:
    return result.exit_code == -signal.SIGABRT and bool(CORRUPT.search(result.output))


@functools.cache
def _reach_nursery() -> IO[bytes]:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(find_server("tests.ranks"))
        line.sendall(RANKS)
        return line.makefile("rwb")


def _send(pipe: IO[bytes], content: Any) -> None:
    body = pickle.dumps(content)
    pipe.write(struct.pack("Q", len(body)) + body)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    size = pipe.read(8)
    if len(size) < 8:
        raise EOFError("the other side has ended")
    return pickle.loads(pipe.read(struct.unpack("Q", size)[0]))


def _be_nursery(folder: Path, until: int) -> None:
    os.environ.update(SETTINGS)
    gc.disable()  # a fifth of the imports' time would go into looking for what they do not throw away
    for name in HEAVY:
        with contextlib.suppress(ModuleNotFoundError):  # other supported versions do not have all of them
            importlib.import_module(name)
    _share_gloo_devices()
    gc.enable()
    gc.freeze()  # what lives here lives for ever: a rank's collections need not look at it
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(folder / "socket"))
        door.listen()
        door.settimeout(TICK_S)
        write_stand_in(str(folder / "socket"))
        tell_address(folder, str(folder / "socket"))
        while not has_ended(until):
            with contextlib.suppress(TimeoutError):
                line, _ = door.accept()
                if os.fork() == 0:
                    door.close()
                    _serve(line)
                line.close()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)


def _share_gloo_devices() -> None:
    """All groups of a process go over one device.

    By default each has its own, whose thread wakes up 93 times a second (torch 2.13.0) as long as the process lives:
    ranks that make hundreds of groups, one test after the other, spent a third of their time on that.
    """
    gloo: Any = sys.modules["torch.distributed"].ProcessGroupGloo  # type: ignore[attr-defined]
    build = gloo.__init__

    @functools.cache
    def open_device(process: int) -> Any:
        return gloo.create_default_device()

    def build_on_it(self: Any, store: Any, rank: int, size: int, timeout: Any) -> None:
        options = gloo._Options()
        options._timeout, options._devices = timeout, [open_device(os.getpid())]
        build(self, store, rank, size, options)

    gloo.__init__ = build_on_it


def _serve(line: socket.socket) -> NoReturn:
    """One test process and its ranks, or one program, in a process of their own."""
    line.settimeout(None)
    kind, handles, _, _ = socket.recv_fds(line, 1, HANDLES)
    if kind == STARTS:
        serve_program(line, handles)
        os._exit(0)
    asked_by, _, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    with line, line.makefile("rwb") as test, contextlib.suppress(EOFError, ConnectionError):
        while True:
            before_s = _children_seconds()
            _send(test, (_fork_and_wait(*_receive(test), asked_by), _children_seconds() - before_s))
    os._exit(0)


def _children_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _fork_and_wait(
    target: bytes, world_size: int, env: dict[str, str], timeout_s: float, grace_s: float, asked_by: int
) -> list[tuple[int, int, str]]:
    port = free_port()
    logs = [tempfile.TemporaryFile() for _ in range(world_size)]  # noqa: SIM115
    processes = []
    for rank in range(world_size):
        process = os.fork()
        if process == 0:
            _be_rank(target, rank, world_size, port, logs[rank].fileno(), env)
        processes.append(process)
    codes = _wait(processes, timeout_s, grace_s, asked_by)
    results = []
    for rank, log in enumerate(logs):
        log.seek(0)
        results.append((rank, codes[rank], log.read().decode(errors="replace")))
        log.close()
    return results


def _be_rank(target: bytes, rank: int, world: int, port: int, log: int, env: Mapping[str, str]) -> None:
    code = 1
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.enable()
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in (own | address).items()} | dict(env))
        cloudpickle.loads(target)()
        _part_together()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # no atexit handlers: they belong to the parent


def _part_together() -> None:
    """Rank 0 holds the store: were it gone first, a group that others are still building would fail."""
    dist: Any = sys.modules["torch.distributed"]
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):  # a peer that failed says so itself
            dist.barrier()


def _wait(processes: list[int], timeout_s: float, grace_s: float, asked_by: int) -> list[int]:
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
        if time.monotonic() > deadline or has_ended(asked_by):
            for rank, process in enumerate(processes):
                if rank not in codes:
                    os.kill(process, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.02)
    return [codes[rank] for rank in range(len(processes))]


if __name__ == "__main__":
    _be_nursery(Path(sys.argv[1]), int(sys.argv[2]))
