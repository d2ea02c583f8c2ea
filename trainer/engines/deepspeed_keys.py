"""The keys of DeepSpeed's configuration that make sense here, and the check that nothing else is in it.

DeepSpeed 0.19.8 ignores an unknown key at the top and in the plain sections silently: a misspelt `zero_optimization`
trains with stage 0.
"""

from __future__ import annotations

import difflib
from typing import Any

from trainer.settings.config import ConfigError
from trainer.settings.optimizer_table import ARGUMENTS

_OFFLOAD = ("device", "nvme_path", "buffer_count", "pin_memory")
# By section; () = a plain value.
KNOWN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
            *("managed_gradient_accumulation", "gradient_clipping", "prescale_gradients"),
            *("gradient_predivide_factor", "gradient_allreduce_op", "communication_data_type"),
            *("disable_allgather", "steps_per_print", "wall_clock_breakdown", "memory_breakdown"),
            *("dump_state", "disable_python_gc", "dataloader_drop_last"),
            *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"),
        ),
        (),
    ),
    "optimizer": ("type", "params", "legacy_fusion"),
    "optimizer.params": (*ARGUMENTS, "torch_adam", "fused", "foreach", "amsgrad"),
    "zero_optimization": (
        *("contiguous_gradients", "reduce_scatter", "use_multi_rank_bucket_allreduce"),
        *("allgather_partitions", "overlap_comm", "compute_grad_norm"),
        *("load_from_fp32_weights", "elastic_checkpoint", "ignore_unused_parameters"),
        *("legacy_stage1", "round_robin_gradients", "parameter_alignment", "sub_group_size"),
        *("zero_hpz_partition_size", "zero_quantized_weights"),
        *("zero_quantized_nontrainable_weights", "zero_quantized_gradients"),
        *("memory_efficient_linear", "override_module_apply", "pipeline_loading_checkpoint"),
        *("log_trace_cache_warnings", "enable_sanity_checks"),
        *("save_muon_momentum_buffer_in_memory", "stage3_prefetch_bucket_size"),
        *("stage3_param_persistence_threshold", "stage3_model_persistence_threshold"),
        *("stage3_max_live_parameters", "stage3_max_reuse_distance"),
        *("stage3_gather_16bit_weights_on_model_save", "stage3_module_granularity_threshold"),
        *("stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential"),
        *("stage", "allgather_bucket_size", "reduce_bucket_size", "offload_optimizer", "offload_param"),
    ),
    "zero_optimization.offload_optimizer": (
        *_OFFLOAD,
        "ratio",
        "fast_init",
        "pipeline_read",
        "pipeline_write",
    ),
    "zero_optimization.offload_param": (*_OFFLOAD, "buffer_size", "max_in_cpu"),
    "torch_autocast": ("enabled", "dtype", "lower_precision_safe_modules"),
    "fp16": (
        *("enabled", "auto_cast", "loss_scale", "initial_scale_power", "loss_scale_window"),
        *("hysteresis", "consecutive_hysteresis", "min_loss_scale"),
        *("fp16_master_weights_and_grads",),
    ),
    "bf16": (
        *("enabled", "immediate_grad_update", "check_grad_overflow"),
        *("bf16_master_weights_and_grads", "bf16_optimizer_states"),
    ),
    "data_types": ("grad_accum_dtype", "param_dtype", "buffer_dtype", "keep_in_fp32_modules"),
    "flops_profiler": (
        *("enabled", "recompute_fwd_factor", "profile_step", "module_depth", "top_modules", "detailed"),
        "output_file",
    ),
    "checkpoint": ("tag_validation", "load_universal", "use_node_local_storage", "parallel_write"),
    "checkpoint.parallel_write": ("pipeline_stage",),
    "timers": ("throughput",),
    "timers.throughput": ("enabled", "synchronized"),
}
_TOP = tuple(name for name in KNOWN if "." not in name)


def check_keys(settings: dict[str, Any], section: str = "") -> None:
    """Refuses keys that DeepSpeed would ignore.

    Raises:
        ConfigError: naming every unknown key with the nearest known one.
    """
    if problems := _unknown_keys(settings, section):
        raise ConfigError(problems)


def _unknown_keys(settings: dict[str, Any], section: str) -> list[str]:
    allowed = KNOWN[section] if section else _TOP
    problems = []
    for key, value in settings.items():
        path = f"{section}.{key}" if section else key
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, n=1)
            hint = f", did you mean {near[0]}?" if near else ""
            problems.append(
                f"DeepSpeed setting {path}: unknown, it would be ignored silently{hint} [SL-deepspeed-key]"
            )
        elif isinstance(value, dict) and KNOWN.get(path):
            problems += _unknown_keys(value, path)
    return problems
