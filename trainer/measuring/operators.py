"""Measure the collectives and products of a step by watching its operators instead of trusting settings.

While a dispatch mode watches, every operator passes through Python, so a run watches one step. All collectives end in
the operators c10d::* and _c10d_functional::*: DDP's reducer in C++, FSDP2, DeepSpeed, functional collectives. autograd
passes the mode on to its threads.

Bytes on the wire follow ring algorithms: bytes sent per rank of n for a payload of S bytes (Patarasuk and Yuan 2009;
NVIDIA's nccl-tests, PERFORMANCE.md). A library that chooses a tree or the switch (NVLS) sends less:

    all_reduce          2 (n-1)/n S                    reduce_scatter, all_to_all    (n-1)/n S, S = whole input
    all_gather            (n-1)   S, S = own shard     broadcast, reduce, gather, scatter
    send                          S                                   (n-1)/n S: the mean over the ranks

If fully_shard gathers several element types, it sends them as bytes; the types that it viewed as bytes are reported.

The axis is read from the group's description: torch names the groups of a mesh "mesh_<axis>". A mesh axis over all
processes may use the default group, which has no axis name; the caller passes its axis.

Products are matrix products, grouped ones, convolutions and torch's attention, forward and backward. A type counts from
one multiplication in twenty: rotary angles and routers are in fp32 on purpose, and far below that share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


def _all_but_own(n: int) -> float:
    return (n - 1) / n


# Collective -> (its operators, bytes sent per rank of n for one byte of payload). Left out: barrier, wait_tensor, recv
# (its bytes count at the sender), and all collectives in a group of one.
COLLECTIVES: dict[str, tuple[tuple[str, ...], Callable[[int], float]]] = {
    "all_reduce": (
        (
            *("allreduce_", "allreduce_coalesced_", "all_reduce", "all_reduce_"),
            *("all_reduce_coalesced", "all_reduce_coalesced_"),
        ),
        lambda n: 2 * (n - 1) / n,
    ),
    "all_gather": (
        (
            *("allgather_", "allgather_coalesced_", "_allgather_base_", "allgather_into_tensor_coalesced_"),
            *("all_gather_into_tensor", "all_gather_into_tensor_out", "all_gather_into_tensor_coalesced"),
        ),
        lambda n: n - 1.0,
    ),
    "reduce_scatter": (
        (
            *("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_"),
            *("reduce_scatter_tensor", "reduce_scatter_tensor_out", "reduce_scatter_tensor_coalesced"),
        ),
        _all_but_own,
    ),
    "all_to_all": (("alltoall_", "alltoall_base_", "all_to_all_single"), _all_but_own),
    "broadcast": (("broadcast_", "broadcast"), _all_but_own),
    "reduce": (("reduce_",), _all_but_own),
    "gather": (("gather_",), _all_but_own),
    "scatter": (("scatter_",), _all_but_own),
    "send": (("send", "isend"), lambda n: 1.0),
}
KINDS = {name: kind for kind, (names, _) in COLLECTIVES.items() for name in names}
NAMESPACES = ("c10d", "_c10d_functional")
# Collective -> the name under which its element types are reported.
DTYPES = {
    **dict.fromkeys(("all_reduce", "reduce_scatter", "reduce"), "reductions"),
    "all_gather": "gathers",
    "all_to_all": "exchanges",
}
# Names of a rank's payload in the operators' schemas; the first present name counts.
PAYLOAD = (
    *("input_tensors", "input_tensor", "input_list", "inputs", "input", "tensors", "tensor"),
    "output_tensors",
)

# Description of a group, without torch's "mesh_" -> axis; any other is an axis itself. Parameters are sharded over
# dp_shard x cp, and for experts over dp_shard x cp x tp / ep: all of it counts as dp_shard.
AXIS_OF_GROUP = {
    "fsdp": "dp_shard",
    "efsdp": "dp_shard",
    "undefined": "dp_shard",  # DeepSpeed does not describe its groups
}
DEFAULT_GROUP = "default_pg"  # torch's description of it
WORLD = "world"


class WireCounter(TorchDispatchMode):
    """Counts the collectives of the code under `with`.

    Args:
        world: the axis that the default group stands for; `Axes.world_axis`.
    """

    def __init__(self, world: str = WORLD) -> None:
        super().__init__()
        self._world = world
        self.operations: dict[str, tuple[int, int]] = {}
        """collective -> (count, bytes of this rank's payload)."""
        self.axes: dict[str, dict[str, tuple[int, int]]] = {}
        """axis -> the same for its groups only; "loss" sums single numbers, "tied" is the two ends of a pipeline."""
        self.wire_bytes_per_axis: dict[str, float] = {}
        """axis -> its part of `wire_bytes`."""
        self.wire_bytes = 0.0
        """Bytes that this rank sends, by the formulas above."""
        self.dtypes: dict[str, set[str]] = {name: set() for name in dict.fromkeys(DTYPES.values())}
        """reductions, gathers, exchanges -> the element types sent; without single numbers (norms, flags) and without
        summed integers (counts)."""
        self._as_bytes: set[torch.dtype] = set()
        """Types viewed as bytes, which a gather of bytes sends (torch, _fsdp_collectives.py, foreach_all_gather)."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keep compiled blocks compiled; generated code still calls their collectives (tp) as operators."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # the subclass unpacks itself first, then its collectives pass through here
        given = kwargs or {}
        if getattr(func, "namespace", "") in NAMESPACES:
            self._count(func, args, given)
        elif func is torch.ops.aten.view.dtype and args[1] is torch.uint8 and args[0].is_floating_point():
            self._as_bytes.add(args[0].dtype)
        return func(*args, **given)

    def _count(self, func: Any, args: Any, kwargs: Any) -> None:
        kind = KINDS.get(func._schema.name.split("::")[1])
        if kind is None:
            return
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        payload = given[next(name for name in PAYLOAD if name in given)]
        if kind == "scatter":  # only the source has a payload: count the output of each rank
            payload = given["output_tensors"]
        group = _group(given)
        ranks = group.size()
        if ranks == 1:  # an axis of the mesh with one rank
            return
        tensors = list(_tensors(payload))
        if kind in DTYPES:
            shown = [each for each in tensors if each.numel() > 1]
            if DTYPES[kind] == "reductions":
                shown = [each for each in shown if each.is_floating_point()]
            sent_types = {each.dtype for each in shown}
            if kind == "all_gather" and self._as_bytes and torch.uint8 in sent_types:
                sent_types = sent_types - {torch.uint8} | self._as_bytes
            self.dtypes[DTYPES[kind]] |= {str(each).removeprefix("torch.") for each in sent_types}
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        name = group.group_desc.removeprefix("mesh_")
        axis = self._world if name == DEFAULT_GROUP else AXIS_OF_GROUP.get(name, name)
        for operations in (self.operations, self.axes.setdefault(axis, {})):
            count, total = operations.get(kind, (0, 0))
            operations[kind] = count + 1, total + size
        sent = COLLECTIVES[kind][1](ranks) * size
        self.wire_bytes += sent
        self.wire_bytes_per_axis[axis] = self.wire_bytes_per_axis.get(axis, 0.0) + sent


def _tensors(payload: Any) -> Iterator[Tensor]:
    if isinstance(payload, Tensor):
        yield payload
    else:
        for part in payload:
            yield from _tensors(part)


def _group(given: dict[str, Any]) -> dist.ProcessGroup:
    """Return the group of an operator call, passed as a boxed object or by name."""
    group = given.get("process_group", given.get("group_name"))
    if isinstance(group, str):
        return dist.distributed_c10d._resolve_process_group(group)
    if isinstance(group, torch.ScriptObject):
        return dist.ProcessGroup.unbox(group)
    assert isinstance(group, dist.ProcessGroup)
    return group


LEAST_SHARE = 0.05
ATTENTION = tuple(packet for packet in flop_registry if "scaled_dot_product" in str(packet))


class ProductTypes(TorchDispatchMode):
    """Counts the products of the code under `with`."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: dict[str, float] = {}
        """Element type -> multiplications and additions."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keep compiled blocks compiled; products inside them are not counted."""
        return True

    def dtypes(self) -> list[str]:
        """Return the types above the threshold."""
        whole = sum(self.operations.values())
        return sorted(name for name, count in self.operations.items() if count >= LEAST_SHARE * whole > 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # the subclass unpacks itself first, then its parts pass through here
        given = kwargs or {}
        result = func(*args, **given)
        packet = getattr(func, "_overloadpacket", None)
        if packet is torch.ops.aten._grouped_mm:
            self._add(args[0], 2.0 * args[0].numel() * args[1].shape[-1])
        elif packet in flop_registry:
            first = next(each for each in args if isinstance(each, Tensor))
            if packet in ATTENTION:
                args = _with_all_heads(args)
            self._add(first, flop_registry[packet](*args, **given, out_val=result))
        return result

    def _add(self, factor: Tensor, operations: float) -> None:
        name = str(factor.dtype).removeprefix("torch.")
        self.operations[name] = self.operations.get(name, 0.0) + operations


def _with_all_heads(args: Any) -> tuple[Any, ...]:
    """Return keys and values as if each head had its own; torch 2.11 does not count products of grouped heads.

    Shapes [batch, heads, tokens, dim] without data; queries have the most heads.
    """
    heads = max(each.shape[1] for each in args if isinstance(each, Tensor) and each.dim() == 4)
    return tuple(
        each.new_empty((each.shape[0], heads, *each.shape[2:]), device="meta")
        if isinstance(each, Tensor) and each.dim() == 4 and each.shape[1] != heads
        else each
        for each in args
    )
