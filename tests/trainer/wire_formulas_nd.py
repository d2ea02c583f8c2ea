"""What a step of the strategy nd must send, per axis, from shapes alone: the other side of WireCounter.axes. No torch.

Of one rank, fp32. A = rows x seq/cp x hidden x 4 bytes is the stream of a micro-batch, n = tp, L layers of the rank:

    axis          per micro-batch                                                                    per step
    tp, +sp       dense layer 4 all-gather of A/n, 4 reduce-scatter of A (with experts 2 and 2)     all-reduce of the
                  embedding, head: 1 and 1 each                                                      gradient of what is
    tp            layer 4 all-reduce of A; embedding 1; head 1                                       whole on each rank,
                  loss 2 all-reduce: the largest logit, then 3 sums per token                        if +sp; norm
    pp            1 send of A (A/n with +sp) per border with a later stage, 1 with an earlier one    norm
    cp ulysses    layer 8 all-to-all: q, k, v there, the answers back; the same for gradients
    cp allgather  layer 2 all-gather (k, v), 2 reduce-scatter of their gradients
    ep            layer 1 all-to-all of the counts, 2 of the answers' weights: there, their gradients back;
                  4 of tokens: there and back, forward and backward
    dp_shard      root 1 all-gather, layer and experts 2 (1 without reshard_after_forward), each    norm
                  1 reduce-scatter (accumulate=whole: per step); with pp 1 of each per step
    dp_replicate                                                                                     all-reduce of the
                                                                                                     gradients' shards
    tied          (first and last stage)                                                             all-reduce of it

Rows that reach a rank's experts depend on what the router chose. The formula takes the mean, so that a sum over the
ranks of an ep group is exact. Recomputed layers repeat the forward pass's part of tp, cp and ep, but not what comes
after the last tensor that the backward pass needs: the second reduction of a dense layer.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from stratlab_spec.layout.axes import Axes
from stratlab_spec.memory.model_state import EMBEDDING, HEAD, tensor_dimension
from stratlab_spec.models.decoder import DecoderShape, parameter_shapes, split_layers
from stratlab_spec.settings.library_rules import recomputes
from tests.trainer.wire_formulas import ELEMENT, Parameter

Operations = dict[str, dict[str, tuple[int, int]]]
"""axis -> collective -> (how often, bytes of this rank's payload)."""


@dataclass(frozen=True)
class Work:
    """One step of one rank.

    Attributes:
        pp_rank: its place in the pipeline.
        rows: of a micro-batch.
        stages: of the whole pipeline; a multiple of pp.
        activation_checkpointing: the setting.
    """

    shape: DecoderShape
    axes: Axes
    pp_rank: int
    rows: int
    seq_len: int
    micro_batches: int
    stages: int = 1
    sequence_parallel: bool = False
    cp_method: str = "ulysses"
    activation_checkpointing: str = "none"
    accumulates_sharded: bool = True
    reshards: bool = True
    """Gathers a layer again for its backward pass."""
    reduced_element: int = ELEMENT

    @property
    def own_stages(self) -> list[int]:
        return list(range(self.pp_rank, self.stages, self.axes.pp))

    @property
    def layers(self) -> list[int]:
        parts = split_layers(self.shape.layers, self.stages)
        return [layer for stage in self.own_stages for layer in parts[stage]]

    @property
    def again(self) -> int:
        """How many of its layers are computed again in the backward pass."""
        return sum(recomputes(self.activation_checkpointing, layer) for layer in self.layers)

    @property
    def tokens(self) -> int:
        return self.rows * self.seq_len // self.axes.cp

    @property
    def stream(self) -> int:
        return self.tokens * self.shape.hidden * ELEMENT


def decoder_traffic(work: Work) -> Operations:
    found: Operations = {}
    for axis, kind, count, size in (*_tensor(work), *_pipeline(work), *_context(work), *_experts(work)):
        _add(found, axis, kind, count * work.micro_batches, count * work.micro_batches * size)
    for axis, kind, count, size in (*_shards(work), *_whole_on_tp(work), *_tied(work), *_norm(work)):
        _add(found, axis, kind, count, count * size)
    return found


Row = tuple[str, str, int, int]
"""Axis, collective, how often, bytes each time."""


def _add(found: Operations, axis: str, kind: str, count: int, size: int) -> None:
    if count:
        kinds = found.setdefault(axis, {})
        before, total = kinds.get(kind, (0, 0))
        kinds[kind] = before + count, total + size


def _tensor(work: Work) -> Iterator[Row]:
    n, layers, again = work.axes.tp, len(work.layers), work.again
    if n == 1:
        return
    halves = 1 if work.shape.experts else 2  # attention, and a dense MLP
    first, last = 0 in work.own_stages, work.stages - 1 in work.own_stages
    kept = halves - 1 if not work.shape.experts else 1
    if work.sequence_parallel:
        yield "tp", "all_gather", halves * (2 * layers + again) + first + last, work.stream // n
        yield "tp", "reduce_scatter", 2 * halves * layers + kept * again + first + last, work.stream
    else:
        yield "tp", "all_reduce", 2 * halves * layers + kept * again + first + last, work.stream
    if last:
        yield "tp", "all_reduce", 1, work.tokens * ELEMENT
        yield "tp", "all_reduce", 1, 3 * work.tokens * ELEMENT


def _pipeline(work: Work) -> Iterator[Row]:
    parts = work.axes.tp if work.sequence_parallel else 1
    borders = sum((stage > 0) + (stage < work.stages - 1) for stage in work.own_stages)
    yield "pp", "send", borders, work.stream // parts


def _context(work: Work) -> Iterator[Row]:
    shape, cp, layers = work.shape, work.axes.cp, len(work.layers)
    if cp == 1:
        return
    passes = 2 * layers + work.again
    per_head = work.tokens * shape.head_dim * ELEMENT
    heads, kv_heads = shape.heads // work.axes.tp, shape.kv_heads // work.axes.tp
    if work.cp_method == "allgather":
        yield "cp", "all_gather", 2 * (passes - layers), kv_heads * per_head
        yield "cp", "reduce_scatter", 2 * layers, kv_heads * per_head * cp
        return
    yield "cp", "all_to_all", 2 * passes, heads * per_head
    yield "cp", "all_to_all", 2 * passes, math.lcm(kv_heads, cp) * per_head


def _experts(work: Work) -> Iterator[Row]:
    shape, layers, again = work.shape, len(work.layers), work.again
    if work.axes.ep == 1:
        return
    chosen = work.tokens // (work.axes.tp if work.sequence_parallel else 1) * shape.experts_per_token
    yield "ep", "all_to_all", layers + again, shape.experts * 4  # int32
    yield "ep", "all_to_all", 2 * layers + again, chosen * 4  # weights of the answers, fp32
    yield "ep", "all_to_all", 4 * layers + 2 * again, chosen * shape.hidden * ELEMENT


@dataclass(frozen=True)
class _Group:
    """Parameters that fully_shard gathers together, of the size that tp or ep leaves of them."""

    parameters: list[Parameter]
    is_root: bool
    is_experts: bool = False


def _groups(work: Work) -> Iterator[_Group]:
    """Of every stage: the root, each layer, each layer's experts."""
    shape, axes = work.shape, work.axes
    whole = parameter_shapes(shape)

    def cut(name: str) -> Parameter:
        size = list(whole[name if name in whole else EMBEDDING])
        dimension, parts = (0, axes.ep) if ".experts." in name else (tensor_dimension(name), axes.tp)
        if dimension is not None:
            size[dimension] //= parts
        return Parameter(tuple(size))

    for layer in work.layers:
        names = [name for name in whole if name.startswith(f"hf.model.layers.{layer}.")]
        yield _Group([cut(name) for name in names if ".experts." not in name], is_root=False)
        if shape.experts:
            yield _Group([cut(name) for name in names if ".experts." in name], False, is_experts=True)
    for stage in work.own_stages:
        if names := _root_names(work, stage):
            yield _Group([cut(name) for name in names], is_root=True)


def _root_names(work: Work, stage: int) -> list[str]:
    names = [EMBEDDING] if stage == 0 else []
    if stage == work.stages - 1:
        names.append("hf.model.norm.weight")
        if not work.shape.tied or stage > 0:
            names.append(HEAD)
    return names


def _shards(work: Work) -> Iterator[Row]:
    axes = work.axes
    pool = axes.dp_shard * axes.cp
    for group in _groups(work):
        shards = pool * axes.tp // axes.ep if group.is_experts else pool
        padded = sum(p.padded(shards) for p in group.parameters)
        if shards > 1:
            times = 2 if work.reshards and not group.is_root else 1
            gathers = 1 if axes.pp > 1 else work.micro_batches * times
            yield "dp_shard", "all_gather", gathers, padded // shards * ELEMENT
            reductions = work.micro_batches if work.accumulates_sharded and axes.pp == 1 else 1
            yield "dp_shard", "reduce_scatter", reductions, padded * work.reduced_element
        if axes.dp_replicate > 1:
            yield "dp_replicate", "all_reduce", 1, padded // shards * work.reduced_element


def _whole_on_tp(work: Work) -> Iterator[Row]:
    """Norms and routers see a part of the sequence on each tp rank: their gradients are added up."""
    if work.axes.tp == 1 or not work.sequence_parallel:
        return
    whole = parameter_shapes(work.shape)
    mine = [f"hf.model.layers.{layer}." for layer in work.layers]
    names = [n for n in whole if any(n.startswith(prefix) for prefix in mine) and ".experts." not in n]
    names += [name for stage in work.own_stages for name in _root_names(work, stage) if name in whole]
    for name in names:
        if tensor_dimension(name) is None:
            yield "tp", "all_reduce", 1, math.prod(whole[name]) * ELEMENT


def _tied(work: Work) -> Iterator[Row]:
    axes = work.axes
    ends = {0, work.stages - 1} & set(work.own_stages)
    if axes.pp > 1 and work.shape.tied:
        size = work.shape.vocab // axes.tp // (axes.dp_shard * axes.cp) * work.shape.hidden * ELEMENT
        yield "tied", "all_reduce", len(ends), size


def _norm(work: Work) -> Iterator[Row]:
    """One number per mesh and axis on which a gradient is in parts, then one over the pipeline."""
    axes = work.axes
    pool, sharded_by_tp = axes.dp_shard * axes.cp, axes.tp > 1
    yield "dp_shard", "all_reduce", (pool > 1) * (1 + sharded_by_tp), ELEMENT
    yield "tp", "all_reduce", int(sharded_by_tp), ELEMENT
    if work.shape.experts:
        yield "dp_shard", "all_reduce", int(pool * axes.tp // axes.ep > 1), ELEMENT
        yield "ep", "all_reduce", int(axes.ep > 1), ELEMENT
    yield "pp", "all_reduce", int(axes.pp > 1), ELEMENT
