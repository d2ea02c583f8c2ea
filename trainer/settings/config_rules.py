"""Rules between settings: what one value forbids or asks of another. Each gives one sentence that names both."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.settings.fault import fault_problems
from trainer.settings.fields import TEXT_MODELS, VIT_MODELS, Settings
from trainer.settings.knob_table import misplaced_knobs
from trainer.settings.network_table import FINETUNED_NETWORKS
from trainer.settings.optimizer_table import OPTIMIZERS, list_own_settings
from trainer.settings.recording_rules import recording_problems
from trainer.settings.size_table import misplaced_sizes
from trainer.settings.strategy_table import STRATEGIES

ZEROPP_PARTS = ("hpz", "qwz", "qgz")

DEGREES = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")
ONLY_ND = ("layout", "dimensions", "cp", "tp", "pp", "ep", "pp_schedule", "cp_kind", "sequence_parallel")

OF_TEACHER = ("distil_temperature", "distil_weight")

NO_OFFLOAD = {
    True: "each process holds all of the model; fsdp and zero3 can keep it there",
    False: "not built here; larger dp_shard, tp or pp make a rank's share smaller",
}
"""By `holds_whole_model`, where nothing can be kept in host memory."""
ALL_OR_NOTHING = (
    "torch's optimizer keeps its state beside the shards that it updates, and fully_shard moves those with it; "
    "the optimizer alone there: zero1, zero2, zero3"
)


def broken_settings(config: Settings) -> list[str]:
    """One sentence per broken rule, without looking at the machine or the data."""
    return [
        *_model(config),
        *misplaced_sizes(config, VIT_MODELS, TEXT_MODELS),
        *_teacher(config),
        *_data(config),
        *_strategy(config),
        *_nd(config),
        *_optimizer(config),
        *_work(config),
    ]


def _model(config: Settings) -> Iterator[str]:
    if config.model_path and "model" in config.model_fields_set:
        yield (
            "TRAINER_MODEL, TRAINER_MODEL_PATH: both name a model, give one of them; TRAINER_MODEL=null takes back "
            "what a chart or a file names [SL-model-twice]"
        )
    if (name := FINETUNED_NETWORKS.get(config.model)) and config.init == "scratch":
        yield (
            f"TRAINER_INIT=scratch, TRAINER_MODEL={config.model}: is {name} with published weights; with fresh ones "
            f"take {name} [SL-finetuned-scratch]"
        )
    for name, field in type(config).model_fields.items() if config.is_text else ():
        extra, value = field.json_schema_extra, getattr(config, name)
        if isinstance(extra, dict) and "of_pixels" in extra and value != field.default:
            yield (
                f"TRAINER_{name.upper()}={value}: a language model sees no pixels; leave it out "
                "[SL-pixels-for-text]"
            )
    if config.is_text and config.batch_norm != "local":
        yield (
            f"TRAINER_BATCH_NORM={config.batch_norm}: a language model has no batch norm; leave it out "
            "[SL-batch-norm-for-text]"
        )
    if config.lora_targets and not config.lora_rank:
        yield "TRAINER_LORA_TARGETS: has no effect without TRAINER_LORA_RANK above 0 [SL-lora-targets-unused]"
    if config.lora_alpha != type(config).model_fields["lora_alpha"].default and not config.lora_rank:
        yield (
            f"TRAINER_LORA_ALPHA={config.lora_alpha:g}: has no effect without TRAINER_LORA_RANK above 0 "
            "[SL-lora-alpha-unused]"
        )


def _teacher(config: Settings) -> Iterator[str]:
    if config.teacher:
        return
    for name in OF_TEACHER:
        if (value := getattr(config, name)) != type(config).model_fields[name].default:
            yield (
                f"TRAINER_{name.upper()}={value:g}: has no effect without TRAINER_TEACHER "
                "[SL-teacher-setting-unused]"
            )


def _data(config: Settings) -> Iterator[str]:
    if config.dataset_path and "dataset" in config.model_fields_set and config.dataset == "digits":
        yield (
            "TRAINER_DATASET_PATH: digits is built in, leave out one of dataset, dataset_path "
            "[SL-dataset-twice]"
        )


def _strategy(config: Settings) -> Iterator[str]:
    allowed = ("none", *STRATEGIES[config.strategy].offload)
    if config.offload not in allowed:
        reason = ALL_OR_NOTHING
        if len(allowed) == 1:
            reason = NO_OFFLOAD[STRATEGIES[config.strategy].holds_whole_model]
        elif config.offload == "all":
            reason = "parameters leave the device only where they are gathered: zero3, fsdp, hsdp"
        yield (
            f"TRAINER_OFFLOAD={config.offload}: strategy {config.strategy} can keep there only "
            f"{', '.join(allowed)} ({reason}) [SL-offload-strategy]"
        )
    if config.precision == "bf16_native" and not STRATEGIES[config.strategy].has_bf16_native:
        own = ", ".join(name for name, row in STRATEGIES.items() if row.has_bf16_native)
        yield (
            f"TRAINER_PRECISION=bf16_native: DeepSpeed's own bf16, which {own} have; with strategy {config.strategy} "
            "use bf16 [SL-bf16-native-strategy]"
        )
    yield from misplaced_knobs(config)
    parts = config.zeropp.split(",")
    if wrong := [part for part in parts if part not in ZEROPP_PARTS]:
        yield (
            f"TRAINER_ZEROPP={config.zeropp!r}: {wrong[0]!r} is none of {', '.join(ZEROPP_PARTS)} "
            "[SL-zeropp-part]"
        )
    if "zeropp" in config.model_fields_set and config.strategy != "zeropp":
        yield (
            f"TRAINER_ZEROPP: has no effect with strategy {config.strategy}, only with zeropp "
            "[SL-zeropp-strategy]"
        )


def _nd(config: Settings) -> Iterator[str]:
    if config.strategy != "nd":
        given = [name for name in ONLY_ND if name in config.model_fields_set]
        # 0 is what a degree has where nobody names it
        given = [name for name in given if name not in DEGREES or getattr(config, name)]
        for name in given:
            yield (
                f"TRAINER_{name.upper()}: has no effect with strategy {config.strategy}, only with nd "
                "[SL-nd-setting-unused]"
            )
        return
    if not config.is_text:
        yield (
            "TRAINER_STRATEGY=nd: trains language models, not images; name one of them in TRAINER_MODEL "
            "(TRAINER_TASK=text says so of a hub id), or take ddp, fsdp or hsdp [SL-nd-images]"
        )
    given = [f"TRAINER_{name.upper()}={getattr(config, name)}" for name in DEGREES if getattr(config, name)]
    if given and config.layout == "auto":
        yield (
            f"TRAINER_LAYOUT=auto, {', '.join(given)}: auto chooses the degrees itself; "
            "set TRAINER_LAYOUT=given, or leave them out [SL-layout-auto-degrees]"
        )


def _optimizer(config: Settings) -> Iterator[str]:
    for optimizer in OPTIMIZERS:
        for name in list_own_settings(optimizer) if optimizer != config.optimizer else ():
            if (value := getattr(config, name)) != type(config).model_fields[name].default:
                yield (
                    f"TRAINER_{name.upper()}={value}: has no effect with optimizer {config.optimizer}, only with "
                    f"{optimizer} [SL-optimizer-setting-unused]"
                )
    if config.optimizer == "sgd" and config.nesterov and not config.momentum:
        yield "TRAINER_NESTEROV=true: needs TRAINER_MOMENTUM above 0 [SL-nesterov-momentum]"


def _work(config: Settings) -> Iterator[str]:
    if config.is_text and config.target_accuracy_pct:
        yield (
            "TRAINER_TARGET_ACCURACY_PCT: a language model has no accuracy here; give TRAINER_TARGET_PERPLEXITY "
            "[SL-accuracy-for-text]"
        )
    if not config.is_text and config.target_perplexity:
        yield (
            "TRAINER_TARGET_PERPLEXITY: images have no perplexity; give TRAINER_TARGET_ACCURACY_PCT "
            "[SL-perplexity-for-images]"
        )
    if (
        not config.is_text
        and config.loss_chunk_tokens != type(config).model_fields["loss_chunk_tokens"].default
    ):
        yield (
            f"TRAINER_LOSS_CHUNK_TOKENS={config.loss_chunk_tokens}: images have no tokens, their loss is not computed "
            "in chunks; leave it out [SL-loss-chunks-for-images]"
        )
    if 0 < config.target_perplexity <= 1:
        yield (
            f"TRAINER_TARGET_PERPLEXITY={config.target_perplexity:g}: no model reaches it, give more than 1 "
            "[SL-perplexity-low]"
        )
    if {"epochs", "steps"} <= config.model_fields_set and config.steps:
        yield (
            "TRAINER_EPOCHS, TRAINER_STEPS: both say how long to train, give one of them and null to the other "
            "[SL-epochs-and-steps]"
        )
    if config.profile_steps and config.profile_first_step <= config.profile_warmup:
        yield (
            f"TRAINER_PROFILE_FIRST_STEP={config.profile_first_step}: must be above "
            f"TRAINER_PROFILE_WARMUP={config.profile_warmup}, whose steps come before it [SL-profile-before-warmup]"
        )
    yield from recording_problems(config)
    yield from fault_problems(config.fault, config.allow_faults)
    if config.resume_from and config.resume == "never":
        yield (
            f"TRAINER_RESUME=never, TRAINER_RESUME_FROM={config.resume_from!r}: a run that goes on from another one "
            "goes on from its own checkpoints too; leave one of them out [SL-resume-never]"
        )
    if config.resume_from and config.mode == "evaluate":
        yield (
            f"TRAINER_RESUME_FROM={config.resume_from!r}: has no effect with TRAINER_MODE=evaluate "
            "[SL-resume-from-evaluate]"
        )
    if config.steps and config.warmup_steps >= config.steps:
        yield (
            f"TRAINER_WARMUP_STEPS={config.warmup_steps}: must be below TRAINER_STEPS={config.steps} "
            "[SL-warmup-above-steps]"
        )
