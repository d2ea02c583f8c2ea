"""Facts that must be equal before two strategies may be compared: one table, one row per fact, with the reason.

Facts that a strategy implies (its name, its axes, its memory) are not in the table. A setting that no row names is
compared as well, and matters: a new setting cannot slip past the audit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stratlab_spec.strategies import KNOBS

Path = tuple[str, ...]

IMPLIED = {
    *KNOBS,
    *("run", "comparison", "results", "image", "accelerator", "wait_s", "grace_s", "allow_faults"),
    *(
        "strategy",
        "dp_replicate",
        "dp_shard",
        "axes",
        "zeropp",
        "layout",
        "dimensions",
        "cp",
        "tp",
        "pp",
        "ep",
    ),
    *("pp_schedule", "cp_method", "sequence_parallel"),
}
SIZES = (
    *("model_layers", "model_hidden", "model_heads", "model_kv_heads", "model_intermediate"),
    *("model_patch", "model_vocab"),
)
MOMENTS = ("momentum", "nesterov", "beta1", "beta2", "eps")
TASKS = ("image", "text")
PART = "as observed, what each strategy is made of"
TUNED_BY = "how each strategy is tuned, part of what is compared"
ATTENTION = "follows from precision, packing, layout, device and torch"
BATCH_NORM = "batch norm takes the statistics of more samples"
ACTIVATIONS = (
    "what tensor and context parallelism add up, in the type of the products: the losses are held against each "
    "other"
)
QUANTIZED = "how many bits zeropp sends of which parameters, part of what is compared"
TUNED_ALONE = "the best of one strategy against another one as it comes"
OTHER_NODES = "other machines; whether they are alike, device, processor and clocks tell"
BESIDE = "they were at work on its nodes during its steps, and took from it"
LINKS = "as NCCL's log tells: the same bytes take another time"
FELL_BACK = "a faster transport is there, and NCCL does not use it"
RESUMED = "its first steps are another run's; comparable only with what went on from the same checkpoint"
LADDER = "it ran out of memory with its settings, and continued with others"
NOT_FINITE = "a loss or gradient that is not finite: the learning is in doubt"
STRAGGLER = "a slow rank has held the others up; the machine's fault, and step times have it in them"
RECORDING = "recording costs time in the traced steps"


@dataclass(frozen=True)
class Rule:
    """One fact of a run, and the meaning of a difference in it.

    Attributes:
        field: its name in the report.
        source: `config` (config.json), `summary` (summary.json), `ranks` (the distinct values over all
            ranks/rank*.json), `attempts` (how many have started), `place` (`RunPlacement`), `tuning` (`run_sources`).
        path: keys below the source.
        matters: a difference forbids naming a winner.
        expected: the only correct value, even when all runs agree on another one; None = any.
        instead: `field` of the rule whose fact replaces an empty one.
        replaced_by: the setting that overrides this one if it is set in all runs.
        absent: the meaning of an empty value; "" = unknown. For a setting that older runs do not name: their
            behaviour without it.
        task: the only kind of runs that has this fact, `image` or `text`; "" = all.
        none: the meaning of an empty list of the ranks, if it is not "not recorded".
        added: of the types in which ranks have added up, only those for "gradients" or for "activations"
            (`variants`); "" = the whole fact.
    """

    field: str
    source: str
    path: Path
    matters: bool
    why: str
    expected: Any = None
    instead: str = ""
    replaced_by: str = ""
    absent: Any = ""
    task: str = ""
    none: str = ""
    added: str = ""


@dataclass
class Difference:
    """A finding of the audit, as report.json has it: a fact that differs between runs, or is wrong or unknown."""

    field: str
    values: dict[str, Any]
    """Run -> its value."""
    matters: bool
    why: str
    varied: str = ""
    """The varied settings that it is or follows from, with commas; "" = it is not meant."""

    @property
    def causes(self) -> list[str]:
        """The names in `varied`."""
        return self.varied.split(", ") if self.varied else []

    @property
    def keeps_apart(self) -> bool:
        """It matters, and is not meant."""
        return self.matters and not self.varied


def _setting(
    name: str, why: str, matters: bool = True, task: str = "", absent: Any = "", **more: Any
) -> Rule:
    return Rule(name, "config", ("config", name), matters, why, task=task, absent=absent, **more)


def _aside(name: str, why: str, task: str = "", absent: Any = "") -> Rule:
    """Return a setting that does not matter."""
    return _setting(name, why, False, task, absent)


def _resolved(name: str, why: str, matters: bool = True, task: str = "", absent: str = "") -> Rule:
    return Rule(name, "config", ("resolved", name), matters, why, task=task, absent=absent)


def _decided(name: str, why: str, matters: bool = True, absent: str = "", task: str = "") -> Rule:
    """Return the rule for a setting's resolved value."""
    return replace(_resolved(name, why, matters, task, absent), field=f"resolved.{name}")


def _provenance(name: str, why: str, **more: str) -> Rule:
    return Rule(name, "config", ("provenance", name), True, why, **more)


def _version(name: str, why: str, absent: str = "") -> Rule:
    return Rule(name, "config", ("provenance", "versions", name), True, why, absent=absent)


def _summary(field: str, name: str, why: str, matters: bool = True, **more: Any) -> Rule:
    return Rule(field, "summary", (name,), matters, why, **more)


def _seen(field: str, path: str, why: str, matters: bool = True, **more: str) -> Rule:
    """Return the rule for a fact that every rank has recorded; `path` with dots."""
    return Rule(field, "ranks", tuple(path.split(".")), matters, why, **more)


def _types(kind: str, why: str, matters: bool = True, field: str = "", **more: str) -> Rule:
    return _seen(field or f"{kind.removesuffix('s')} dtypes", f"dtypes.{kind}", why, matters, **more)


def _gpu(name: str, why: str) -> Rule:
    """Return the rule for a limit of the GPU; absent on a CPU, and unknown without NVML."""
    return _seen(f"GPU {name}", f"gpu.{name}", why, absent="not to be had")


def _place(field: str, name: str, why: str, matters: bool = True, **more: str) -> Rule:
    return Rule(field, "place", (name,), matters, why, **more)


RULES: tuple[Rule, ...] = (
    # data
    _setting("dataset", "other data", replaced_by="dataset_path"),
    _aside("dataset_path", "the same data may lie elsewhere; data_sha256 tells"),
    _setting("task", "another task"),
    _setting("image_column", "other inputs", task="image"),
    _setting("label_column", "other labels", task="image"),
    _setting("augment", "other inputs", task="image"),
    _aside("normalization", "asked for; the resolved preprocessing decides", "image"),
    _aside("data_residence", "asked for; where the images are decides", "image"),
    _resolved("preprocessing", "other inputs", task="image", absent="not told: -1 to 1"),
    _decided("data_residence", "other work to fetch a batch", task="image"),
    _aside("tokenizer", "the same one may lie elsewhere; tokenizer_sha256 tells", "text"),
    _resolved("tokenizer_sha256", "other tokens", task="text"),
    _setting("seq_len", "other rows, and more work in each", task="text"),
    _decided("seq_len", "other rows, and more work in each", task="text"),
    _aside("allow_altered_answers", "the tokens' hash decides", "text", "not recorded"),
    _setting("packing", "other rows, and less padding in each", task="text"),
    _setting("validation_fraction", "other training samples"),
    _aside("train_samples", "a cap on the training samples"),  # its effect is in the hashes
    _resolved("data_sha256", "other data"),
    _resolved("text", "other rows of tokens", task="text"),
    _decided("train_samples", "other training samples"),
    _resolved("validation_samples", "other samples behind the validation numbers"),
    _resolved("test_samples", "other samples behind the test numbers"),
    _resolved("num_labels", "another task", task="image"),
    _summary("data_order_sha256", "data_order_sha256", "the samples came in another order"),
    _seen("data_order_sha256 of the ranks", "data_order_sha256", "per rank, for the record", False),
    # model
    _setting("mode", "one trained, one only evaluated"),
    _setting("model", "another model"),
    _aside("model_path", "the same model may lie elsewhere; its weights' hash tells"),
    *(_setting(name, "another model", absent="not recorded") for name in SIZES),
    _setting("init", "training started elsewhere"),
    _setting("lora_rank", "other parameters are trained"),
    _setting("lora_alpha", "other updates of the adapters"),
    _setting("lora_targets", "other parameters are trained"),
    _aside("image_size", "asked for; the resolved size decides", "image"),
    _decided("image_size", "more pixels, more work per sample", task="image"),
    _resolved("image_channels", "another work per sample", task="image"),
    _resolved("parameters", "another model"),
    _resolved("trainable_parameters", "other parameters are trained"),
    _resolved("flops_per_sample", "another amount of work per sample"),
    _resolved("flops_per_token", "another amount of work per token", task="text"),
    _resolved("flops_per_token_literature", "follows from the model and seq_len", False, "text"),
    _resolved("attention", ATTENTION, False, "text", "not told: a mask in every layer"),
    _resolved("initial_weights", "in words; their hash decides", False, absent="not recorded"),
    _resolved("initial_weights_sha256", "training started elsewhere"),
    _setting("seed", "other initial weights and another order of the data"),
    # work
    _decided("steps", "more training, other accuracy"),
    _summary("steps done", "steps", "more training, other accuracy"),
    _aside("epochs", "the resolved number of steps decides"),
    _aside("steps", "asked for; the resolved number decides"),
    _setting("global_batch_size", "other gradients, and more work per step"),
    _setting("micro_batch_size", "other kernels and other activation memory"),
    _resolved("grad_accum_steps", "follows from the batch sizes and the layout, which decide", False),
    _setting("optimizer", "other updates and another optimizer state"),
    *(_setting(name, "other updates") for name in ("lr", "lr_schedule", "warmup_steps", "weight_decay")),
    *(_setting(name, "other updates", absent="not recorded") for name in MOMENTS),
    # numerics
    _aside("precision", "asked for; what the device made of it decides"),
    _decided("precision", "other kernels, other rounding, other memory"),
    _resolved("tf32", "products of fp32 numbers with 10 bits instead of 23"),
    _setting("activation_checkpointing", "more computation, less memory"),
    _setting("compile", "other kernels"),
    _setting("label_smoothing", "another loss"),
    _aside("teacher", "the same one may lie elsewhere; teacher_sha256 tells"),
    _setting("distill_temperature", "another loss", absent="not recorded"),
    _setting("distill_alpha", "another loss", absent="not recorded"),
    _resolved("teacher_sha256", "another teacher", absent="no teacher"),
    _resolved("teacher_parameters", "follows from the teacher", False, absent="no teacher"),
    _resolved("teacher_flops_per_sample", "follows from the teacher", False, absent="no teacher"),
    _setting("batch_norm", "other statistics", absent="not recorded", task="image"),
    _resolved("batch_norm_samples", BATCH_NORM, task="image", absent="none told"),
    _setting("loss_chunk_tokens", "other memory, same numbers", absent="not recorded", task="text"),
    _setting("clip_norm", "other updates, and a norm to compute"),
    _types("parameters", "as observed: other memory and rounding"),
    _types("gradients", "as observed: other memory and traffic"),
    _types("optimizer", "as observed: other memory and rounding", none="it keeps nothing"),
    _types(
        "reductions",
        "as observed: other traffic and rounding",
        absent="nothing was added up",
        added="gradients",
    ),
    _types(
        "reductions",
        ACTIVATIONS,
        False,
        "activation reduction dtypes",
        absent="none were added up",
        added="activations",
    ),
    _types("gathers", f"{PART}: other traffic", False, absent="nothing was gathered"),
    _types("exchanges", f"{PART}: other traffic", False, absent="nothing was exchanged"),
    _types("products", "as observed: other kernels and rounding", absent="no step was watched"),
    *(  # resolved values; strategies without them record it, and the observed types show the rounding
        Rule(f"knobs.{name}", "config", ("resolved", "knobs", name), False, TUNED_BY, absent="has none")
        for name in KNOBS
    ),
    _resolved("quantized", QUANTIZED, False, absent="nothing"),
    Rule("tuning", "tuning", (), True, TUNED_ALONE, absent="not tuned"),
    # place
    _resolved("world_size", "more devices"),
    _resolved("nodes", "traffic crosses the network"),
    _resolved("processes_per_node", "traffic crosses the network"),
    _resolved("device_type", "other hardware"),
    _resolved("device_name", "other hardware"),
    _seen("device of every rank", "device_name", "the slowest device sets the pace"),
    _resolved("backend", "other collectives"),
    _version("python", "it launches every kernel"),
    _version("torch", "other kernels"),
    _version("deepspeed", "another engine", "not installed"),
    _provenance("image", "other libraries", instead="git_sha"),
    _provenance("git_sha", "other code", instead="image"),
    replace(_provenance("hosts", "pods get new names; device names tell the hardware"), matters=False),
    _seen("processor of every rank", "processor", "it launches every kernel"),
    _place("names of the nodes", "nodes", OTHER_NODES, False),
    _place("ranks on each node", "ranks_per_node", "traffic crosses the network"),
    _summary("transport within a node", "transport_in_node", LINKS, absent="none recorded"),
    _summary("transport between nodes", "transport_between_nodes", LINKS, absent="none recorded"),
    _place("GPUDirect RDMA", "gpudirect", LINKS, absent="none recorded"),
    _summary("transport fell back", "transport_fell_back", FELL_BACK, expected="no", absent="no"),
    _place("runs beside it", "beside", BESIDE, expected="none"),
    _gpu("power_limit_w", "another limit of power, other clocks"),
    _gpu("clock_limit_mhz", "GPUs at another clock rate"),
    _gpu("memory_clock_limit_mhz", "GPUs at another clock rate of their memory"),
    _place("GPU clock reached", "clock", "GPUs at another clock rate", absent="not to be had"),
    _place("GPU slowed by heat or a power brake", "slowed", "the machine held it back", expected="none seen"),
    # measuring
    _aside("profile_first_step", "asked for; the resolved step decides"),
    _decided("profile_first_step", "traces of other steps", absent="as asked"),
    _setting("profile_warmup", "the profiler costs time while it warms up"),
    _setting("profile_steps", "traces of other steps, and other steps left out of the times"),
    _setting("profile_shapes", RECORDING),
    _setting("profile_memory", RECORDING),
    _setting("memory_snapshot", RECORDING, absent=False),
    _aside("flops_profiler", "in a step of the profile's warm-up, which no time counts", absent=False),
    _aside("evaluate_every", "asked for; validation is outside the step times"),
    _decided("evaluate_every", "outside the step times", False, "as asked"),
    _aside("target_accuracy_pct", "until when training is timed, not how it goes", "image"),
    _aside("target_perplexity", "until when training is timed, not how it goes", "text"),
    _aside("log_every", "how often lines are written"),
    _aside("offload", "where the state lies, part of what is compared: the host works and sends more"),
    _aside("tensorboard", "a copy of the metrics, written by the launcher"),
    _aside("checkpoint_every", "taken between the steps, written beside them"),
    _aside("checkpoint_minutes", "taken between the steps, written beside them"),
    _aside("checkpoint_keep", "outside the step times"),
    _aside("checkpoint_keep_finished", "after the run"),
    _aside("resume", "where a further attempt starts; `attempts` tells whether there was one"),
    _aside("resume_from", "the checkpoint that it was decides"),
    _aside("oom_fallback", "what may be changed when memory runs out; `rungs` tell what was"),
    _aside("memory_forecast", "whether the memory is foreseen; what fits trains the same"),
    _decided("memory_forecast", "what each strategy was foreseen to hold", False, "not foreseen"),
    _decided("step_time_forecast", "what each strategy was foreseen to take", False, "not foreseen"),
    _aside("collective_timeout_s", "when a hanging collective fails"),
    _setting("flight_recorder", "each collective is written down, some of its host's time", absent=2000),
    _aside("least_gb_per_s", "what a check of the network expects"),
    _aside("on_not_finite", "what a fault is met with; `not_finite_steps` tells whether it was"),
    _aside("max_attempts", "when a run that fails again and again is given up"),
    _aside("deadline_s", "when a run is stopped"),
    # course
    _setting("fault", "a fault was planted in it", expected=""),
    _resolved("resumed_from", RESUMED, absent="its own beginning"),
    _resolved("rungs", LADDER, absent="none"),
    Rule("attempts", "attempts", (), True, "a restarted run has other steps in its times", expected=1),
    _summary("skipped_steps", "skipped_steps", "a skipped step does less work", expected=0),
    _summary("not_finite_steps", "not_finite_steps", NOT_FINITE, expected=0, absent=0),
    _summary("straggler", "straggler", STRAGGLER, False, expected="none", absent="none"),
)
