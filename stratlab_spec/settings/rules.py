"""Rules between settings: one value forbids or requires another. Each yields one sentence that names both.

`broken_settings` checks the settings of one run. The functions after it compare them with another run's. To resume
from the other's checkpoint the training must be equal; its execution may differ. Strategy, world size, micro-batch,
offloading, recomputation and knobs may differ: the next losses are equal to a run that continued in place. A
setting must be equal unless it is listed as free to differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stratlab_spec.registry import FINETUNED_NETWORKS, OPTIMIZERS, SIZES, list_own_settings, misplaced_sizes
from stratlab_spec.settings.faults import fault_problems
from stratlab_spec.settings.fields import TEXT_MODELS, VIT_MODELS, Settings
from stratlab_spec.strategies import KNOBS, STRATEGIES

ZEROPP_PARTS = ("hpz", "qwz", "qgz")
DEGREES = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")
ONLY_ND = ("layout", "dimensions", "cp", "tp", "pp", "ep", "pp_schedule", "cp_method", "sequence_parallel")
NO_OFFLOAD = {
    True: "each process holds the whole model; fsdp, hsdp, zero3 and zeropp can offload it",
    False: "not implemented; larger dp_shard, tp or pp make a rank's share smaller",
}
"""By `holds_whole_model`: reasons why host memory cannot hold anything."""
ALL_OR_NOTHING = (
    "fully_shard moves shards and optimizer state together; strategies that offload only the optimizer: "
    "zero1, zero2, zero3, zeropp"
)


def broken_settings(config: Settings) -> list[str]:
    """Return one sentence per broken rule, without looking at the machine or the data."""
    rules = (_model, _without_effect, _strategy, _nd, _length, _recording, _resuming)
    return [sentence for rule in rules for sentence in rule(config)]


def _model(config: Settings) -> Iterator[str]:
    if config.model_path and "model" in config.model_fields_set:
        yield (
            "TRAINER_MODEL, TRAINER_MODEL_PATH: both name a model, set only one; TRAINER_MODEL=null removes the "
            "model of a chart or a file [SL-model-twice]"
        )
    if (name := FINETUNED_NETWORKS.get(config.model)) and config.init == "scratch":
        yield (
            f"TRAINER_INIT=scratch, TRAINER_MODEL={config.model}: is {name} with published weights; with fresh ones "
            f"take {name} [SL-finetuned-scratch]"
        )
    yield from misplaced_sizes(config, VIT_MODELS, TEXT_MODELS)
    if config.dataset_path and "dataset" in config.model_fields_set and config.dataset == "digits":
        yield (
            "TRAINER_DATASET_PATH: digits is built in, leave out one of dataset, dataset_path [SL-dataset-twice]"
        )


def _without_effect(config: Settings) -> Iterator[str]:
    """Yield settings that the kind of model, or another setting, leaves without a meaning."""
    changed = {
        name: getattr(config, name)
        for name, field in Settings.model_fields.items()
        if not field.is_required() and getattr(config, name) != field.default
    }
    if config.is_text:
        of_pixels = [
            name
            for name in changed
            if "of_pixels" in (Settings.model_fields[name].json_schema_extra or ())  # type: ignore[operator]
        ]
        for name in of_pixels:
            yield (
                f"TRAINER_{name.upper()}={changed[name]}: a language model does not use pixels; leave it out "
                "[SL-pixels-for-text]"
            )
        if "batch_norm" in changed:
            yield (
                f"TRAINER_BATCH_NORM={config.batch_norm}: a language model has no batch norm; leave it out "
                "[SL-batch-norm-for-text]"
            )
        if config.target_accuracy_pct:
            yield (
                "TRAINER_TARGET_ACCURACY_PCT: a language model has no accuracy here; give TRAINER_TARGET_PERPLEXITY "
                "[SL-accuracy-for-text]"
            )
    else:
        if config.target_perplexity:
            yield (
                "TRAINER_TARGET_PERPLEXITY: images have no perplexity; give TRAINER_TARGET_ACCURACY_PCT "
                "[SL-perplexity-for-images]"
            )
        if config.text_columns:
            yield (
                f"TRAINER_TEXT_COLUMNS={config.text_columns!r}: images have no text; name their columns in "
                "TRAINER_IMAGE_COLUMN and TRAINER_LABEL_COLUMN [SL-text-columns-for-images]"
            )
        if "loss_chunk_tokens" in changed:
            yield (
                f"TRAINER_LOSS_CHUNK_TOKENS={config.loss_chunk_tokens}: images have no tokens, their loss is not "
                "computed in chunks; leave it out [SL-loss-chunks-for-images]"
            )
    if not config.lora_rank:
        unused = "has no effect without TRAINER_LORA_RANK above 0"
        if config.lora_targets:
            yield f"TRAINER_LORA_TARGETS: {unused} [SL-lora-targets-unused]"
        if "lora_alpha" in changed:
            yield f"TRAINER_LORA_ALPHA={config.lora_alpha:g}: {unused} [SL-lora-alpha-unused]"
    for name in ("distill_temperature", "distill_alpha"):
        if name in changed and not config.teacher:
            yield (
                f"TRAINER_{name.upper()}={changed[name]:g}: has no effect without TRAINER_TEACHER "
                "[SL-teacher-setting-unused]"
            )
    for optimizer in [name for name in OPTIMIZERS if name != config.optimizer]:
        for name in list_own_settings(optimizer):
            if name in changed:
                yield (
                    f"TRAINER_{name.upper()}={changed[name]}: has no effect with optimizer {config.optimizer}, only "
                    f"with {optimizer} [SL-optimizer-setting-unused]"
                )
    if config.optimizer == "sgd" and config.nesterov and not config.momentum:
        yield "TRAINER_NESTEROV=true: needs TRAINER_MOMENTUM above 0 [SL-nesterov-momentum]"


def _strategy(config: Settings) -> Iterator[str]:
    row = STRATEGIES[config.strategy]
    allowed = ("none", *row.offload)
    if config.offload not in allowed:
        reason = ALL_OR_NOTHING
        if not row.offload:
            reason = NO_OFFLOAD[row.holds_whole_model]
        elif config.offload == "all":
            names = ", ".join(name for name, each in STRATEGIES.items() if "all" in each.offload)
            reason = f"only strategies that gather parameters can offload them: {names}"
        yield (
            f"TRAINER_OFFLOAD={config.offload}: strategy {config.strategy} supports "
            f"{', '.join(allowed)} ({reason}) [SL-offload-strategy]"
        )
    if config.precision == "bf16_native" and not row.has_bf16_native:
        own = ", ".join(name for name, each in STRATEGIES.items() if each.has_bf16_native)
        yield (
            f"TRAINER_PRECISION=bf16_native: DeepSpeed's own bf16, which {own} have; with strategy {config.strategy} "
            "use bf16 [SL-bf16-native-strategy]"
        )
    yield from misplaced_knobs(config)
    if wrong := [part for part in config.zeropp.split(",") if part not in ZEROPP_PARTS]:
        yield (
            f"TRAINER_ZEROPP={config.zeropp!r}: {wrong[0]!r} is unknown; expected {', '.join(ZEROPP_PARTS)} "
            "[SL-zeropp-part]"
        )
    if "zeropp" in config.model_fields_set and config.strategy != "zeropp":
        yield (
            f"TRAINER_ZEROPP: has no effect with strategy {config.strategy}, only with zeropp [SL-zeropp-strategy]"
        )


def _nd(config: Settings) -> Iterator[str]:
    if config.strategy != "nd":
        for name in ONLY_ND:
            # 0 is a degree's value if it is not set
            if name in config.model_fields_set and (name not in DEGREES or getattr(config, name)):
                yield (
                    f"TRAINER_{name.upper()}: has no effect with strategy {config.strategy}, only with nd "
                    "[SL-nd-setting-unused]"
                )
        return
    if not config.is_text:
        yield (
            "TRAINER_STRATEGY=nd: trains language models, not images; name a language model in TRAINER_MODEL "
            "(with TRAINER_TASK=text for a hub id), or use ddp, fsdp or hsdp [SL-nd-images]"
        )
    given = [f"TRAINER_{name.upper()}={getattr(config, name)}" for name in DEGREES if getattr(config, name)]
    if given and config.layout == "auto":
        yield (
            f"TRAINER_LAYOUT=auto, {', '.join(given)}: auto chooses the degrees itself; "
            "set TRAINER_LAYOUT=given, or leave them out [SL-layout-auto-degrees]"
        )


def _length(config: Settings) -> Iterator[str]:
    if 0 < config.target_perplexity <= 1:
        yield (
            f"TRAINER_TARGET_PERPLEXITY={config.target_perplexity:g}: no model reaches it, give more than 1 "
            "[SL-perplexity-low]"
        )
    if {"epochs", "steps"} <= config.model_fields_set and config.steps:
        yield (
            "TRAINER_EPOCHS, TRAINER_STEPS: both set the length of training; set one of them and null for the other "
            "[SL-epochs-and-steps]"
        )
    if config.steps and config.warmup_steps >= config.steps:
        yield (
            f"TRAINER_WARMUP_STEPS={config.warmup_steps}: must be below TRAINER_STEPS={config.steps} "
            "[SL-warmup-above-steps]"
        )


def _recording(config: Settings) -> Iterator[str]:
    """Check recordings other than the profile that have no step to record."""
    if config.profile_steps and config.profile_first_step <= config.profile_warmup:
        yield (
            f"TRAINER_PROFILE_FIRST_STEP={config.profile_first_step}: must be above "
            f"TRAINER_PROFILE_WARMUP={config.profile_warmup}, because the warm-up comes first "
            "[SL-profile-before-warmup]"
        )
    if config.memory_snapshot and not config.profile_steps:
        yield (
            "TRAINER_MEMORY_SNAPSHOT=true: records the steps of the profile, which TRAINER_PROFILE_STEPS=0 switches "
            "off; expected false, or TRAINER_PROFILE_STEPS above 0 [SL-snapshot-no-profile]"
        )
    if not config.flops_profiler:
        return
    having = [name for name, row in STRATEGIES.items() if row.deepspeed_stage]
    if config.strategy not in having:
        yield (
            f"TRAINER_FLOPS_PROFILER=true: DeepSpeed's own, which {', '.join(having)} have; expected false with "
            f"strategy {config.strategy}, of which flops_per_sample in config.json is the lab's own count "
            "[SL-flops-profiler-strategy]"
        )
    elif config.compile:
        yield (
            "TRAINER_FLOPS_PROFILER=true: counts calls of torch's functions, which compiled blocks do not make; "
            "expected false with TRAINER_COMPILE=true [SL-flops-profiler-compile]"
        )
    if not (config.profile_steps and config.profile_warmup):
        yield (
            "TRAINER_FLOPS_PROFILER=true: counts in the first step of the profile's warm-up, which is missing; "
            "expected false, or TRAINER_PROFILE_STEPS and TRAINER_PROFILE_WARMUP above 0 "
            "[SL-flops-profiler-no-warmup]"
        )


def _resuming(config: Settings) -> Iterator[str]:
    yield from fault_problems(config.fault, config.allow_faults)
    if config.resume_from and config.resume == "never":
        yield (
            f"TRAINER_RESUME=never, TRAINER_RESUME_FROM={config.resume_from!r}: a run that resumes from another run "
            "also resumes from its own checkpoints; leave one of them out [SL-resume-never]"
        )
    if config.resume_from and config.mode == "evaluate":
        yield (
            f"TRAINER_RESUME_FROM={config.resume_from!r}: has no effect with TRAINER_MODE=evaluate "
            "[SL-resume-from-evaluate]"
        )


MODEL, DATA, UPDATES = "another model", "other samples, or another order", "other updates"
TEACHER = "teacher_sha256"
DATA_SHA256 = "data_sha256"
CLASS_NAMES_SHA256 = "class_names_sha256"
"""Their places in `resolved` of config.json."""
WHY: dict[str, str] = {
    name: why
    for why, names in (
        (MODEL, ("task", "model", "model_path", *SIZES, "image_size")),
        ("other statistics", ("batch_norm",)),
        ("other parameters are trained", ("lora_rank", "lora_alpha", "lora_targets")),
        ("other initial weights, another order of the samples", ("seed", "init")),
        (
            DATA,
            ("dataset", "dataset_path", "image_column", "label_column", "tokenizer", "seq_len", "packing"),
        ),
        (DATA, ("augment", "normalization", "validation_fraction", "train_samples", "global_batch_size")),
        ("its state is of another kind", ("optimizer", "momentum")),
        (UPDATES, ("lr", "lr_schedule", "warmup_steps", "weight_decay", "clip_norm")),
        (UPDATES, ("nesterov", "beta1", "beta2", "eps")),
        ("another loss", ("label_smoothing", "teacher", "distill_temperature", "distill_alpha")),
        ("only training goes on", ("mode",)),
    )
    for name in names
}
MAY_DIFFER = tuple(
    name
    for group in (
        "run comparison results image accelerator wait_s grace_s allow_faults fault",
        "strategy offload zeropp dp_replicate dp_shard",
        "layout dimensions cp tp pp ep pp_schedule cp_method sequence_parallel",
        "accumulate reshard_after_forward prefetch_blocks reduce_bucket_mib gather_bucket_mib",
        "overlap_reduction persistent_elements reduce_dtype static_graph",
        "activation_checkpointing compile loss_chunk_tokens micro_batch_size data_residence",
        "profile_first_step profile_warmup profile_steps profile_shapes profile_memory",
        "memory_snapshot flops_profiler flight_recorder",
        "checkpoint_every checkpoint_minutes checkpoint_keep checkpoint_keep_finished resume resume_from",
        "evaluate_every log_every tensorboard target_accuracy_pct target_perplexity",
        "collective_timeout_s max_attempts deadline_s oom_fallback memory_forecast on_not_finite",
        "least_gb_per_s allow_altered_answers",
        "precision",  # as requested; the resolved value is compared (RESOLVED)
        "steps epochs",  # a longer plan may resume, unless the learning rate follows its end
    )
    for name in group.split()
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
"""Facts of config.json's `resolved`; only the ranks know them."""
NEW_TRAINING = "to begin a new training with its weights, name its folder `model` in TRAINER_MODEL_PATH"


def snapshot_problems(config: Settings, *, gpu: bool) -> list[str]:
    """Return why the run cannot record a memory snapshot.

    Args:
        gpu: whether it trains on one.
    """
    if not config.memory_snapshot or gpu or config.mode != "train":
        return []
    return [
        "TRAINER_MEMORY_SNAPSHOT=true: is the history of torch's CUDA allocator, and there is no GPU here; expected "
        "false on a CPU, where TRAINER_PROFILE_MEMORY=true has the allocations in the traces [SL-snapshot-no-gpu]"
    ]


def continuation_problems(before: Mapping[str, Any], config: Settings) -> list[str]:
    """Return one sentence that names all settings that keep this run from resuming from another one; empty if it may.

    Args:
        before: the other run's, as in its config.json; settings that it did not know count as defaults.
    """
    differing = [
        name
        for name, field in Settings.model_fields.items()
        if before.get(name, field.default) != getattr(config, name)
    ]
    changed = [
        f"{name}={getattr(config, name)!r} (was {before.get(name)!r}: {WHY.get(name, 'another training')})"
        for name in differing
        if name not in MAY_DIFFER
    ]
    if config.lr_schedule != "constant" and {"steps", "epochs"} & {*differing}:
        changed.append(
            f"steps={config.steps}, epochs={config.epochs} (lr_schedule={config.lr_schedule} follows them)"
        )
    return _other_training(
        config.resume_from,
        changed,
        f". Set them to the earlier values; or, {NEW_TRAINING} [SL-resume-other-settings]",
    )


def resolved_problems(before: Mapping[str, Any], resolved: Mapping[str, Any], resume_from: str) -> list[str]:
    """Do the same for the resolved values; values that a run did not record are not compared."""
    changed = [
        f"{name}={resolved[name]!r} (was {before[name]!r}: {why})"
        for name, why in RESOLVED.items()
        if name in before and name in resolved and before[name] != resolved[name]
    ]
    return _other_training(resume_from, changed, f"; {NEW_TRAINING} [SL-resume-other-facts]")


def _other_training(resume_from: str, changed: list[str], cure: str) -> list[str]:
    if not changed:
        return []
    return [f"TRAINER_RESUME_FROM={resume_from!r}: is another training: {'; '.join(changed)}{cure}"]


def swapped_problems(before: Mapping[str, Any], resolved: Mapping[str, Any], config: Settings) -> list[str]:
    """Compare the facts of a further attempt of one run with equal settings: the files that they name may have changed.

    Initial weights do not count: the checkpoint holds them.

    Args:
        before, resolved: the resolved facts when the run began, and now.
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


def misplaced_knobs(config: Settings) -> Iterator[str]:
    """Yield one sentence per knob that is set and that the strategy does not have."""
    own = STRATEGIES[config.strategy].knobs
    for name, why in KNOBS.items():
        if name in config.model_fields_set and name not in own:
            having = ", ".join(each for each, row in STRATEGIES.items() if name in row.knobs)
            value = getattr(config, name)
            typed = str(value).lower() if isinstance(value, bool) else value
            yield (
                f"TRAINER_{name.upper()}={typed}: strategy {config.strategy} has no such knob "
                f"({why}), only {having}; leave it out [SL-knob-strategy]"
            )
