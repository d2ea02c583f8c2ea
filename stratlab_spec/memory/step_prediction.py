"""Predict the memory of one rank from recorded steps, for any sizes, without torch.

settings ─▶ find_recording ─▶ sizes ─▶ the strategy's rules ─▶ simulate ─▶ bytes by window and cause
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from stratlab_spec.layout.mesh_rules import resolve_axes
from stratlab_spec.layout.nd_layout import resolve_layout
from stratlab_spec.memory.nd_rules import (
    SCHEDULES,
    WHOLE,
    LayerSplit,
    SplitRules,
    nd_sizes,
    simulate_stages,
)
from stratlab_spec.memory.recording import (
    BACKWARD,
    FOLDER,
    FP32,
    Measured,
    NotRecorded,
    Recording,
    name_layer,
    read_recordings,
)
from stratlab_spec.memory.simulation import Rules, StepMemory, simulate
from stratlab_spec.memory.sizes import MOST_CHUNKS, image_sizes
from stratlab_spec.memory.strategy_rules import ShardedRules, WholeRules, list_blocks, list_weights
from stratlab_spec.memory.zero3_rules import Zero3Rules
from stratlab_spec.memory.zero3_trace import HEAD, START, ModuleTrace
from stratlab_spec.memory.zero_rules import START_ALIGNMENT, ZeroRules
from stratlab_spec.models.decoder import FAMILIES, DecoderShape
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.models.decoder_json import list_biased
from stratlab_spec.models.model_specs import default_image_size, read_vit_shape, registered_name
from stratlab_spec.models.pictures import MIXED, find_pictures
from stratlab_spec.registry import NETWORKS, count_moments, counts_steps
from stratlab_spec.schedule import count_micro_batches
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.library_rules import (
    EVERY,
    NONE,
    recomputes,
    reduce_bucket_bytes,
    reshards_after_forward,
)
from stratlab_spec.strategies import STRATEGIES


@dataclass(frozen=True)
class Flavor:
    """A way of holding weights: what a micro-batch allocates differs by it."""

    strategy: str
    """Recorded with it."""
    ranks: int
    strategies: tuple[str, ...]
    """For which it answers."""


FLAVORS = {
    "whole": Flavor("single", 1, ("single", "ddp", "zero1", "zero2", "zero3", "zeropp")),
    "sharded": Flavor("fsdp", 2, ("fsdp", "hsdp", "nd")),
}


def predict_step(config: Config, ranks: int, per_node: int) -> StepMemory:
    """Return the memory of the fullest rank in a step.

    Raises:
        NotRecorded: settings that no recording has.
        ConfigError, DataMissing: of the model's shape.
    """
    axes = resolve_axes(config, ranks, per_node)
    micro_batches = count_micro_batches(config.global_batch_size, config.micro_batch_size, axes.dp)
    split = _find_split(config, ranks)
    measured, layers = measure_recording(config, split)
    if axes.pp > 1:
        _check_plain(config, STAGED)
        stream = split.count_stream_bytes(config, read_shape(config))
        shared = _describe_shards(config, axes)
        return simulate_stages(measured, layers, axes, config.pp_schedule, micro_batches, stream, shared)
    rules = build_rules(config, measured, layers, axes, micro_batches, per_node)
    earlier = None
    if micro_batches > 1 and (
        config.strategy == "zero1" or (axes.dp_replicate > 1 and config.offload == "all")
    ):
        earlier = build_rules(config, measured, layers, axes, micro_batches - 1, per_node, completes=False)
    with _naming_setting(config):
        step = simulate(measured, rules, layers, micro_batches, earlier)
    # with allgather, the end of a row attends to all of it
    return replace(step, rank=(axes.cp - 1) * axes.tp)


def measure_recording(config: Config, split: LayerSplit = WHOLE) -> tuple[Measured, int]:
    """Return the recording of a run's model in bytes, and the number of its layers.

    Args:
        split: of strategy nd.

    Raises:
        NotRecorded, ConfigError, DataMissing: as `predict_step`.
    """
    flavor = next(
        (name for name, row in FLAVORS.items() if config.strategy in row.strategies), config.strategy
    )
    mode: dict[str, Any] = {
        "flavor": flavor,
        "precision": "bf16" if config.precision == "auto" else config.precision,
        "activation_checkpointing": config.activation_checkpointing,
        "lora": bool(config.lora_rank),
        GATHERED_LINEARS: _has_gathered_linears(config) or None,
    }
    if config.is_text:
        shape = read_shape(config)
        _check_layers(shape)
        sizes, chunks = nd_sizes(config, shape, split)
        mode |= {
            "packing": config.packing,
            "windowed": _needs_windows(config, shape),
            "tied": shape.tied and split.stages == 1,
            "chunks": min(chunks, MOST_CHUNKS),
        }
        if shape.experts:
            mode["experts_per_token"] = shape.experts_per_token
        mode |= split.describe()
        return find_layers(shape.family, mode, shape.layers).measure(sizes), shape.layers
    vit, pictures = read_vit_shape(config), find_pictures(config)
    edge = config.image_size or default_image_size(config)
    if vit is None and edge != default_image_size(config):
        raise NotRecorded(f"image_size={edge}")
    mode["mixed"] = config.augment in MIXED
    network = VIT if vit else registered_name(config) or config.model_name
    recording = find_layers(network, mode, vit.layers if vit else 0)
    measured = recording.measure(image_sizes(config, vit, pictures))
    return measured, vit.layers if vit else sum(name.isdecimal() for name in measured.weights)


def _has_gathered_linears(config: Config) -> bool:
    """Return whether linear layers keep parameters for the backward pass (trainer/models/mixed_precision.py)."""
    return STRATEGIES[config.strategy].deepspeed_stage == 3 and config.precision in ("fp32", "bf16_native")


def _check_layers(shape: DecoderShape) -> None:
    family = FAMILIES.get(shape.family)
    if family is None:
        raise NotRecorded(f"model_type={shape.family}")
    if differ := {*shape.biased} ^ {*list_biased(family, family.unsaid)}:
        raise NotRecorded(f"{shape.family} with other biases: {', '.join(sorted(differ))}")


@contextmanager
def _naming_setting(config: Config) -> Iterator[None]:
    """Name the setting where rules do not know the operations of a layer; the cause has the operations."""
    try:
        yield
    except NotRecorded as failure:
        model = read_shape(config).family if config.is_text else config.model_name
        raise NotRecorded(f"strategy={config.strategy} with layers of {model}") from failure


def _needs_windows(config: Config, shape: DecoderShape) -> bool:
    """Return whether windows change what is allocated; torch's kernel for packed rows only computes less."""
    narrow = any(0 < window < config.seq_len for window in shape.windows)
    return narrow and (FAMILIES[shape.family].scores_kept or not config.packing)


PLAIN: dict[str, tuple[Any, ...]] = {
    "compile": (False,),
    "teacher": ("",),
    "lora_targets": ("",),
    "batch_norm": ("local",),
    "static_graph": (False,),
    "reduce_dtype": ("fp32",),
    "accumulate": ("auto", "sharded"),
    "reshard_after_forward": ("auto", "on"),
    "prefetch_blocks": (1,),
}
"""Setting -> its values for which there are recordings and rules."""
OF_STAGE_3 = dict.fromkeys(("reshard_after_forward", "prefetch_blocks"), ("zero3", "zeropp"))
"""Setting -> strategies whose rules know every value."""
STAGED = PLAIN | {
    "accumulate": ("auto", "whole"),
    "reshard_after_forward": ("auto", "off"),
    "precision": ("auto", "bf16"),
    "pp_schedule": SCHEDULES,
    "activation_checkpointing": (NONE, "selective", "blocks"),
    "lora_rank": (0,),  # whole counts hold a stage's activations for longer, for a reason not yet found
}
"""The same with a pipeline."""
ENDS = ("start", "head", f"head{BACKWARD}", f"start{BACKWARD}")
"""Segments outside the layers."""
GATHERED_LINEARS = "gathered"
"""Mode of stage 3 where nothing casts; recorded only with True."""
VIT = "vit"
"""Family of all vision transformers."""
SAME_LAYERS = {"mistral": "llama"}
"""Family -> the one whose layers allocate the same."""


@cache
def _read_family(family: str) -> list[Recording]:
    if family not in (*FAMILIES, VIT, *NETWORKS):  # a name from a config.json is not a path
        return []
    name = SAME_LAYERS.get(family, family)
    paths = FOLDER / f"{name}.json.gz", FOLDER / f"{name}-nd.json.gz"
    return [one for path in paths if path.is_file() for one in read_recordings(path)]


def find_recording(family: str, mode: Mapping[str, Any]) -> Recording:
    """Return the recording of a family in this mode.

    Raises:
        NotRecorded: there is none; names the settings that differ from the nearest one.
    """
    known = _read_family(family)
    for one in known:
        if all(one.settings.get(name) == value for name, value in mode.items()):
            return one
    if not known:
        raise NotRecorded(f"model={family}")
    differ = [[name for name, value in mode.items() if one.settings.get(name) != value] for one in known]
    names = [name for name in min(differ, key=len) if name != GATHERED_LINEARS] or ["precision"]
    raise NotRecorded(", ".join(f"{name}={mode[name]}" for name in names))


def _mix_layers(kept: Recording, recomputed: Recording, setting: str, layers: int) -> Recording:
    """Return a recording of every layer by its number, each of one of two recordings."""
    segments = {name: events for name, events in kept.segments.items() if name in ENDS}
    for at in range(layers):
        one = recomputed if recomputes(setting, at) else kept
        name = name_layer(one.segments, at, layers)
        segments |= {f"{at}{part}": one.segments[f"{name}{part}"] for part in ("", BACKWARD)}
    return Recording(kept.settings, kept.weights, segments, kept.data)


def find_layers(family: str, mode: Mapping[str, Any], layers: int) -> Recording:
    """Return `find_recording`; with every_N, one whose layers are of two recordings.

    Args:
        layers: 0 = a network of fixed layers.

    Raises:
        NotRecorded: as `find_recording`.
    """
    setting = mode["activation_checkpointing"]
    if not layers or not setting.startswith(EVERY):
        return find_recording(family, mode)
    kept, recomputed = (
        find_recording(family, {**mode, "activation_checkpointing": each}) for each in (NONE, "blocks")
    )
    return _mix_layers(kept, recomputed, setting, layers)


def _check_plain(config: Config, known: Mapping[str, tuple[Any, ...]]) -> None:
    for name, values in known.items():
        if config.strategy in OF_STAGE_3.get(name, ()):
            continue
        if (value := getattr(config, name)) not in values:
            raise NotRecorded(f"{name}={value}")


def build_rules(
    config: Config,
    measured: Measured,
    layers: int,
    axes: Any,
    micro_batches: int,
    per_node: int,
    completes: bool = True,
) -> Rules:
    """Return what the run's strategy allocates in the last one of these micro-batches.

    Args:
        completes: it is the last one of the step.

    Raises:
        NotRecorded: a strategy or setting without rules.
    """
    _check_plain(config, PLAIN)
    moments, accumulates = count_moments(config), micro_batches > 1
    copies = _update_copies(config)
    if config.strategy in ("single", "ddp"):
        bucketed = config.strategy == "ddp"
        every, steps = list_weights(measured, layers), counts_steps(config)
        return WholeRules(every, moments, accumulates, bucketed, copies, counts_steps=steps)
    if config.strategy in ("fsdp", "hsdp", "nd"):
        kind = SplitRules if config.strategy == "nd" else ShardedRules
        return kind(
            blocks=list_blocks(measured.weights, layers),
            root=[*measured.weights["start"], *measured.weights["head"]],
            accumulates=accumulates,
            completes=completes,
            **_describe_shards(config, axes),
        )
    if (stage := STRATEGIES[config.strategy].deepspeed_stage) in (1, 2):
        return _build_zero(config, measured, layers, axes.dp_shard, stage, accumulates, completes)
    if stage == 3:
        return _build_zero3(config, measured, layers, axes.dp_shard, per_node, accumulates)
    raise NotRecorded(f"strategy={config.strategy}")


def _update_copies(config: Config) -> int:
    """Return 1 if torch's SGD adds the decay to a copy of all gradients (torch/optim/sgd.py)."""
    return int(config.optimizer == "sgd" and config.weight_decay > 0)


def _build_zero3(
    config: Config, measured: Measured, layers: int, shards: int, per_node: int, accumulates: bool
) -> Zero3Rules:
    hpz = config.strategy == "zeropp"
    if hpz and config.zeropp != "hpz":
        raise NotRecorded(f"zeropp={config.zeropp}")
    if config.offload == "all" and shards == 1:  # a count has no device, to which each weight is copied
        raise NotRecorded(f"offload={config.offload} with {config.strategy} on one rank")
    with _naming_setting(config):
        trace = measured.traces.get(layers) or _keep_trace(measured, layers)
    sizes = trace.elements_of_place
    total, outside = sum(sizes.values()), sizes[START] + sizes[HEAD]
    block = max(sizes[at] for at in range(layers))
    # as trainer/engines/deepspeed_config.py
    reuse = live = 2 * total
    if reshards_after_forward(config):
        reuse = block * (1 if config.activation_checkpointing == NONE else 2)
        live = outside + (1 + config.prefetch_blocks) * block
    return Zero3Rules(
        trace,
        shards=shards,
        bucket_elements=_bucket_elements(config, total),
        persistent_elements=config.persistent_elements,
        prefetch_elements=config.prefetch_blocks * block,
        live_elements=live,
        reuse_elements=reuse,
        moments=count_moments(config),
        accumulates=accumulates,
        keeps_embedding=config.packing or not config.is_text,
        update_copies=_update_copies(config),
        node_shards=per_node if hpz else 0,
        offload=config.offload,
        casts=config.precision in ("auto", "bf16", "fp16"),
    )


def _keep_trace(measured: Measured, layers: int) -> ModuleTrace:
    trace = measured.traces[layers] = ModuleTrace(measured, layers)
    return trace


def _bucket_elements(config: Config, total: int) -> int:
    """Return as trainer/engines/deepspeed_config.py: at most the model's, aligned."""
    return min(reduce_bucket_bytes(config) // FP32, -(-total // START_ALIGNMENT) * START_ALIGNMENT)


def _describe_shards(config: Config, axes: Any) -> dict[str, Any]:
    """Return what fully_shard's rules need in each strategy."""
    return {
        "shards": axes.dp_shard * axes.cp,
        "moments": count_moments(config),
        "counts_steps": counts_steps(config),
        "update_copies": _update_copies(config),
        "half": config.precision in ("auto", "bf16", "fp16"),
        "offloads": config.offload == "all",
        "replicated": axes.dp_replicate > 1,
    }


def _find_split(config: Config, ranks: int) -> LayerSplit:
    """Return how strategy nd splits a layer.

    Raises:
        NotRecorded: a split without recordings or rules.
    """
    if config.strategy != "nd":
        return WHOLE
    shape = read_shape(config)
    layout = resolve_layout(config, ranks, shape)
    axes = layout.axes
    split = LayerSplit(axes.tp, layout.sequence_parallel, axes.cp, config.cp_method, axes.pp)
    if shape.experts:  # a group of their own, over other ranks
        raise NotRecorded(f"experts={shape.experts} with nd")
    if split.repeats_heads(shape):
        raise NotRecorded(f"cp={axes.cp} with {shape.kv_heads // axes.tp} key heads")
    return split


def _build_zero(
    config: Config,
    measured: Measured,
    layers: int,
    shards: int,
    stage: int,
    accumulates: bool,
    completes: bool,
) -> ZeroRules:
    trained = {place: [one for one in group if one.trains] for place, group in measured.weights.items()}
    every = list_weights(measured, layers)
    return ZeroRules(
        first=trained["start"],
        blocks=list_blocks(trained, layers),
        last=trained["head"],
        shards=shards,
        stage=stage,
        bucket_elements=_bucket_elements(config, sum(one.elements for one in every)),
        buckets=1 + config.overlap_reduction,
        moments=count_moments(config),
        accumulates=accumulates,
        completes=completes,
        offloads=config.offload != "none",
        update_copies=_update_copies(config),
        frozen_bytes=sum(one.whole_bytes for one in every if not one.trains),
    )
