"""Find the cause of each storage, by looking into the engine and by watching which function made it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.nn.parallel import distributed as ddp
from torch.utils._pytree import tree_iter

import trainer.models.chunked_cross_entropy
import trainer.models.decoder
import trainer.models.model_with_loss
from stratlab_spec.strategies import STRATEGIES
from trainer.measuring.held_tensors import list_shards
from trainer.memory_estimation.storages import NODE_CAUSE, StorageWatch, replaced

Function = Callable[..., Any]
Wrapper = Callable[[StorageWatch, Function], Function]
Row = tuple[Any, str, Wrapper]


@contextmanager
def attributed(watch: StorageWatch, strategy: str) -> Iterator[None]:
    """Let `watch` know the cause of allocations while it is entered: gathering, reducing, masks, the loss."""
    rows = [*_native(), *(_deepspeed() if STRATEGIES[strategy].deepspeed_stage else ())]
    with ExitStack() as stack:
        for owner, name, wrap in rows:
            stack.enter_context(replaced(owner, **{name: wrap(watch, getattr(owner, name))}))
        yield


def _native() -> Iterator[Row]:
    """Yield (owner, its function, the watch's wrapper of it)."""
    yield FSDPParamGroup, "unshard", _inside("gathered")
    yield FSDPParamGroup, "wait_for_unshard", _inside("gathered")
    yield FSDPParamGroup, "post_backward", _reducing(_unsharded_gradients)
    yield ddp.DistributedDataParallel, "_ddp_init_helper", _inside("gradient buckets")
    yield trainer.models.decoder, "build_packing", _inside("masks")
    yield trainer.models.model_with_loss, "sum_losses", _loss
    yield trainer.models.model_with_loss, "sum_distances", _loss
    yield trainer.models.chunked_cross_entropy, "token_loss", _inside("logits and loss", final=False)


def _deepspeed() -> Iterator[Row]:
    from deepspeed.runtime.zero.partition_parameters import Init
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    yield PartitionedParameterCoordinator, "fetch_sub_module", _inside("gathered")
    yield Init, "_all_gather", _inside("gathered")  # of small ones that stay, after the update
    yield Init, "_partition_param_sec", _inside("parameters")  # hpZ's shards
    for kind in (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3):
        reducing = _reducing(lambda _, parameter, *__: [parameter.grad])
        yield kind, "reduce_independent_p_g_buckets_and_remove_grads", reducing


def _inside(cause: str, final: bool = True) -> Wrapper:
    """Attribute storages that a function makes to `cause`."""

    def wrap(watch: StorageWatch, function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with watch.region(cause, final):
                return function(*args, **kwargs)

        return call

    return wrap


def _reducing(gradients: Function) -> Wrapper:
    """Attribute autograd's results to gradients, and storages for their transfer to buckets."""

    def wrap(watch: StorageWatch, function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for gradient in gradients(*args, **kwargs):
                watch.attribute(gradient, "gradients")
            with watch.region("gradient buckets"):
                return function(*args, **kwargs)

        return call

    return wrap


def _unsharded_gradients(group: Any, *_: Any) -> Iterator[Any]:
    for parameter in group.fsdp_params:
        if hasattr(parameter, "_unsharded_param"):
            yield parameter._unsharded_param.grad
            yield parameter.unsharded_accumulated_grad


def _loss(watch: StorageWatch, function: Function) -> Function:
    """Attribute to the loss: the logits, the storages of its forward pass, and of its backward pass until their
    gradient.
    """

    @functools.wraps(function)
    def call(logits: Tensor, *args: Any, **kwargs: Any) -> Any:
        watch.attribute(logits, "logits and loss", final=True)
        with watch.region("logits and loss", final=True):
            loss = function(logits, *args, **kwargs)
        for node in _nodes_between(loss, logits):
            node.metadata[NODE_CAUSE] = "logits and loss"
        return loss

    return call


def _nodes_between(end: Tensor, start: Tensor) -> list[Any]:
    """Return the autograd nodes from `end` back to `start`, without the node of `start`."""
    found, waiting = [], [end.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node is not start.grad_fn and node not in found:
            found.append(node)
            waiting += [before for before, _ in node.next_functions]
    return found


def attribute_state(watch: StorageWatch, engine: Any) -> None:
    """Attribute parameters and their fp32 copies, between two steps: gathered ones must be freed, or known already."""
    parameters = list(engine.module.parameters())
    for tensor in (*parameters, *engine.module.buffers()):
        watch.attribute(tensor, "parameters", final=True)
    for shard in list_shards(parameters):
        watch.attribute(shard, "parameters", final=True)
    for tensor in list_masters(engine):
        watch.attribute(tensor, "master copies", final=True)
    buckets = getattr(optimizer_of_deepspeed(engine), "ipg_buckets", {})
    for bucket in buckets.values():
        for tensor in tree_iter(vars(bucket)):
            watch.attribute(tensor, "gradient buckets")


def attribute_teacher(watch: StorageWatch, teacher: Any) -> None:
    """Attribute the network that the model learns from."""
    for tensor in teacher.tensors():
        watch.attribute(tensor, "teacher", final=True)


def attribute_gradients(watch: StorageWatch, engine: Any) -> None:
    """Attribute the gradients after the backward pass, before the update uses them."""
    for tensor in (*engine.module.parameters(), *list_masters(engine)):
        watch.attribute(tensor.grad, "gradients")
    optimizer = optimizer_of_deepspeed(engine)
    for parts in getattr(optimizer, "averaged_gradients", {}).values():
        for part in parts or []:
            watch.attribute(part, "gradients")
    summed = getattr(optimizer, "accumulated_grads_in_cpu", {})  # of micro-batches, offloaded
    for tensor in (*summed.values(), getattr(optimizer, "grad_partitions_flat_buffer", None)):
        watch.attribute(tensor, "gradients")


def attribute_optimizer(watch: StorageWatch, engine: Any) -> None:
    """Attribute the state that the first update has made."""
    for tensor in list_states(engine):
        watch.attribute(tensor, "optimizer state", final=True)


def list_states(engine: Any) -> Iterator[Any]:
    """Yield moments and counters of every optimizer of an engine."""
    found = [optimizer_of_deepspeed(engine), getattr(engine, "_optimizer", None)]
    for optimizer in [*getattr(engine, "optimizers", []), *found]:
        optimizer = getattr(optimizer, "optimizer", optimizer)  # DeepSpeed's has torch's inside
        for state in optimizer.state.values() if optimizer is not None else []:
            yield from state.values()


def optimizer_of_deepspeed(engine: Any) -> Any:
    """Return DeepSpeed's optimizer; None for other engines."""
    return getattr(getattr(engine, "_engine", None), "optimizer", None)


def list_masters(engine: Any) -> list[Any]:
    """Return DeepSpeed's fp32 copies of the parameters; empty for other engines."""
    optimizer = optimizer_of_deepspeed(engine)
    found = getattr(optimizer, "fp32_partitioned_groups_flat", None)  # stage 3
    return list(found or getattr(optimizer, "single_partition_of_fp32_groups", None) or [])
