"""What strategy nd allocates on one rank: a share of the heads, words and tokens (tp, cp), a stage of the layers (pp).

dp_shard x cp    fully_shard, as ShardedRules; the weights are this tp rank's
tp, cp           recorded: every draw has other degrees, so that shares are symbols of their own (`nd_sizes`)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stratlab_spec.layout.axes import Axes
from stratlab_spec.layout.pipeline_passes import order_passes
from stratlab_spec.memory.recording import BACKWARD, FP32, HALF, Measured, Stretch, round_up
from stratlab_spec.memory.simulation import HeldMemory, StepMemory, play_segments
from stratlab_spec.memory.sizes import ROWS_AT_ONCE, decoder_sizes
from stratlab_spec.memory.strategy_rules import ROOT, ShardedRules, list_blocks
from stratlab_spec.models.decoder import DecoderShape, split_layers
from stratlab_spec.settings.config import Config


@dataclass(frozen=True)
class LayerSplit:
    """How tp and cp ranks share a layer."""

    tp: int = 1
    sequence_parallel: bool = False
    cp: int = 1
    method: str = ""
    """With cp."""
    stages: int = 1
    """Of the pipeline; the first and the last one hold a tied weight twice."""

    def describe(self) -> dict[str, Any]:
        """Return the settings of its recording; empty if nothing is split."""
        if self.tp == self.cp == 1:
            return {}
        return {
            "flavor": "nd",
            "tp": self.tp > 1,
            "sequence_parallel": self.sequence_parallel,
            "cp": self.method if self.cp > 1 else "none",
        }

    def count_stream_bytes(self, config: Config, shape: DecoderShape) -> int:
        """Return the bytes that a stage sends for one micro-batch, in 16 bits."""
        tokens = config.micro_batch_size * config.seq_len // self.cp
        return HALF * shape.hidden * tokens // (self.tp if self.sequence_parallel else 1)

    def repeats_heads(self, shape: DecoderShape) -> bool:
        """Return whether ulysses repeats key heads, because there are too few for all cp ranks."""
        return self.cp > 1 and self.method == "ulysses" and shape.kv_heads // self.tp % self.cp > 0


WHOLE = LayerSplit()


def nd_sizes(
    config: Config, shape: DecoderShape, split: LayerSplit, rows_at_once: int = ROWS_AT_ONCE
) -> tuple[Mapping[str, int], int]:
    """Return the sizes of the micro-batch of one rank, and the number of chunks of its loss.

    Tokens, heads and words are those of one tp and cp rank. Further symbols: `S` tokens of the whole row, `U` words of
    the whole vocabulary, `T/tp` tokens between the layers, `A/cp` and `G/cp` heads after ulysses' exchange. tp ranks
    score a whole chunk at once.
    """
    own = config.model_copy(update={"seq_len": config.seq_len // split.cp})
    part = replace(
        shape,
        heads=shape.heads // split.tp,
        kv_heads=shape.kv_heads // split.tp,
        intermediate=shape.intermediate // split.tp,
        vocab=shape.vocab // split.tp,
    )
    sizes, chunks = decoder_sizes(own, part, config.loss_chunk_tokens if split.tp > 1 else rows_at_once)
    if split.tp > 1:
        sizes["U"] = shape.vocab
    if split.cp > 1:
        rows = config.micro_batch_size
        sizes |= {"S": config.seq_len, "RS+1": rows * config.seq_len + 1, "R+1": rows + 1}
    if split.cp > 1 and split.method == "ulysses":
        sizes |= {"A/cp": part.heads // split.cp, "G/cp": part.kv_heads // split.cp}
    if split.sequence_parallel:
        sizes["T/tp"] = own.seq_len // split.tp
    return sizes, chunks


@dataclass
class SplitRules(ShardedRules):
    """fully_shard over weights that tp ranks share.

    The gradient of an embedding split by words is one of the whole vocabulary, of which this rank keeps its words.
    """

    _whole: int = 0

    def take_gradient(self, held: HeldMemory, size: int) -> None:
        super().take_gradient(held, size)
        if self._group == ROOT and size > self._own_words():
            self._whole = size

    def leave(self, held: HeldMemory, segment: str, layer: int) -> None:
        self._keep_own_words(held)
        super().leave(held, segment, layer)

    def _keep_own_words(self, held: HeldMemory) -> None:
        if not self._whole:
            return
        own = self._own_words()
        held.take("gradients", own)
        held.free("gradients", self._whole)
        self._gradients[ROOT] += own - self._whole
        self._whole = 0

    def _own_words(self) -> int:
        """Return the bytes of the largest gradient of this rank's own rows outside the layers."""
        return max((round_up(FP32 * one.elements) for one in self.root), default=0)


@dataclass
class StageRules(SplitRules):
    """A stage of a pipeline: weights are gathered once per step, and gradients are whole until its end."""

    _gathered: bool = False
    _complete: bool = False
    """Every gradient exists; further ones are added."""
    _forward: bool = True
    _early: list[int] = field(default_factory=list)
    """Gradients of heads, which a forward pass has made in fp32, of micro-batches without a backward pass."""

    def enter(self, held: HeldMemory, segment: str, layer: int) -> None:
        self._group = layer
        self._forward = not segment.endswith(BACKWARD)
        if segment == f"head{BACKWARD}" and self._early:  # before the last norm's backward pass
            size = self._early.pop(0)
            if self._complete:
                held.free("gradients", size)
            else:
                self._gradients[ROOT] += size
        if self._gathered or (layer == ROOT and (segment != "start" or not self.root)):
            return
        before = self._buffer
        self._begin_gather(held, layer)
        self._take_whole(held, layer)
        held.free("gathered", before)

    def leave(self, held: HeldMemory, segment: str, layer: int) -> None: ...

    def take_gradient(self, held: HeldMemory, size: int) -> None:
        if self._forward:
            held.take("gradients", size)
            self._early.append(size)
        elif self._complete:
            held.take("gradients", size)
            held.free("gradients", size)
        else:
            super().take_gradient(held, size)

    def end_forward(self, held: HeldMemory) -> None:
        """Do what follows the forward pass of a micro-batch."""
        self._free_buffer(held)
        self._gathered = True

    def end_backward(self) -> None:
        """Do what follows the backward pass of a micro-batch."""
        self._complete = True

    def reduce(self, held: HeldMemory) -> None:
        """Reduce all gradients, at the end of the step."""
        self._keep_own_words(held)
        for group in (*((ROOT,) if self.root else ()), *range(len(self.blocks))):
            held.free("gathered", self._groups[group].whole)
            self._reduce_gradients(held, group)
        held.free("gradient buckets", self._bucket)


@dataclass(frozen=True)
class StagePlan:
    """What one rank of a pipeline computes."""

    index: int
    stages: int
    layers: int
    """Of this stage."""
    stream_bytes: int
    """Between two stages, of one micro-batch."""

    @property
    def is_last(self) -> bool:
        return self.index == self.stages - 1

    def name_layers(self) -> list[tuple[str, int]]:
        """Return (segment, number) of its layers."""
        second = "middle" if self.index else "second"
        names = ["first", second, *["middle"] * self.layers][: self.layers]
        if self.is_last and self.layers > 1:
            names[-1] = "last"
        return [(name, at) for at, name in enumerate(names)]

    def list_passes(self, schedule: str, micro_batches: int) -> str:
        """Return the order of forward (F) and backward passes (B) of the schedules gpipe and 1f1b."""
        played = micro_batches
        if schedule == "1f1b":
            played = min(micro_batches, self.stages - self.index + MOST_PAIRS)
        passes = order_passes(schedule, self.index, self.stages, played)
        return "".join("B" if one.backward else "F" for one in passes)


SCHEDULES = ("1f1b", "gpipe")
MOST_PAIRS = 3
"""Of a backward and a forward pass in 1f1b: further ones hold no more."""


def simulate_stage(
    measured: Measured, rules: StageRules, stage: StagePlan, schedule: str, micro_batches: int
) -> StepMemory:
    """Return the memory of one rank of a pipeline in a step.

    A stage receives all micro-batches in buffers of their own, which live as long as the engine. The output of a stage
    lives until its backward pass, and the gradient that it sends until the next one.
    """
    held, layers = HeldMemory(), stage.name_layers()
    rules.hold_state(held)
    neighbours = (stage.index > 0) + (not stage.is_last)
    held.take("other", neighbours * micro_batches * round_up(stage.stream_bytes))
    held.take("data", measured.data_bytes * micro_batches)
    joined = measured.data_bytes * micro_batches  # for the schedule, which cuts it again
    held.take("other", joined)
    head, sent = [("head", ROOT)] if stage.is_last else [], 0
    for kind in stage.list_passes(schedule, micro_batches):
        if kind == "F":
            held.begin("forward")
            play_segments(held, measured, rules, [("start", ROOT)], "")
            if stage.index > 0:  # received, not an embedding's result
                held.free("activations", stage.stream_bytes)
            play_segments(held, measured, rules, [*layers, *head], "")
            held.clear_cache()
            rules.end_forward(held)
            continue
        held.begin("backward")
        play_segments(held, measured, rules, [*head, layers[-1]], BACKWARD)
        if not stage.is_last:  # its output lives until the end of the pass
            held.take("activations", stage.stream_bytes)
        start = [("start", ROOT)] if stage.index == 0 else []
        play_segments(held, measured, rules, [*reversed(layers[:-1]), *start], BACKWARD)
        rules.end_backward()
        if not stage.is_last:
            held.free("activations", stage.stream_bytes)
        if stage.index > 0:
            for part in measured.parts(f"start{BACKWARD}", rules.copies):
                if isinstance(part, Stretch):
                    for cause, size in part.net.items():
                        held.take(cause, size)
            held.take("activations", stage.stream_bytes - sent)
            sent = stage.stream_bytes if schedule == "1f1b" else 0
            held.take("activations", sent)
    held.free("activations", sent)
    rules.reduce(held)
    held.free("other", joined)
    held.begin("optimizer")
    rules.update(held)
    held.look()
    return StepMemory(held.fullest)


def simulate_stages(
    measured: Measured,
    layers: int,
    axes: Axes,
    schedule: str,
    micro_batches: int,
    stream_bytes: int,
    shared: Mapping[str, Any],
) -> StepMemory:
    """Return the memory of the fullest stage's rank in a step.

    Args:
        stream_bytes: between two stages, of one micro-batch.
        shared: arguments of the rules that all stages have in common.
    """
    assert "first" in measured.segments, "layers by their numbers"
    found = []
    for index, own in enumerate(split_layers(layers, axes.pp)):
        stage = StagePlan(index, axes.pp, len(own), stream_bytes)
        first = measured.weights["start"] if index == 0 else []
        last = measured.weights["head"] if stage.is_last else []
        blocks = list_blocks(measured.weights, len(own))
        rules = StageRules(blocks=blocks, root=[*first, *last], accumulates=False, **shared)
        found.append(simulate_stage(measured, rules, stage, schedule, micro_batches))
    index = max(range(axes.pp), key=lambda at: found[at].peak[0])
    rank = index * (axes.world_size // axes.pp) + (axes.cp - 1) * axes.tp
    return replace(found[index], rank=rank)
