"""What each storage is held for: found by looking into the engine, and by watching who makes what."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
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


@contextmanager
def attributed(watch: StorageWatch, strategy: str) -> Iterator[None]:
    """While it is entered, `watch` knows who asks for memory: gathering, reducing, masks, the loss."""
    with ExitStack() as stack:
        for owner, attributes in _native(watch).items():
            stack.enter_context(replaced(owner, **attributes))
        if STRATEGIES[strategy].deepspeed_stage:
            for owner, attributes in _deepspeed(watch).items():
                stack.enter_context(replaced(owner, **attributes))
        yield


def _native(watch: StorageWatch) -> dict[Any, dict[str, Any]]:
    loss = functools.partial(_loss, watch)
    masks = functools.partial(_inside, watch, "masks", True)
    gathered = functools.partial(_inside, watch, "gathered", True)
    return {
        FSDPParamGroup: {
            "unshard": gathered(FSDPParamGroup.unshard),
            "wait_for_unshard": gathered(FSDPParamGroup.wait_for_unshard),
            "post_backward": _reducing(watch, FSDPParamGroup.post_backward, _unsharded_gradients),
        },
        ddp.DistributedDataParallel: {
            "_ddp_init_helper": _inside(
                watch, "gradient buckets", True, ddp.DistributedDataParallel._ddp_init_helper
            )
        },
        trainer.models.decoder: {"build_packing": masks(trainer.models.packing.build_packing)},
        trainer.models.model_with_loss: {
            "sum_losses": loss(trainer.models.model_with_loss.sum_losses),
            "sum_distances": loss(trainer.models.model_with_loss.sum_distances),
        },
        trainer.models.chunked_cross_entropy: {
            "token_loss": _inside(
                watch, "logits and loss", False, trainer.models.chunked_cross_entropy.token_loss
            )
        },
    }


def _deepspeed(watch: StorageWatch) -> dict[Any, dict[str, Any]]:
    from deepspeed.runtime.zero.partition_parameters import Init
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    def gradient(_: Any, parameter: Any, *__: Any) -> Iterable[Any]:
        return [parameter.grad]

    reduce = "reduce_independent_p_g_buckets_and_remove_grads"
    gathered = functools.partial(_inside, watch, "gathered", True)
    coordinator = PartitionedParameterCoordinator
    return {
        coordinator: {"fetch_sub_module": gathered(coordinator.fetch_sub_module)},
        Init: {
            "_all_gather": gathered(Init._all_gather),  # of small ones that stay, after the update
            "_partition_param_sec": _inside(
                watch, "parameters", True, Init._partition_param_sec
            ),  # hpZ's shards
        },
        **{
            kind: {reduce: _reducing(watch, getattr(kind, reduce), gradient)}
            for kind in (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3)
        },
    }


def _inside(watch: StorageWatch, cause: str, final: bool, function: Function) -> Function:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with watch.region(cause, final):
            return function(*args, **kwargs)

    return call


def _reducing(watch: StorageWatch, function: Function, gradients: Function) -> Function:
    """What autograd has just made are gradients; what is made on the way to the other ranks are buckets."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for gradient in gradients(*args, **kwargs):
            watch.attribute(gradient, "gradients")
        with watch.region("gradient buckets"):
            return function(*args, **kwargs)

    return call


def _unsharded_gradients(group: Any, *_: Any) -> Iterator[Any]:
    for parameter in group.fsdp_params:
        if hasattr(parameter, "_unsharded_param"):
            yield parameter._unsharded_param.grad
            yield parameter.unsharded_accumulated_grad


def _loss(watch: StorageWatch, function: Function) -> Function:
    """The logits, what the loss is computed by, and what its backward pass makes until the logits' gradient."""

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
    """The autograd nodes from `end` back to `start`, whose own node is left out."""
    found, waiting = [], [end.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node is not start.grad_fn and node not in found:
            found.append(node)
            waiting += [before for before, _ in node.next_functions]
    return found


def attribute_state(watch: StorageWatch, engine: Any) -> None:
    """Parameters and their fp32 copies, between two steps: what is gathered must be given back, or known already."""
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
    """The network that the model learns from."""
    for tensor in teacher.tensors():
        watch.attribute(tensor, "teacher", final=True)


def attribute_gradients(watch: StorageWatch, engine: Any) -> None:
    """What the backward pass has left, before the update takes it."""
    for tensor in (*engine.module.parameters(), *list_masters(engine)):
        watch.attribute(tensor.grad, "gradients")
    optimizer = optimizer_of_deepspeed(engine)
    for parts in getattr(optimizer, "averaged_gradients", {}).values():
        for part in parts or []:
            watch.attribute(part, "gradients")
    watch.attribute(getattr(optimizer, "grad_partitions_flat_buffer", None), "gradients")


def attribute_optimizer(watch: StorageWatch, engine: Any) -> None:
    """What the first update has made."""
    for tensor in list_states(engine):
        watch.attribute(tensor, "optimizer state", final=True)


def list_states(engine: Any) -> Iterator[Any]:
    """Moments and counters of every optimizer of an engine."""
    found = [optimizer_of_deepspeed(engine), getattr(engine, "_optimizer", None)]
    for optimizer in [*getattr(engine, "optimizers", []), *found]:
        optimizer = getattr(optimizer, "optimizer", optimizer)  # DeepSpeed's has torch's inside
        for state in optimizer.state.values() if optimizer is not None else []:
            yield from state.values()


def optimizer_of_deepspeed(engine: Any) -> Any:
    """DeepSpeed's own; None of other engines."""
    return getattr(getattr(engine, "_engine", None), "optimizer", None)


def list_masters(engine: Any) -> list[Any]:
    """DeepSpeed's fp32 copies of the parameters; none of other engines."""
    optimizer = optimizer_of_deepspeed(engine)
    found = getattr(optimizer, "fp32_partitioned_groups_flat", None)  # stage 3
    return list(found or getattr(optimizer, "single_partition_of_fp32_groups", None) or [])
