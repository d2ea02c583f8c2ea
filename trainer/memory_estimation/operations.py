"""Describe each operation of a step: its kind, its FLOPs, the bytes that it moves, and what the host does for it.

OperationWatch   a RecordingWatch that also lists operations by segment, each as numbers that are products of sizes
describe         one call of an operator ─▶ Operation, or None for a view

Rules for kinds and traffic are stratlab_spec/step_time/kernels.py's. A kernel's rate is not part of a recording.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_iter

from stratlab_spec.step_time import kernels as kinds
from trainer.memory_estimation.step_recording import OF_STRATEGY, RecordingWatch
from trainer.memory_estimation.storages import asks_for_device


class Operation(NamedTuple):
    """One operator with a kernel."""

    kind: str
    launches: int
    factors: tuple[int, ...] = ()
    """Their product is half of the FLOPs; of dense attention: rows x heads, queries, keys, size of a head, 1 or 2 with
    a causal mask; of packed attention: tokens, heads, size of a head."""
    traffic: tuple[int, ...] = ()
    """Bytes of each tensor that is read or written."""
    accumulates: bool = False
    """Adds a gradient to an earlier micro-batch's."""


@dataclass
class HostWork:
    """What the host does in a segment, as counts."""

    launches: int = 0
    products: int = 0
    further: int = 0
    """Launches of an operation after its first."""
    views: int = 0
    calls: float = 0.0
    """Python calls; one of a C function counts half."""
    packed: int = 0
    """Calls of packed attention, which is a custom operator in Python."""

    def as_list(self) -> list[float]:
        return [self.launches, self.products, self.further, self.views, self.calls, self.packed]


Touched = dict[int, int]
"""Storage, by a number of its own -> bytes."""


@dataclass
class Work:
    """A segment."""

    operations: list[Operation] = field(default_factory=list)
    touched: list[tuple[Touched, Touched]] = field(default_factory=list)
    """What each operation reads and writes."""
    host: HostWork = field(default_factory=HostWork)
    waits: int = 0
    """Times that the host waits for the device."""
    moved: dict[str, list[int]] = field(default_factory=dict)
    """Kind -> [bytes, launches] of all operations."""
    gathered: dict[str, list[int]] = field(default_factory=dict)
    """The same of those inside a strategy's gathers and reductions, which `operations` does not have."""


WITHOUT_KERNEL = frozenset(
    {
        *(
            "empty",
            "empty_like",
            "new_empty",
            "new_empty_strided",
            "empty_strided",
            "promote_types",
            "detach",
        ),
        *("is_same_size", "result_type", "_version", "is_pinned", "resize_", "sym_size", "alias", "set_"),
        *("_has_compatible_shallow_copy_type", "lift_fresh", "_record_function_enter_new", "device"),
        *("_record_function_exit", "record_stream"),
    }
)
FILLS = frozenset(
    {
        *("zero_", "fill_", "zeros", "zeros_like", "full", "ones_like", "ones", "full_like", "new_zeros"),
        *("new_full", "arange", "scalar_tensor"),
    }
)
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "_grouped_mm"})
REDUCTIONS = frozenset(
    {
        *("sum", "mean", "amax", "max", "min", "argmax", "var_mean", "linalg_vector_norm", "norm", "any"),
        *("all", "var", "std", "prod", "cumsum"),
    }
)
SOFTMAXES = frozenset(
    {"_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "logsumexp"}
)
ACTIVATIONS = frozenset(
    {
        *("gelu", "gelu_backward", "silu", "silu_backward", "sigmoid", "hardswish", "hardswish_backward"),
        "tanh",
    }
)
LOOKUPS = frozenset({"embedding", "index", "index_select", "gather"})
SCATTERS = frozenset(
    {
        *("index_put", "index_put_", "_index_put_impl_", "index_add_", "scatter_add_", "scatter", "scatter_"),
        *("scatter_add", "index_add"),
    }
)
SORTS = frozenset({"sort", "topk", "argsort", "_unique2"})
CATENATIONS = frozenset({"cat", "stack", "split_with_sizes_copy", "_chunk_cat"})


def describe(
    name: str, ins: Sequence[Tensor], outs: Sequence[Tensor], alias: bool = False, causal: bool = False
) -> Operation | None:
    """Return what an operator does on a device; None for one without a kernel.

    Args:
        alias: the results share the inputs' storages, and nothing is written.
        causal: of attention.
    """
    if name in WITHOUT_KERNEL or alias or not (ins or outs):
        return None
    every = (*map(_bytes, ins), *map(_bytes, outs))
    if name in PRODUCTS:
        return _describe_product(ins[1:] if name in ("addmm", "baddbmm") else ins, outs)
    if "scaled_dot_product" in name or "varlen" in name or name.startswith(("_flash_att", "_efficient_att")):
        return _describe_attention(name, ins, every, causal)
    if "convolution" in name:
        return _describe_convolution(name, ins, outs)
    if "layer_norm" in name or "rms_norm" in name:
        wide = [one for one in (*ins, *outs) if one.dim() > 1 and one.shape[-1] > 1]
        backward = "backward" in name
        kind = kinds.NORM_BACKWARD if backward else kinds.NORM
        return Operation(kind, 2 if backward else 1, traffic=tuple(map(_bytes, wide)))
    if "batch_norm" in name:  # statistics read the input once more
        again = every[:2] if "backward" in name else every[:1]
        return Operation(kinds.BATCH_NORM, 2, traffic=(*every, *again))
    if name.startswith("_fused"):
        return Operation(kinds.FUSED_OPTIMIZER, 1 + len(ins) // 36, traffic=(sum(every),))
    if name.startswith("_foreach"):
        return Operation(kinds.FOREACH, max(1, len(ins) // 50), traffic=(sum(every),))
    if name in REDUCTIONS:
        return Operation(kinds.REDUCTION, 1, traffic=every)
    if name in SOFTMAXES:
        return Operation(kinds.SOFTMAX, 1, traffic=every)
    if name == "copy_":
        return Operation(_cast(ins[1], ins[0]), 1, traffic=every[:2])
    if name in ("_to_copy", "clone"):
        return Operation(_cast(ins[0], outs[0]), 1, traffic=every)
    if name in FILLS:
        return Operation(kinds.ELEMENTWISE, 1, traffic=tuple(map(_bytes, outs)))
    if name in LOOKUPS:
        return Operation(kinds.EMBEDDING, 1, traffic=tuple(map(_bytes, outs)) * 2)
    if name == "embedding_dense_backward":
        return Operation(kinds.SCATTER, 6, traffic=(*map(_bytes, outs), *(_bytes(ins[0]),) * 3))
    if name in SCATTERS:
        return Operation(kinds.SCATTER, 2, traffic=tuple(map(_bytes, ins[1:])) * 4)
    if name in SORTS:
        return Operation(kinds.SCATTER, 4, traffic=every)
    if name.startswith("nll_loss"):
        return Operation(kinds.SCATTER, 1, traffic=tuple(map(_bytes, outs)))
    if name in CATENATIONS:
        return Operation(kinds.CONCATENATION, 1, traffic=every)
    if "pool" in name:
        return Operation(kinds.POOLING, 1, traffic=every)
    if name in ACTIVATIONS:
        return Operation(kinds.ACTIVATION, 1, traffic=every)
    return Operation(kinds.BROADCAST if _is_strided(ins, outs) else kinds.ELEMENTWISE, 1, traffic=every)


def _bytes(tensor: Tensor) -> int:
    """Return the bytes that a kernel touches: an expanded tensor's once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _cast(source: Tensor, result: Tensor) -> str:
    return kinds.UP_CAST if source.element_size() < result.element_size() else kinds.COPY


def _is_strided(ins: Sequence[Tensor], outs: Sequence[Tensor]) -> bool:
    """Return whether an input is spread over the result, or one is not contiguous."""
    largest = max((one.numel() for one in outs), default=1)
    if outs and any(1 < one.numel() < largest for one in ins):
        return True
    whole = (one for one in (*ins, *outs) if one.numel() == largest and one.dim() in (3, 5))
    return any(not one.is_contiguous() for one in whole)


def _describe_product(factors: Sequence[Tensor], outs: Sequence[Tensor]) -> Operation:
    a, b = factors[:2]
    kind = kinds.PRODUCT_FP32 if a.dtype is torch.float32 else kinds.PRODUCT
    rows = prod(a.shape[:-1])
    traffic = (a.numel() * a.element_size(), b.numel() * b.element_size(), *map(_bytes, outs))
    return Operation(kind, 1, (rows, a.shape[-1], b.shape[-1]), traffic)


def _describe_attention(name: str, ins: Sequence[Tensor], every: tuple[int, ...], causal: bool) -> Operation:
    backward = "backward" in name
    heads = [one for one in ins if one.dim() in (3, 4)]
    heads = heads[1:] if backward and len(heads) > 3 else heads
    query, key = heads[0], heads[1]
    if query.dim() == 3:
        kind = kinds.PACKED_ATTENTION_BACKWARD if backward else kinds.PACKED_ATTENTION
        return Operation(kind, 3 if backward else 1, tuple(query.shape), every)
    rows, count, queries, size = query.shape
    kind = kinds.ATTENTION_BACKWARD if backward else kinds.ATTENTION
    traffic = (8 * query.numel(),) if backward else every
    return Operation(
        kind, 3 if backward else 1, (rows * count, queries, key.shape[2], size, 1 + causal), traffic
    )


def _describe_convolution(name: str, ins: Sequence[Tensor], outs: Sequence[Tensor]) -> Operation:
    if "backward" in name:
        result, source, weight = ins[:3]
        passes = sum(one.dim() == 4 for one in outs)
    else:
        source, weight, result, passes = ins[0], ins[1], outs[0], 1
    kind = kinds.CONVOLUTION
    if weight.shape[1] == 1 and weight.shape[0] > 1:
        kind = kinds.DEPTHWISE
    elif weight.shape[1] in (3, 4):
        kind = kinds.FIRST_CONVOLUTION
    traffic = (_bytes(source), _bytes(result), _bytes(weight)) * passes
    launches = passes + ("backward" in name)
    return Operation(kind, launches, (result.numel(), prod(weight.shape[1:]), passes), traffic)


FUSIBLE = frozenset(
    {
        *(kinds.ELEMENTWISE, kinds.COPY, kinds.UP_CAST, kinds.BROADCAST, kinds.ACTIVATION, kinds.NORM),
        *(kinds.NORM_BACKWARD, kinds.REDUCTION, kinds.CONCATENATION, kinds.SOFTMAX),
    }
)
"""Kinds that a compiler joins to one kernel, if no other kernel stands between."""
OWN_LAUNCH = frozenset({kinds.REDUCTION, kinds.NORM_BACKWARD})
"""Kinds that end a kernel: their result needs all of it."""


def fuse(work: Mapping[str, Work], segment: str) -> list[Operation]:
    """Return a segment's operations as a compiler joins them: a chain reads its outer inputs, writes its outer outputs.

    An output is outer if an operation outside its chain reads it, or none does (it is kept for the backward pass).
    """
    readers: dict[int, set[tuple[str, int]]] = {}
    chains = {name: _number_chains(one.operations) for name, one in work.items()}
    for name, one in work.items():
        for chain, (reads, _) in zip(chains[name], one.touched, strict=True):
            for storage in reads:
                readers.setdefault(storage, set()).add((name, chain))
    mine = work[segment]
    found: list[Operation] = []
    rows = list(zip(chains[segment], mine.operations, mine.touched, strict=True))
    for chain in dict.fromkeys(chains[segment]):
        members = [(one, touched) for number, one, touched in rows if number == chain]
        if members[0][0].kind not in FUSIBLE or members[0][0].accumulates:
            found += [one for one, _ in members]
            continue
        inner: set[int] = set()
        traffic: dict[int, int] = {}
        for _, (reads, writes) in members:
            traffic |= {storage: size for storage, size in reads.items() if storage not in inner}
            inner |= writes.keys()
        for _, (_, writes) in members:
            for storage, size in writes.items():
                if readers.get(storage, set()) != {(segment, chain)}:
                    traffic[storage] = size
        launches = 1 + sum(one.kind in OWN_LAUNCH for one, _ in members[:-1])
        found.append(Operation(kinds.FUSED, launches, traffic=tuple(traffic.values())))
    return found


def _number_chains(operations: Sequence[Operation]) -> list[int]:
    numbers: list[int] = []
    before = False
    for one in operations:
        joins = one.kind in FUSIBLE and not one.accumulates
        numbers.append(numbers[-1] if joins and before else len(numbers))
        before = joins
    return numbers


OWN_FILES = (
    *("torch/_subclasses/", "torch/utils/_python_dispatch", "torch/_prims", "torch/_refs", "torch/_decomp"),
    *("torch/_meta_reg", "/trainer/memory_estimation/", "torch/utils/_pytree", "torch/utils/_stats"),
    *("<string>", "torch/utils/_cxx_pytree", "torch/_library/", "torch/_compile.py", "torch/_dynamo/"),
    *("torch/compiler/", "torch/_ops.py", "/trainer/data/", "torch/_higher_order_ops/"),
)
"""Parts of file names whose calls a run on a device does not make."""


class CallCounter:
    """Count Python calls outside the machinery of fake tensors, while it is on."""

    def __init__(self) -> None:
        self.calls = 0.0
        self._counts: dict[str, bool] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "c_call"):
            return
        name = frame.f_code.co_filename
        known = self._counts.get(name)
        if known is None:
            known = self._counts[name] = not any(part in name for part in OWN_FILES)
        if known:
            self.calls += 1.0 if event == "call" else 0.5

    def take(self) -> float:
        """Return the calls since the last time."""
        found, self.calls = self.calls, 0.0
        return found


class OperationWatch(RecordingWatch):
    """Also list the operations of the last micro-batch of a step, by segment, and the host's work.

    Args:
        counts_calls: count Python calls, which takes time.
    """

    def __init__(self, counts_calls: bool = False) -> None:
        super().__init__()
        self.work: dict[str, Work] = {}
        self.first: dict[str, Work] = {}
        """The same of the first micro-batch."""
        self._at = Work()
        self._counter = CallCounter() if counts_calls else None

    def _enter(self, segment: str) -> None:
        super()._enter(segment)
        self._take_calls()
        self._at = self.work[segment] = Work()  # of the last micro-batch
        self.first.setdefault(segment, self._at)
        if segment == "start" and self._counter:
            sys.setprofile(self._counter)

    def begin(self, phase: str) -> None:
        super().begin(phase)
        if self._places and self._places[-1][1] == "optimizer" != phase:
            self.finish()

    def finish(self) -> None:
        """Count no further calls."""
        sys.setprofile(None)
        self._take_calls()
        self._at = Work()

    def _take_calls(self) -> None:
        if self._counter:
            self._at.host.calls += self._counter.take()

    def wait(self) -> None:
        """Note that the host waits for the device."""
        self._at.waits += 1

    def multiply(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Note a product that a count does not make."""
        self._add(_describe_product((a, b), (out,)), (a, b), (out,))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if asks_for_device(func, args):
            return args[0].fake_device
        profile = sys.getprofile()
        sys.setprofile(None)
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
            self._list(func, (args, kwargs), result)
        finally:
            sys.setprofile(profile)
        return result

    def _list(self, func: Any, given: Any, result: Any) -> None:
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense":
            self.wait()
            return
        ins, outs = _tensors(given), _tensors(result)
        written = func._schema.is_mutable
        before = {one.untyped_storage()._cdata for one in ins}
        alias = not written and bool(outs) and all(one.untyped_storage()._cdata in before for one in outs)
        of_library = func.namespace in ("c10d", "_c10d_functional", "fsdp", "profiler", "prim")
        one = None if of_library else describe(name, ins, outs, alias, _is_causal(func, given[0]))
        if one is None:
            self._at.host.views += func.namespace not in ("profiler", "prim")
            return
        node = torch._C._current_autograd_node()
        if node is not None and node.name() == "torch::autograd::AccumulateGrad":
            one = one._replace(accumulates=True)
        self._add(one, ins, outs)

    def _add(self, one: Operation, ins: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        host = self._at.host
        host.launches += 1
        host.further += one.launches - 1
        host.products += bool(one.factors) and "attention" not in one.kind
        host.packed += one.kind in (kinds.PACKED_ATTENTION, kinds.PACKED_ATTENTION_BACKWARD)
        _sum_up(self._at.moved, one)
        if self._regions and self._regions[-1][0] in OF_STRATEGY:
            _sum_up(self._at.gathered, one)
        else:
            self._at.operations.append(one)
            self._at.touched.append((self._touch(ins), self._touch(outs)))

    def _touch(self, tensors: Sequence[Tensor]) -> Touched:
        found: Touched = {}
        for one in tensors:
            if storage := self._find(one):
                found[id(storage)] = max(found.get(id(storage), 0), _bytes(one))
        return found


def _sum_up(moved: dict[str, list[int]], one: Operation) -> None:
    known = moved.setdefault(one.kind, [0, 0])
    known[0] += sum(one.traffic)
    known[1] += one.launches


def _is_causal(func: Any, args: Sequence[Any]) -> bool:
    names = [one.name for one in func._schema.arguments]
    at = names.index("is_causal") if "is_causal" in names else len(args)
    return at < len(args) and bool(args[at])


def _tensors(given: Any) -> list[Tensor]:
    return [one for one in tree_iter(given) if isinstance(one, Tensor)]
