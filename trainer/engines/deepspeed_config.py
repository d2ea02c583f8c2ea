"""Build DeepSpeed's complete configuration, so that none of its defaults applies (deepspeed 0.19.8).

`gradient_clipping` matters most: its default is 1.0 (deepspeed/runtime/constants.py, upstream #8068).

DeepSpeed silently ignores unknown keys at the top and in plain sections: a misspelt `zero_optimization` trains with
stage 0. So `check_keys` compares every key with the known ones.
"""

from __future__ import annotations

import copy
import difflib
from dataclasses import dataclass
from typing import Any

from torch import nn

from stratlab_spec.registry import ARGUMENTS
from stratlab_spec.schedule import count_micro_batches
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.library_rules import MIB, reduce_bucket_bytes, reshards_after_forward
from stratlab_spec.strategies import STRATEGIES
from trainer.distributed.world import Precision
from trainer.engines.torch_engine import optimizer_arguments

FP32 = 4
"""Bytes of an element; DeepSpeed counts buckets in elements."""
START_ALIGNMENT = 2
"""DeepSpeed's nccl_start_alignment_factor (stage_1_and_2.py); it asserts that gather buckets are a multiple of it."""

# Fixed for all runs.
_FIXED: dict[str, Any] = {
    "managed_gradient_accumulation": True,
    "prescale_gradients": False,
    "gradient_predivide_factor": 1.0,
    "gradient_allreduce_op": "mean",  # stage 3 lacks "sum"; the engine reverses the averaging
    "disable_allgather": False,
    "steps_per_print": 2**31,
    "wall_clock_breakdown": False,
    "memory_breakdown": False,
    "dump_state": False,
    "disable_python_gc": False,
    "dataloader_drop_last": False,
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    # the model casts (trainer/models/mixed_precision.py): DeepSpeed's autocast has one type for gathering and reducing
    "torch_autocast": {"enabled": False, "dtype": "bfloat16", "lower_precision_safe_modules": []},
    "fp16": {
        "enabled": False,
        "auto_cast": False,
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "consecutive_hysteresis": False,
        "min_loss_scale": 1,
        "fp16_master_weights_and_grads": False,
    },
    "bf16": {
        "enabled": False,
        "immediate_grad_update": False,
        "check_grad_overflow": True,
        "bf16_master_weights_and_grads": False,
        "bf16_optimizer_states": False,
    },
    "checkpoint": {
        "tag_validation": "Fail",
        "load_universal": False,
        "use_node_local_storage": False,
        "parallel_write": {"pipeline_stage": False},
    },
    # it waits for the device twice per micro-batch, for a number that is never read (utils/timer.py)
    "timers": {"throughput": {"enabled": False, "synchronized": False}},
}
# The section zero_optimization, complete for every stage; a stage ignores the keys it does not use.
_EVERY_STAGE: dict[str, Any] = {
    "contiguous_gradients": True,
    "reduce_scatter": True,
    "use_multi_rank_bucket_allreduce": True,
    "allgather_partitions": True,
    "compute_grad_norm": True,
    "load_from_fp32_weights": True,
    "elastic_checkpoint": False,
    "ignore_unused_parameters": True,
    "legacy_stage1": False,
    "round_robin_gradients": False,
    "parameter_alignment": False,
    "sub_group_size": 1_000_000_000,
    "zero_hpz_partition_size": 1,
    "zero_quantized_weights": False,
    "zero_quantized_nontrainable_weights": False,
    "zero_quantized_gradients": False,
    "memory_efficient_linear": False,  # its own autograd function ignores autocast, and differs from other strategies
    "override_module_apply": True,
    "pipeline_loading_checkpoint": False,
    "log_trace_cache_warnings": False,
    "enable_sanity_checks": False,
    "save_muon_momentum_buffer_in_memory": False,
}
_STAGE3: dict[str, Any] = {
    "stage3_model_persistence_threshold": 2**63 - 1,
    "stage3_gather_16bit_weights_on_model_save": False,
    "stage3_module_granularity_threshold": 0,
    "stage3_use_all_reduce_for_fetch_params": False,
    "stage3_allgather_sequential": False,
}
# Differences between the stages.
ZERO: dict[str, dict[str, Any]] = {
    name: {"stage": stage} | (_STAGE3 if stage == 3 else {})
    for name, row in STRATEGIES.items()
    if (stage := row.deepspeed_stage)
}
# For tests: without it stage 3 keeps every parameter of a small model and gathers nothing.
FORCED_GATHERS = {
    "stage3_param_persistence_threshold": 0,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
}


def _list_sections(settings: dict[str, Any], at: str = "") -> dict[str, tuple[str, ...]]:
    """Return the keys of each section, by its path; () = a plain value."""
    found: dict[str, tuple[str, ...]] = {}
    for key, value in settings.items():
        section = value if isinstance(value, dict) else {}
        found[f"{at}{key}"] = tuple(section)
        found |= {path: keys for path, keys in _list_sections(section, f"{at}{key}.").items() if keys}
    return found


_OF_THE_RUN = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
KNOWN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*_OF_THE_RUN, "gradient_clipping", "communication_data_type"), ()),
    **_list_sections(_FIXED),
    "optimizer": ("type", "params"),
    "optimizer.params": (*ARGUMENTS, "torch_adam", "fused"),
    "zero_optimization": (
        *(*_EVERY_STAGE, *_STAGE3, *FORCED_GATHERS, "stage", "overlap_comm"),
        *("allgather_bucket_size", "reduce_bucket_size", "offload_optimizer", "offload_param"),
    ),
    "zero_optimization.offload_optimizer": ("device", "pin_memory", "ratio", "fast_init"),
    "zero_optimization.offload_param": ("device", "pin_memory"),
    "data_types": ("grad_accum_dtype", "buffer_dtype"),
    "flops_profiler": (
        *("enabled", "recompute_fwd_factor", "profile_step", "module_depth", "top_modules", "detailed"),
        "output_file",
    ),
}
_TOP = tuple(name for name in KNOWN if "." not in name)


def check_keys(settings: dict[str, Any]) -> None:
    """Reject keys that DeepSpeed would ignore.

    Raises:
        ConfigError: lists every unknown key with the nearest known one.
    """
    if problems := _unknown_keys(settings):
        raise ConfigError(problems)


def _unknown_keys(settings: dict[str, Any], section: str = "") -> list[str]:
    allowed = KNOWN[section] if section else _TOP
    problems = []
    for key, value in settings.items():
        path = f"{section}.{key}" if section else key
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, n=1)
            hint = f", did you mean {near[0]}?" if near else ""
            problems.append(
                f"DeepSpeed setting {path} is unknown and would be ignored silently{hint} [SL-deepspeed-key]"
            )
        elif isinstance(value, dict) and KNOWN.get(path):
            problems += _unknown_keys(value, path)
    return problems


@dataclass(frozen=True)
class ModelSizes:
    """Elements of a model."""

    parameters: int
    block: int
    """Elements of the largest block."""
    outside: int
    """Elements of all parameters outside blocks."""


def measure_sizes(model: nn.Module) -> ModelSizes:
    """Measure a whole model (trainer/models/model_with_loss.py), before sharding."""
    whole = sum(p.numel() for p in model.parameters())
    blocks = [sum(p.numel() for p in block.parameters()) for block in model.blocks()]  # type: ignore[operator]
    return ModelSizes(whole, max(blocks), whole - sum(blocks))


def build_settings(
    config: Config,
    precision: Precision,
    *,
    world_size: int,
    processes_per_node: int,
    sizes: ModelSizes,
    device_type: str,
    profile_first: int | None = None,
    zero: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the settings for `deepspeed.initialize` and for the run directory.

    Args:
        sizes: of the model; a bucket is at most one element larger, to make an odd size even.
        profile_first: first recorded step of the plan; None = the setting.
        zero: entries of the section zero_optimization that override the strategy's own, for tests.

    Raises:
        ConfigError: a key is unknown to DeepSpeed.
    """
    native = precision.name == "bf16_native"
    own = "bf16" if native else "fp32"
    settings = copy.deepcopy(_FIXED) | {
        "train_batch_size": config.global_batch_size,
        "train_micro_batch_size_per_gpu": config.micro_batch_size,
        "gradient_accumulation_steps": count_micro_batches(
            config.global_batch_size, config.micro_batch_size, world_size
        ),
        "gradient_clipping": config.clip_norm,
        "communication_data_type": config.reduce_dtype,
        "data_types": {"grad_accum_dtype": own, "buffer_dtype": own},
        "zero_optimization": _zero_section(config, sizes, processes_per_node, device_type) | (zero or {}),
        "optimizer": _optimizer(config),
        # enabled for reuse of these settings elsewhere; a run switches it off (trainer/strategies/zero.py)
        "flops_profiler": {
            "enabled": config.flops_profiler,
            "recompute_fwd_factor": float(config.activation_checkpointing == "blocks"),
            # DeepSpeed counts steps from 0
            "profile_step": max(0, (profile_first or config.profile_first_step) - config.profile_warmup - 1),
            "module_depth": -1,
            "top_modules": 3,
            "detailed": True,
            "output_file": None,
        },
    }
    settings["bf16"]["enabled"] = native
    check_keys(settings)
    return settings


def _zero_section(
    config: Config, sizes: ModelSizes, processes_per_node: int, device_type: str
) -> dict[str, Any]:
    pinned = {"device": "cpu", "pin_memory": device_type != "cpu"}
    row = ZERO[config.strategy]
    section = {
        **_EVERY_STAGE,
        "overlap_comm": config.overlap_reduction,
        "allgather_bucket_size": _bucket(config.gather_bucket_mib * MIB, sizes),
        "reduce_bucket_size": _bucket(reduce_bucket_bytes(config), sizes),
        **(_gathering(config, sizes) if row["stage"] == 3 else {}),
        **row,
    }
    if config.offload != "none":
        section["offload_optimizer"] = {**pinned, "ratio": 1.0, "fast_init": False}
    if config.offload == "all":
        section["offload_param"] = pinned
    if config.strategy == "zeropp" and "hpz" in config.zeropp.split(","):
        # engines/quantization.py replaces DeepSpeed's qwz and qgz: its switches stay off
        section["zero_hpz_partition_size"] = processes_per_node
    return section


def _bucket(asked_bytes: int, sizes: ModelSizes) -> int:
    """Return the bucket's elements: at most the model's, rounded up to the alignment of stages 1 and 2."""
    return min(asked_bytes // FP32, -(-sizes.parameters // START_ALIGNMENT) * START_ALIGNMENT)


def _gathering(config: Config, sizes: ModelSizes) -> dict[str, Any]:
    """Map the gathering knobs of fully_shard to stage 3, which counts in elements.

    Stage 3 gathers single modules instead of blocks. So the settings give the elements to prefetch, and the reuse
    distance up to which it keeps a parameter. A recomputed block is used twice in a row, the second time in reverse
    order.
    """
    reuse = live = 2 * sizes.parameters
    if reshards_after_forward(config):
        reuse = sizes.block * (1 if config.activation_checkpointing == "none" else 2)
        live = sizes.outside + (1 + config.prefetch_blocks) * sizes.block
    return {
        "stage3_prefetch_bucket_size": config.prefetch_blocks * sizes.block,
        "stage3_param_persistence_threshold": config.persistent_elements,
        "stage3_max_live_parameters": live,
        "stage3_max_reuse_distance": reuse,
    }


def _optimizer(config: Config) -> dict[str, Any]:
    """Return torch's own optimizer, as with the other strategies; DeepSpeed's would be compiled at the first start."""
    arguments = optimizer_arguments(config)
    if config.optimizer == "sgd":
        return {"type": "SGD", "params": arguments}
    betas = list(arguments["betas"])  # a list, as JSON stores it
    return {"type": "AdamW", "params": {**arguments, "betas": betas, "torch_adam": True, "fused": True}}
