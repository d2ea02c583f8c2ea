"""Predict the time of a step: recorded work on a card, the strategy's surcharge, the timeline of both queues.

settings ─▶ recorded work (kernels, host) ┐
            strategy's surcharge          ├─▶ spans in the order of a step ─▶ timeline.play ─▶ StepTime
            collectives of its weights    ┘
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stratlab_spec.layout.mesh_rules import resolve_axes
from stratlab_spec.memory.recording import BACKWARD, Measured, NotRecorded, Weight, name_layer
from stratlab_spec.memory.sizes import ROWS_AT_ONCE, decoder_sizes, image_sizes
from stratlab_spec.memory.step_prediction import FLAVORS, SAME_LAYERS, measure_recording
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.models.model_specs import read_vit_shape, registered_name
from stratlab_spec.models.pictures import MIXED, find_pictures
from stratlab_spec.schedule import count_micro_batches
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.library_rules import reduce_bucket_bytes
from stratlab_spec.step_time.collectives import EFA_P5, Links, links_of
from stratlab_spec.step_time.host_work import (
    Host,
    Surcharge,
    Trained,
    list_surcharges,
    sum_seconds,
)
from stratlab_spec.step_time.kernels import ATTENTION_BACKWARD, BACKWARD_FLOPS, Card, Kernel
from stratlab_spec.step_time.recorded_work import FIRST, HostWork, RecordedWork, count_pieces, find_work
from stratlab_spec.step_time.strategy_collectives import (
    DDP_BUCKET_BYTES,
    FP32,
    HALF,
    StrategyCollectives,
)
from stratlab_spec.step_time.timeline import StepSpan, StepTimeline, add_up, play
from stratlab_spec.strategies import STRATEGIES

IMAGE_COPY_S, TEXT_COPY_S = 3.2e-6, 1e-4
"""Of the device, for an image or for a micro-batch of text: input from the host, and its normalization."""
BATCH_HOST_S = 3e-4
DOCUMENT_TOKENS = 640
"""Tokens of a document in packed rows, if the data is not known: mean of the longest ones in MetaMathQA's rows."""
LONG_ROW = 4096
"""Tokens. Longer rows are meant for long documents: each is one document."""
KNOWN: dict[str, tuple[Any, ...]] = {
    "precision": ("auto", "bf16", "fp16"),
    "optimizer": ("adamw",),
    "offload": ("none",),
    "teacher": ("",),
    "lora_targets": ("",),
    "batch_norm": ("local",),
    "reduce_dtype": ("fp32",),
}
"""Setting -> its values for which there are operations."""
ON_A_CPU: dict[str, tuple[Any, ...]] = {"precision": ("auto", "fp32"), "compile": (False,)}
"""There `auto` is fp32."""
ALWAYS_ADDED = ("ddp",)
"""Strategies whose gradients are added in their buckets, in the first micro-batch too. On a CPU their reductions run
beside the backward pass; FSDP and DeepSpeed wait there for each collective."""
MOST_PLAYED = 6
"""Micro-batches of a step that are played; further ones take as long as the last of these did."""


@dataclass(frozen=True)
class StepTime:
    """The time of a step on one rank."""

    timeline: StepTimeline
    micro_batches: int

    @property
    def step_ms(self) -> float:
        return self.timeline.step_s * 1e3


def predict_step_time(
    config: Config,
    ranks: int,
    per_node: int,
    card: Card,
    host: Host | None = None,
    links: Links | None = None,
    document_tokens: int = 0,
) -> StepTime:
    """Return the time of a step.

    Args:
        document_tokens: of packed rows; 0 = `assume_document_tokens`.
        links: those of the card's type and of EFA_P5, if not given.

    Raises:
        NotRecorded: settings that no recording has.
        ConfigError, DataMissing: of the model's shape.
    """
    axes = resolve_axes(config, ranks, per_node)
    micro_batches = count_micro_batches(config.global_batch_size, config.micro_batch_size, axes.dp)
    for name, known in (KNOWN | (ON_A_CPU if card.one_queue else {})).items():
        if (value := getattr(config, name)) not in known:
            raise NotRecorded(f"{name}={value}")
    if axes.pp * axes.tp * axes.cp > 1:
        raise NotRecorded(f"strategy={config.strategy} with pp, tp or cp above 1")
    family, work, kernels = measure_work(config, document_tokens or assume_document_tokens(config))
    measured, layers = measure_recording(config)
    sharded = config.strategy in FLAVORS["sharded"].strategies
    strategy = "fsdp" if config.strategy == "nd" else config.strategy
    trained = _count_trained(measured, layers)
    surcharges = list_surcharges(family, strategy, ranks, axes.dp_shard, trained, sharded)
    stays_whole = config.persistent_elements if STRATEGIES[config.strategy].deepspeed_stage == 3 else 0
    collectives = StrategyCollectives(
        strategy,
        {
            place: sum(one.elements for one in weights if one.elements >= stays_whole)
            for place, weights in measured.weights.items()
        },
        {place: one.elements for place, one in trained.items() if place != "all"},
        axes.dp_shard,
        axes.dp_replicate,
        per_node,
        links or links_of(card.name, EFA_P5),
        _find_bucket_bytes(config),
        card.copy_tb_per_s * 1e12,
        [
            one.elements
            for place, weights in measured.weights.items()
            for one in weights * (layers if place == "layer" else 1)
            if one.elements < stays_whole
        ],
        FP32 if card.one_queue else HALF,
    )
    builder = _Spans(
        work, kernels, surcharges, card, host or Host(), collectives, config.compile, micro_batches
    )
    update = builder.build("optimizer", "optimizer", "optimizer", False, True)
    update = replace(update, joins=True, sends_s=collectives.update(trained["all"].elements))

    def play_some(count: int) -> StepTimeline:
        spans: list[StepSpan] = []
        for index in range(count):
            adds = index > 0 or config.strategy in ALWAYS_ADDED
            spans += builder.list_micro_batch(layers, adds, index == count - 1, _copy_seconds(config))
        if card.one_queue:
            return add_up([*spans, update], config.strategy in ALWAYS_ADDED)
        return play([*spans, update])

    timeline = play_some(min(micro_batches, MOST_PLAYED))
    if micro_batches > MOST_PLAYED:
        timeline = timeline.extend(play_some(MOST_PLAYED - 1), micro_batches - MOST_PLAYED)
    return StepTime(timeline, micro_batches)


def _find_bucket_bytes(config: Config) -> int:
    if config.strategy == "ddp":
        return config.reduce_bucket_mib * 2**20 or DDP_BUCKET_BYTES
    return reduce_bucket_bytes(config)


def _copy_seconds(config: Config) -> float:
    return TEXT_COPY_S if config.is_text else IMAGE_COPY_S * config.micro_batch_size


def assume_document_tokens(config: Config) -> int:
    """Return the tokens of a document in the rows of a run whose data is not known."""
    is_short = config.packing and config.seq_len <= LONG_ROW
    return min(DOCUMENT_TOKENS, config.seq_len) if is_short else config.seq_len


def measure_work(config: Config, document_tokens: int) -> tuple[str, RecordedWork, dict[str, list[Kernel]]]:
    """Return (family, its recorded work, kernels of each segment) of a run's micro-batch.

    Raises:
        NotRecorded, ConfigError, DataMissing: as `predict_step_time`.
    """
    flavor = next(name for name, row in FLAVORS.items() if config.strategy in row.strategies)
    mode: dict[str, Any] = {
        "flavor": flavor,
        "activation_checkpointing": config.activation_checkpointing,
        "lora": bool(config.lora_rank),
    }
    if config.is_text:
        shape = read_shape(config)
        family = SAME_LAYERS.get(shape.family, shape.family)
        sizes, _ = decoder_sizes(config, shape)
        if shape.experts:
            mode["experts_per_token"] = shape.experts_per_token
        tokens = config.micro_batch_size * config.seq_len
        loss = count_pieces(tokens, config.loss_chunk_tokens, ROWS_AT_ONCE)
        work = find_work(family, mode | {"packing": config.packing})
        document = min(document_tokens, config.seq_len)
        return family, work, work.measure(sizes, loss, document, config.compile)
    vit, pictures = read_vit_shape(config), find_pictures(config)
    family = "vit" if vit else registered_name(config)
    work = find_work(family, mode | {"mixed": config.augment in MIXED})
    sizes = image_sizes(config, vit, pictures)
    if vit:
        sizes["D"] = vit.hidden // vit.heads
    return family, work, work.measure(sizes, count_pieces(1, 1, 1), 0, config.compile)


def count_sample_flops(config: Config) -> float:
    """Return the FLOPs of an image, forward and backward without recomputation; attention's are in whole tiles.

    Raises:
        NotRecorded, ConfigError, DataMissing: as `predict_step_time`.
    """
    plain: dict[str, Any] = {"strategy": "single", "activation_checkpointing": "none", "compile": False}
    config = config.model_copy(update=plain)
    _, work, kernels = measure_work(config, assume_document_tokens(config))
    layers = measure_recording(config)[1]
    names = ["start", *(name_layer(work.segments, at, layers) for at in range(layers)), "head"]
    passes = [name + part for name in names for part in ("", BACKWARD)]
    every = [kernel for name in passes for kernel in kernels.get(name, ())]
    again = sum(
        (1 - 2 / BACKWARD_FLOPS) * kernel.flops for kernel in every if kernel.kind == ATTENTION_BACKWARD
    )
    return (sum(kernel.flops for kernel in every) - again) / config.micro_batch_size


def _count_trained(measured: Measured, layers: int) -> dict[str, Trained]:
    def count(weights: list[Weight]) -> Trained:
        trained = [one for one in weights if one.trains]
        return Trained(len(trained), sum(one.elements for one in trained))

    found = {place: count(weights) for place, weights in measured.weights.items()}
    if "layer" in found:
        times = {place: layers if place == "layer" else 1 for place in found}
    else:
        times = dict.fromkeys(found, 1)
    every = [(one, times[place]) for place, one in found.items()]
    found["all"] = Trained(*(sum(one[at] * n for one, n in every) for at in range(2)))
    return found


@dataclass(frozen=True)
class _Spans:
    """Build a step's spans."""

    work: RecordedWork
    kernels: Mapping[str, list[Kernel]]
    surcharges: Mapping[str, Surcharge]
    card: Card
    host: Host
    collectives: StrategyCollectives
    compiled: bool
    micro_batches: int
    _built: dict[Any, StepSpan] = field(default_factory=dict, compare=False, repr=False)

    def list_micro_batch(self, layers: int, adds: bool, completes: bool, copy_s: float) -> Iterator[StepSpan]:
        """Yield the spans of a forward and a backward pass."""
        yield StepSpan("data", "data", copy_s, 1, BATCH_HOST_S)
        names = [name_layer(self.work.segments, at, layers) for at in range(layers)]
        for name in ("start", *names, "head"):
            yield self.build(name, name, "forward", adds, completes)
        ordered = ("head", *reversed(names), "start")
        places = [name for name in ordered if f"{name}{BACKWARD}" in self.work.segments]
        sends = self.collectives.fill_buckets(places, completes)
        for name, seconds in zip(places, sends, strict=True):
            span = self.build(f"{name}{BACKWARD}", name, "backward", adds, completes)
            yield replace(span, sends_s=span.sends_s + seconds)

    def _find_surcharge(self, segment: str, place: str, phase: str, completes: bool) -> Surcharge | None:
        """Return what the strategy adds: gathers of the first micro-batch, reductions of the last one."""
        if phase == "optimizer":
            return self.surcharges[segment]
        part = BACKWARD * segment.endswith(BACKWARD)
        if not completes or (self.micro_batches == 1 and phase == "forward"):
            part += FIRST
        return self.surcharges.get(place + part) or self.surcharges.get(f"layer{part}")

    def build(self, segment: str, place: str, phase: str, adds: bool, completes: bool) -> StepSpan:
        """Return a segment's span.

        Args:
            adds: gradients to those of an earlier micro-batch.
            completes: it is the last micro-batch.
        """
        key = segment, place, phase, adds, completes
        if key not in self._built:  # equal layers are one
            self._built[key] = self._build(*key)
        return self._built[key]

    def _build(self, segment: str, place: str, phase: str, adds: bool, completes: bool) -> StepSpan:
        known = self._find_surcharge(segment, place, phase, completes)
        kernels = [*self.kernels.get(segment, ()), *(known.kernels if known else ())]
        work = self.work.host(segment) if segment in self.work.segments else HostWork()
        if adds:
            added = self.kernels.get(f"{segment}+", ())
            kernels += added
        else:
            work = work.plus(HostWork(launches=len(self.kernels.get(f"{segment}+", ()))), -1)
        compiled = self.compiled and segment in self.work.segments and bool(self.work.segments[segment].fused)
        if compiled:
            issued = self.host.compiled_seconds(len(kernels), work.packed)
            host_s = issued + (self.host.seconds(known.host, False) if known else 0.0)
        else:
            host_s = self.host.seconds(work.plus(known.host) if known else work, phase == "forward")
        transfers = self.collectives.span(place, phase, completes)
        return StepSpan(
            segment,
            phase,
            sum_seconds(kernels, self.card),
            sum(kernel.launches for kernel in kernels),
            host_s,
            known.waits if known else 0,
            transfers.needs_s,
            transfers.sends_s,
        )
