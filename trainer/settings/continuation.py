"""What must be equal for one run to go on from a checkpoint of another one: the training, whatever carries it out.

Strategy, world size, micro-batch, offloading, recomputation and knobs may differ: the next losses are those of the run
that was not moved. A setting that is not said to be free to differ must be equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainer.settings.fields import Settings
from trainer.settings.size_table import SIZES

MODEL, DATA, UPDATES = "another model", "other samples, or another order", "other updates"
TEACHER = "teacher_sha256"
DATA_SHA256 = "data_sha256"
CLASS_NAMES_SHA256 = "class_names_sha256"
"""Their places in `resolved` of config.json."""
WHY: dict[str, str] = {
    **dict.fromkeys(("task", "model", "model_path", *SIZES, "image_size"), MODEL),
    "batch_norm": "other statistics",
    **dict.fromkeys(("lora_rank", "lora_alpha", "lora_targets"), "other parameters are trained"),
    **dict.fromkeys(("seed", "init"), "other initial weights, another order of the samples"),
    **dict.fromkeys(("dataset", "dataset_path", "image_column", "label_column", "tokenizer"), DATA),
    **dict.fromkeys(
        ("seq_len", "packing", "augment", "normalization", "validation_fraction", "train_samples"), DATA
    ),
    "global_batch_size": DATA,
    **dict.fromkeys(("optimizer", "momentum"), "its state is of another kind"),
    **dict.fromkeys(("lr", "lr_schedule", "warmup_steps", "weight_decay", "clip_norm"), UPDATES),
    **dict.fromkeys(("nesterov", "beta1", "beta2", "eps"), UPDATES),
    **dict.fromkeys(("label_smoothing", "teacher", "distil_temperature", "distil_weight"), "another loss"),
    "mode": "only training goes on",
}
MAY_DIFFER = (
    *("run", "comparison", "results", "image", "accelerator", "wait_s", "grace_s", "allow_faults", "fault"),
    *("strategy", "offload", "zeropp", "dp_replicate", "dp_shard"),
    *("layout", "dimensions", "cp", "tp", "pp", "ep", "pp_schedule", "cp_kind", "sequence_parallel"),
    *("accumulate", "reshard_after_forward", "prefetch_blocks", "reduce_bucket_mib", "gather_bucket_mib"),
    *("overlap_reduction", "persistent_elements", "reduce_dtype", "static_graph"),
    *("activation_checkpointing", "compile", "loss_chunk_tokens", "micro_batch_size", "data_residence"),
    *("profile_first_step", "profile_warmup", "profile_steps", "profile_shapes", "profile_memory"),
    *("memory_snapshot", "flops_profiler", "flight_recorder"),
    *(
        "checkpoint_every",
        "checkpoint_minutes",
        "checkpoint_keep",
        "checkpoint_keep_finished",
        "resume",
        "resume_from",
        "evaluate_every",
        "log_every",
        "tensorboard",
    ),
    *(
        "target_accuracy_pct",
        "target_perplexity",
        "collective_timeout_s",
        "max_attempts",
        "deadline_s",
        "oom_ladder",
        "memory_forecast",
        "on_not_finite",
        "least_gb_per_s",
        "allow_altered_answers",
    ),
    "precision",  # asked for; what it became is compared (RESOLVED)
    *("steps", "epochs"),  # a longer plan goes on, unless the learning rate follows its end
)
RESOLVED: dict[str, str] = {
    "precision": "weights and moments of another kind, other rounding; give the same TRAINER_PRECISION",
    DATA_SHA256: DATA,
    CLASS_NAMES_SHA256: "the classes have other names, or another order",
    "train_samples": DATA,
    "batch_norm_samples": "batch norm takes the statistics of so many samples; see TRAINER_MICRO_BATCH_SIZE",
    "initial_weights_sha256": "training began elsewhere",
    "trainable_parameters": "other parameters are trained",
    TEACHER: "another loss: the teacher has other weights",
}
"""Of config.json's `resolved`; known to the ranks alone."""
NEW_TRAINING = "to begin a new training with its weights, name its folder `model` in TRAINER_MODEL_PATH"


def continuation_problems(before: Mapping[str, Any], config: Settings) -> list[str]:
    """One sentence that names all settings that keep this run from going on from another one; none if it may.

    Args:
        before: the other run's, as in its config.json; one that it did not know counts as left alone.
    """
    changed = [*_changed(before, config)]
    if config.lr_schedule != "constant" and any(
        _differs(before, config, name) for name in ("steps", "epochs")
    ):
        changed.append(
            f"steps={config.steps}, epochs={config.epochs} (lr_schedule={config.lr_schedule} follows them)"
        )
    if not changed:
        return []
    return [
        f"TRAINER_RESUME_FROM={config.resume_from!r}: is another training: {'; '.join(changed)}. Leave them as they "
        f"were there; or, {NEW_TRAINING} [SL-resume-other-settings]"
    ]


def _changed(before: Mapping[str, Any], config: Settings) -> Iterator[str]:
    for name in Settings.model_fields:
        if name not in MAY_DIFFER and _differs(before, config, name):
            why = WHY.get(name, "another training")
            yield f"{name}={getattr(config, name)!r} (was {before.get(name)!r}: {why})"


def _differs(before: Mapping[str, Any], config: Settings, name: str) -> bool:
    return before.get(name, Settings.model_fields[name].default) != getattr(config, name)


def resolved_problems(before: Mapping[str, Any], resolved: Mapping[str, Any], resume_from: str) -> list[str]:
    """The same of what the settings came to; a fact that one of them did not write down is not compared."""
    changed = [
        f"{name}={resolved[name]!r} (was {before[name]!r}: {why})"
        for name, why in RESOLVED.items()
        if name in before and name in resolved and before[name] != resolved[name]
    ]
    if not changed:
        return []
    return [
        (
            f"TRAINER_RESUME_FROM={resume_from!r}: is another training: {'; '.join(changed)}; {NEW_TRAINING} "
            "[SL-resume-other-facts]"
        )
    ]


def swapped_problems(before: Mapping[str, Any], resolved: Mapping[str, Any], config: Settings) -> list[str]:
    """Of a further attempt of one run, whose settings are equal: something else may lie where they point.

    Initial weights are no such thing: they stand in the checkpoint.

    Args:
        before, resolved: what the settings came to when the run began, and now.
    """
    data = "dataset_path" if config.dataset_path else "dataset"
    swapped = ((TEACHER, "teacher", "has other weights"), (DATA_SHA256, data, "has other samples"))
    return [
        f"TRAINER_{setting.upper()}={getattr(config, setting)!r}: {what} than when this run began ({fact} "
        f"{resolved.get(fact)}, was {before[fact]}); put the first ones back, or choose "
        "another name (TRAINER_RUN) [SL-run-files-swapped]"
        for fact, setting, what in swapped
        if before.get(fact) not in (None, resolved.get(fact))
    ]
