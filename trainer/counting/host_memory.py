"""What a strategy keeps in host memory (`offload`). A count has no device, so its tensors are told apart by where the
engine keeps them: these lists, and not their device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils._pytree import tree_iter

from trainer.counting.causes import list_masters, list_states, optimizer_of_deepspeed
from trainer.counting.storages import StorageWatch

OF_DEEPSPEED = (
    *("param_buffer_of_bit16_for_cpu_offload_groups", "temp_grad_buffer_for_cpu_offload"),
    *("accumulated_grads_in_cpu", "grad_partitions_flat_buffer"),
)
"""Attributes of DeepSpeed's optimizers, of stages 1 and 2 and of stage 3, whose tensors are on its `self.device`: the
host's with offload_optimizer (stage_1_and_2.py, stage3.py, 0.19.8)."""


def move_to_host(watch: StorageWatch, engine: Any, offload: str) -> None:
    """Tells the watch which storages of now are the host's; nothing without offload."""
    if offload == "none":
        return
    for tensor in (*list_states(engine), *_list_kept(engine, offload)):
        watch.move_to_host(tensor)


def _list_kept(engine: Any, offload: str) -> Iterator[Any]:
    parameters = list(engine.module.parameters())
    optimizer = optimizer_of_deepspeed(engine)
    if optimizer is None:  # fully_shard's: shards, and what is reduced into shards
        yield from parameters
        yield from (parameter.grad for parameter in parameters)
        return
    for master in list_masters(engine):
        yield from (master, master.grad)
    yield from tree_iter([getattr(optimizer, name, None) for name in OF_DEEPSPEED])
    if offload == "all":
        yield from _list_shards(parameters)


def _list_shards(parameters: Iterable[Any]) -> Iterator[Any]:
    """Small ones stay on the device (`persistent_elements`)."""
    for parameter in parameters:
        if not getattr(parameter, "ds_persist", False):
            yield getattr(parameter, "ds_tensor", None)
