"""One rank of many, alone in its process: a process group that moves nothing, and libraries that ask no other rank.

What is replaced are questions to other ranks (are the parameters' shapes alike, what does the next stage send) and
places where a library cannot deal with a tensor without storage. None of it changes what is allocated.
"""

from __future__ import annotations

import copy
import functools
import os
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed._tools import fake_collectives  # noqa: F401  (collectives take fake tensors from now on)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining import _utils as pipelining
from torch.distributed.tensor._redistribute import clear_redistribute_planner_cache
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.nn.parallel import distributed as ddp
from torch.testing._internal.distributed import fake_pg

from trainer.counting.replacement import replaced
from trainer.layout.resolve import resolve_layout
from trainer.parallel import expert, stage, submeshes
from trainer.settings.config import Config
from trainer.settings.strategy_table import STRATEGIES
from trainer.shapes.decoder_json import read_shape
from trainer.strategies import nd


@contextmanager
def alone(config: Config, ranks: int, rank: int, per_node: int) -> Iterator[None]:
    """This process is rank `rank` of `ranks`, of which `per_node` share a node; the others do not exist."""
    assert not dist.is_initialized(), "a process with a process group of its own"
    with ExitStack() as stack:
        stack.enter_context(_environment(ranks, rank, per_node))
        for owner, attributes in _replacements(config, ranks).items():
            stack.enter_context(replaced(owner, **attributes))
        if STRATEGIES[config.strategy].deepspeed_stage:
            stack.enter_context(_deepspeed_alone())
        stack.callback(_forget_meshes)
        dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=rank, world_size=ranks)
        stack.callback(_end_group)
        _forget_meshes()
        yield


@contextmanager
def _environment(ranks: int, rank: int, per_node: int) -> Iterator[None]:
    before = dict(os.environ)
    own = {"RANK": rank, "LOCAL_RANK": rank % per_node, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": per_node}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1, "DS_ACCELERATOR": "cpu"}
    os.environ.update({name: str(value) for name, value in (own | address).items()})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _forget_meshes() -> None:
    """DTensor keeps what operators give by the shape of the mesh, with the mesh and so with its groups inside."""
    _clear_sharding_prop_cache()
    clear_redistribute_planner_cache()


def _end_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _replacements(config: Config, ranks: int) -> dict[Any, dict[str, Any]]:
    return {
        torch.cuda: {"is_available": _answered_once(torch.cuda.is_available)},
        torch.nn.Module: {"to": _move_if_elsewhere(torch.nn.Module.to)},
        ddp.DistributedDataParallel: {"__init__": _wrap_alone(ddp.DistributedDataParallel.__init__)},
        ddp: {"_verify_param_shape_across_processes": _nothing, "_sync_module_states": _nothing},
        DeviceMesh: {"__init__": _with_values(DeviceMesh.__init__)},
        nd: {"build_meshes": _with_values(nd.build_meshes)},
        submeshes.Meshes: {"stage_peers": property(_with_values(vars(submeshes.Meshes)["stage_peers"].fget))},
        stage: {"copy": types.SimpleNamespace(deepcopy=_with_values(copy.deepcopy))},
        expert: {"read_splits": _equal_splits},
        **_pipeline_alone(_guess_stream(config, ranks)),
    }


def _nothing(*_: Any, **__: Any) -> None:
    """No other rank is asked."""


def _answered_once(ask: Callable[..., Any]) -> Callable[..., Any]:
    """What does not change while a process lives, and costs each time: a library opened, a program started.

    Fake tensors ask for CUDA at each new operator call, DeepSpeed for a CPU's nodes at each reduction: 57,000 and 1,200
    times for ZeRO-3 of 36 layers.
    """
    return functools.cache(ask)


def _equal_splits(counts: list[list[int]], rows: int) -> list[list[int]]:
    """Tokens are spread evenly over the experts: as many rows come as go."""
    ranks = len(counts[0])
    each, left = divmod(rows, ranks)
    return [[each + int(rank < left) for rank in range(ranks)]] * 2


def _with_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """With real tensors: meshes read their ranks, and deepcopy knows no fake tensor."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return call


def _move_if_elsewhere(move: Callable[..., Any]) -> Callable[..., Any]:
    """`to` swaps a fake parameter with what it was converted to, and fails if that is the parameter itself."""

    @functools.wraps(move)
    def to(module: torch.nn.Module, *where: Any, **named: Any) -> Any:
        held = [*module.parameters(), *module.buffers()]
        if not named and all(str(where[0]) in (str(tensor.device), str(tensor.dtype)) for tensor in held):
            return module
        return move(module, *where, **named)

    return to


def _wrap_alone(wrap: Callable[..., Any]) -> Callable[..., Any]:
    """DDP whose all-reduce leaves the bucket as it is: the reducer's own asks a fake work for its result."""

    @functools.wraps(wrap)  # our own ddp looks at its signature when it is first imported
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        wrap(self, *args, **kwargs)
        # without annotations: DDP compares a hook's with the types themselves, and here they are strings
        self.register_comm_hook(None, lambda state, bucket: _finished(bucket.buffer()))
        self.reducer = _SteadyReducer(self.reducer)

    return init


def _finished(tensor: torch.Tensor) -> Any:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(tensor)
    return done


class _SteadyReducer:
    """DDP's reducer with the buckets of its first step, of the same bytes: to make others, ranks exchange indices."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


def _guess_stream(config: Config, ranks: int) -> Callable[[bool], torch.Tensor]:
    """What a stage would hear from its neighbour: the stream between the layers, or its gradient."""

    def guess(requires_grad: bool) -> torch.Tensor:
        shape = read_shape(config)
        layout = resolve_layout(config, ranks, shape)
        parts = layout.axes.cp * (layout.axes.tp if layout.sequence_parallel else 1)
        size = (config.micro_batch_size, config.seq_len // parts, shape.hidden)
        dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
        return torch.empty(size, dtype=dtype, device="meta", requires_grad=requires_grad)

    return guess


def _pipeline_alone(guess: Callable[[bool], torch.Tensor]) -> dict[Any, dict[str, Any]]:
    """What stages tell each other before the first step: metadata, with a vote on how to find it, or (torch 2.11, which
    calls no methods for that) shapes in a list of objects."""
    if not hasattr(PipelineStage, "_recv_meta"):

        def fill(objects: list[Any], *_: Any, **__: Any) -> None:
            objects[0] = (guess(False),)

        return {dist: {"send_object_list": _nothing, "recv_object_list": fill}}

    def receive(self: Any, source: int) -> Any:
        forward = source < self.stage_index
        kind = pipelining._StageForwardMeta if forward else pipelining._StageBackwardMeta
        return kind((pipelining.extract_tensor_meta(guess(forward)),))

    return {
        PipelineStage: {"_send_meta": _nothing, "_recv_meta": receive},
        schedules._PipelineSchedule: {"_warmup_p2p": _vote_alone},
    }


def _vote_alone(_: Any, stages: Any, *__: Any) -> None:
    """As all ranks decide here: shapes are found by running one micro-batch."""
    for one in stages:
        one._inference_mode = pipelining.InferenceMode.DYNAMIC


@contextmanager
def _deepspeed_alone() -> Iterator[None]:
    """DeepSpeed without a check over all ranks, and without what an earlier engine of this process has left."""
    import deepspeed.comm.comm
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
    from deepspeed.runtime.zero import partitioned_param_coordinator as coordinator
    from deepspeed.utils import groups

    with (
        replaced(deepspeed.comm.comm, cdb=None),
        replaced(coordinator, assert_ints_same_as_other_ranks=lambda *_: None),
        replaced(CPU_Accelerator, device_count=_answered_once(CPU_Accelerator.device_count)),
    ):
        groups._release_process_group_references()
        try:
            yield
        finally:
            groups._release_process_group_references()
