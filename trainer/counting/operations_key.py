"""Which settings the memory of a step depends on, and the key of an operations file; without torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from trainer.settings.config import Config

BATCH = ("global_batch_size", "micro_batch_size")
"""Scaled, or in `accumulates`."""
NEVER = (
    *(
        "run",
        "comparison",
        "results",
        "image",
        "accelerator",
        "wait_s",
        "grace_s",
        "allow_faults",
        "fault",
        "tensorboard",
    ),
    *("seed", "init", "mode", "tokenizer", "image_column", "label_column", "dataset", "dataset_path"),
    *("allow_altered_answers", "normalization", "data_residence", "validation_fraction", "train_samples"),
    *("lora_alpha", "distil_temperature", "distil_weight"),
    *(
        "epochs",
        "steps",
        "lr",
        "lr_schedule",
        "warmup_steps",
        "weight_decay",
        "nesterov",
        "beta1",
        "beta2",
        "eps",
    ),
    *("profile_first_step", "profile_warmup", "profile_steps", "profile_shapes", "profile_memory"),
    *("memory_snapshot", "flops_profiler", "flight_recorder"),
    *("checkpoint_every", "checkpoint_minutes", "checkpoint_keep", "checkpoint_keep_finished"),
    *(
        "resume",
        "resume_from",
        "evaluate_every",
        "log_every",
        "tensorboard",
        "target_accuracy_pct",
        "target_perplexity",
    ),
    *("on_not_finite", "collective_timeout_s", "oom_ladder", "memory_forecast", "max_attempts", "deadline_s"),
    "least_gb_per_s",
)
"""No tensor of a step depends on them. A data set gives classes and channels, which a file names."""
TEXT_ALONE = ("seq_len", "packing", "loss_chunk_tokens")
IMAGES_ALONE = ("image_size", "augment", "batch_norm", "label_smoothing")


def settings_that_matter(config: Config, scaled: tuple[str, ...]) -> dict[str, Any]:
    """Setting -> value: every one that is in no table above, so that a new setting counts as one that matters.

    Args:
        scaled: settings for whose values the file has an answer.
    """
    left_out = {*NEVER, *BATCH, *scaled, "task", *(IMAGES_ALONE if config.is_text else TEXT_ALONE)}
    given = config.model_dump(exclude=left_out)
    return {name: given[name] for name in sorted(given)}


def defaults_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What each of them is where nobody says anything. `precision` on a GPU of today."""
    found = {name: Config.model_fields[name].default for name in settings}
    return found | {"precision": "bf16"}


def build_key(content: Mapping[str, Any]) -> str:
    """Of what the figures of a file depend on."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
