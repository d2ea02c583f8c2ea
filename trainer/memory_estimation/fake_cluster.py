"""One rank of many in its own process, on a fake device: replacements of functions in libraries.

`alone`: a process group that moves no data, and libraries that do not ask other ranks. It replaces questions to other
ranks (whether the parameters' shapes agree, which shapes the next stage sends) and places where a library cannot
handle a tensor without storage. The replacements do not change the allocations.

`as_on_cuda`: the behaviour of autocast and attention on CUDA, for fake CPU tensors. Fake CUDA tensors do not work:
without a driver their backward pass fails, because autograd asks CUDA for its contexts (`stash_current_streams`,
torch 2.13). These rules come from torch's sources; they are not verified on a GPU.
"""

from __future__ import annotations

import copy
import functools
import os
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed._tools import fake_collectives  # noqa: F401  (collectives take fake tensors from now on)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining import _utils as pipelining
from torch.distributed.tensor._redistribute import clear_redistribute_planner_cache
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import distributed as ddp
from torch.testing._internal.distributed import fake_pg

from stratlab_spec.layout.nd_layout import resolve_layout
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.settings.config import Config
from stratlab_spec.strategies import STRATEGIES
from trainer.memory_estimation.storages import HALF, StorageWatch, replaced
from trainer.models import chunked_cross_entropy as token_loss
from trainer.models import packing
from trainer.parallel import expert, nd_engine
from trainer.parallel.meshes import Meshes
from trainer.strategies import nd


@contextmanager
def alone(config: Config, ranks: int, rank: int, per_node: int) -> Iterator[None]:
    """Make this process rank `rank` of `ranks`, of which `per_node` share a node; the others do not exist."""
    assert not dist.is_initialized(), "a process with a process group of its own"
    own = {"RANK": rank, "LOCAL_RANK": rank % per_node, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": per_node}
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "DS_ACCELERATOR": "cpu"}
    with ExitStack() as stack:
        env |= {name: str(value) for name, value in own.items()}
        stack.enter_context(mock.patch.dict(os.environ, env))
        for owner, attributes in _replacements(config, ranks).items():
            stack.enter_context(replaced(owner, **attributes))
        if STRATEGIES[config.strategy].deepspeed_stage:
            stack.enter_context(_deepspeed_alone())
        stack.callback(_forget_meshes)
        dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=rank, world_size=ranks)
        stack.callback(lambda: dist.destroy_process_group() if dist.is_initialized() else None)
        _forget_meshes()
        yield


def _forget_meshes() -> None:
    """Clear DTensor's caches of operators' results: they hold the meshes, and so their process groups."""
    _clear_sharding_prop_cache()
    clear_redistribute_planner_cache()


def _replacements(config: Config, ranks: int) -> dict[Any, dict[str, Any]]:
    """Return owner -> attributes.

    Values that stay the same while a process lives are cached, because each call takes time: a library opened, a
    program started. Fake tensors look for CUDA at each new operator call, DeepSpeed for a CPU's nodes at each
    reduction: 57,000 and 1,200 times for ZeRO-3 of 36 layers.
    """
    return {
        torch.cuda: {"is_available": functools.cache(torch.cuda.is_available)},  # asked at each operator call
        torch.nn.Module: {"to": _move_if_elsewhere(torch.nn.Module.to)},
        ddp.DistributedDataParallel: {"__init__": _wrap_alone(ddp.DistributedDataParallel.__init__)},
        ddp: {"_verify_param_shape_across_processes": _nothing, "_sync_module_states": _nothing},
        DeviceMesh: {"__init__": _with_values(DeviceMesh.__init__)},
        nd: {"build_meshes": _with_values(nd.build_meshes)},
        Meshes: {"stage_peers": property(_with_values(vars(Meshes)["stage_peers"].fget))},
        nd_engine: {"copy": types.SimpleNamespace(deepcopy=_with_values(copy.deepcopy))},
        expert: {"read_splits": _equal_splits},
        **_pipeline_alone(_guess_stream(config, ranks)),
    }


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _equal_splits(counts: list[list[int]], rows: int) -> list[list[int]]:
    """Spread tokens evenly over the experts: as many rows arrive as leave."""
    ranks = len(counts[0])
    each, left = divmod(rows, ranks)
    return [[each + int(rank < left) for rank in range(ranks)]] * 2


def _with_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run with real tensors: meshes read their ranks, and deepcopy does not support fake tensors."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return call


def _move_if_elsewhere(move: Callable[..., Any]) -> Callable[..., Any]:
    """Skip `to` if it changes nothing: it swaps a fake parameter with its copy, and fails if both are the same
    tensor.
    """

    @functools.wraps(move)
    def to(module: torch.nn.Module, *where: Any, **named: Any) -> Any:
        held = [*module.parameters(), *module.buffers()]
        if not named and all(str(where[0]) in (str(tensor.device), str(tensor.dtype)) for tensor in held):
            return module
        return move(module, *where, **named)

    return to


def _wrap_alone(wrap: Callable[..., Any]) -> Callable[..., Any]:
    """Give DDP an all-reduce that leaves the bucket unchanged: the reducer's own asks a fake work for its result."""

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
    """DDP's reducer with the buckets of its first step: to build others of the same bytes, ranks exchange indices."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


def _guess_stream(config: Config, ranks: int) -> Callable[[bool], torch.Tensor]:
    """Return a function that builds a neighbour's message to a stage: the stream between the layers, or its
    gradient.
    """

    def guess(requires_grad: bool) -> torch.Tensor:
        shape = read_shape(config)
        layout = resolve_layout(config, ranks, shape)
        parts = layout.axes.cp * (layout.axes.tp if layout.sequence_parallel else 1)
        size = (config.micro_batch_size, config.seq_len // parts, shape.hidden)
        dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
        return torch.empty(size, dtype=dtype, device="meta", requires_grad=requires_grad)

    return guess


def _pipeline_alone(guess: Callable[[bool], torch.Tensor]) -> dict[Any, dict[str, Any]]:
    """Replace the messages of the stages before the first step.

    They exchange metadata, with a vote on how to find it, or (torch 2.11, which calls no methods for that) shapes in
    a list of objects.
    """
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
    """Decide as all ranks do here: shapes are found by running one micro-batch."""
    for one in stages:
        one._inference_mode = pipelining.InferenceMode.DYNAMIC


@contextmanager
def _deepspeed_alone() -> Iterator[None]:
    """Run DeepSpeed without a check over all ranks, and without leftovers of an earlier engine of this process."""
    import deepspeed.comm.comm
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
    from deepspeed.runtime.zero import partitioned_param_coordinator as coordinator
    from deepspeed.utils import groups

    with (
        replaced(deepspeed.comm.comm, cdb=None),
        replaced(coordinator, assert_ints_same_as_other_ranks=lambda *_: None),
        replaced(CPU_Accelerator, device_count=functools.cache(CPU_Accelerator.device_count)),
    ):
        groups._release_process_group_references()
        try:
            yield
        finally:
            groups._release_process_group_references()


IN_FP32 = (
    *("layer_norm", "group_norm", "rms_norm", "softmax.int", "log_softmax.int", "sum", "sum.dim_IntList"),
    *("cumsum", "exp", "log", "pow.Tensor_Scalar", "rsqrt", "reciprocal", "softplus", "logsumexp"),
)
"""Operators of AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE (ATen/autocast_mode.h) that models call. The CPU's
list lacks all of them, so that no state must be restored."""
OFFER = packing.Offer("cuda", (9, 0), varlen=True)
"""A current GPU, with the pinned torch."""


@contextmanager
def as_on_cuda(watch: StorageWatch) -> Iterator[None]:
    """Under autocast: norms and sums in fp32. Always: the attention kernel that CUDA would choose, and the tensors it
    keeps.

    | mask | element type | key heads     | kernel            | keeps for the backward pass           |
    |------|--------------|---------------|-------------------|---------------------------------------|
    | none | 16 bits      | any           | flash             | q, k, v, output, one number per token |
    | any  | any          | as many as q  | memory-efficient  | the same, the mask as a bias like q   |
    | any  | fp32         | fewer         | math              | all scores                            |

    Packed rows: the path that trainer/models/packing.py would choose on such a device; varlen_attn calls flash.

    Registered with the dispatcher, because a TorchFunctionMode is off while a backward pass computes blocks again.
    """
    with ExitStack() as stack:
        library = stack.enter_context(torch.library._scoped_library("aten", "IMPL"))
        for name in IN_FP32:
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, functools.partial(_in_fp32, operator), "AutocastCPU")
        attend = functools.partial(_attend, watch, F.scaled_dot_product_attention)
        stack.enter_context(replaced(F, scaled_dot_product_attention=attend))
        stack.enter_context(replaced(packing, read_offer=lambda device: OFFER))
        stack.enter_context(replaced(token_loss, _multiply_into_fp32=_multiply_into_fp32))
        yield


def _multiply_into_fp32(a: Tensor, b: Tensor) -> Tensor:
    """Allocate one product, without its factors in fp32."""
    return a.new_empty((a.shape[0], b.shape[1]), dtype=torch.float32)


def _in_fp32(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        return operator(*map(_widen, args), **{name: _widen(given) for name, given in kwargs.items()})


def _widen(given: Any) -> Any:
    return given.float() if isinstance(given, Tensor) and given.dtype in HALF else given


def _attend(
    watch: StorageWatch,
    original: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if torch.is_autocast_enabled("cpu"):
        q, k, v = (part.to(torch.get_autocast_dtype("cpu")) for part in (q, k, v))
    aten = torch.ops.aten
    if attn_mask is None and q.dtype in HALF:
        flash = aten._scaled_dot_product_flash_attention
        return flash(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
    if k.shape[1] == q.shape[1]:
        bias = attn_mask if attn_mask is None else attn_mask.expand(*q.shape[:3], -1)
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            with watch.region("masks", final=True):
                zero = torch.zeros((), dtype=q.dtype)
                bias = torch.where(attn_mask, zero, float("-inf")).expand(*q.shape[:3], -1)
        efficient = aten._scaled_dot_product_efficient_attention
        keeps = torch.is_grad_enabled()
        return efficient(q, k, v, bias, keeps, dropout_p, is_causal, scale=scale)[0]
    with sdpa_kernel(SDPBackend.MATH):
        return original(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
