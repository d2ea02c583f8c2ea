"""What must be equal before two strategies may be compared: one table, one row per fact, with the reason.

What a strategy implies (its name, its axes, the memory it holds) is not in the table. A setting that no row
names is compared as well, and matters: a new setting cannot slip past the audit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Path = tuple[str, ...]

KNOBS = (
    *("accumulate", "reshard_after_forward", "prefetch_blocks", "reduce_bucket_mib", "gather_bucket_mib"),
    *("overlap_reduction", "persistent_elements", "reduce_dtype", "static_graph"),
)
"""What a strategy can be tuned by (stratlab_spec/strategies.py); not every strategy has each."""
IMPLIED = {
    *KNOBS,
    "run",
    "comparison",
    "results",
    "image",
    "accelerator",
    "wait_s",
    "grace_s",
    "allow_faults",
    "strategy",
    "dp_replicate",
    "dp_shard",
    "axes",
    "zeropp",
    *("layout", "dimensions", "cp", "tp", "pp", "ep", "pp_schedule", "cp_kind", "sequence_parallel"),
}
SIZES = (
    *("model_layers", "model_hidden", "model_heads", "model_kv_heads", "model_intermediate"),
    *("model_patch", "model_vocab"),
)
TASKS = ("image", "text")


@dataclass(frozen=True)
class Rule:
    """One fact of a run, and what a difference in it means.

    Attributes:
        field: its name in the report.
        source: `config` (config.json), `summary` (summary.json), `ranks` (the distinct values over all
            ranks/rank*.json), `attempts` (how many have started), `place` (surroundings.py), `tuning` (kept_tuning.py).
        path: keys below the source.
        matters: a difference forbids naming a winner.
        expected: the only value that is in order, even when all runs agree on another one; None = any.
        instead: `field` of the rule whose fact stands in where this one is empty.
        replaced_by: the setting that this one gives way to where it is set in all runs.
        absent: what an empty value means; "" = nothing, so that it counts as unknown. Of a setting that older runs do
            not name: what they did without it.
        task: of which runs alone this is a fact, `image` or `text`; "" = of all.
        none: what an empty list of the ranks means, where it is something else than not recorded.
        added: of the types in which ranks have added up, those of "gradients" or of "activations" alone (facts.py);
            "" = the fact as it is.
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


def _setting(name: str, why: str, matters: bool = True, task: str = "", absent: Any = "") -> Rule:
    return Rule(name, "config", ("config", name), matters, why, task=task, absent=absent)


def _resolved(name: str, why: str, matters: bool = True, task: str = "", absent: str = "") -> Rule:
    return Rule(name, "config", ("resolved", name), matters, why, task=task, absent=absent)


def _decided(name: str, why: str, matters: bool = True, absent: str = "", task: str = "") -> Rule:
    """What became of a setting of the same name."""
    return Rule(f"resolved.{name}", "config", ("resolved", name), matters, why, absent=absent, task=task)


def _knob(name: str) -> Rule:
    """What became of it; the strategies that are without it say so."""
    why = "how each strategy is tuned, part of what is compared"
    return Rule(f"knobs.{name}", "config", ("resolved", "knobs", name), False, why, absent="has none")


def _gpu(name: str, why: str) -> Rule:
    """What a GPU was allowed; nobody's on a CPU, and not known without NVML."""
    return Rule(f"GPU {name}", "ranks", ("gpu", name), True, why, absent="not to be had")


RULES: tuple[Rule, ...] = (
    # data
    Rule("dataset", "config", ("config", "dataset"), True, "other data", replaced_by="dataset_path"),
    _setting("dataset_path", "the same data may lie elsewhere; data_sha256 tells", matters=False),
    _setting("task", "another task"),
    _setting("image_column", "other inputs", task="image"),
    _setting("label_column", "other labels", task="image"),
    _setting("augment", "other inputs", task="image"),
    _setting("normalization", "asked for; the resolved preprocessing decides", matters=False, task="image"),
    _setting("data_residence", "asked for; where the images are decides", matters=False, task="image"),
    Rule(
        "preprocessing",
        "config",
        ("resolved", "preprocessing"),
        True,
        "other inputs",
        absent="not told: -1 to 1",
        task="image",
    ),
    _decided("data_residence", "other work to fetch a batch", task="image"),
    _setting(
        "tokenizer", "the same one may lie elsewhere; tokenizer_sha256 tells", matters=False, task="text"
    ),
    _resolved("tokenizer_sha256", "other tokens", task="text"),
    _setting("seq_len", "other rows, and more work in each", task="text"),
    _decided("seq_len", "other rows, and more work in each", task="text"),
    _setting(
        "allow_altered_answers", "the tokens' hash decides", matters=False, task="text", absent="not recorded"
    ),
    _setting("packing", "other rows, and less padding in each", task="text"),
    _setting("validation_fraction", "other training samples"),
    _setting("train_samples", "a cap on the training samples", matters=False),  # its effect is in the hashes
    _resolved("data_sha256", "other data"),
    _resolved("text", "other rows of tokens", task="text"),
    _decided("train_samples", "other training samples"),
    _resolved("validation_samples", "other samples behind the validation numbers"),
    _resolved("test_samples", "other samples behind the test numbers"),
    _resolved("num_labels", "another task", task="image"),
    Rule("data_order_sha256", "summary", ("data_order_sha256",), True, "the samples came in another order"),
    Rule(
        "data_order_sha256 of the ranks", "ranks", ("data_order_sha256",), False, "per rank, for the record"
    ),
    # model
    _setting("mode", "one trained, one only evaluated"),
    _setting("model", "another model"),
    _setting("model_path", "the same model may lie elsewhere; its weights' hash tells", matters=False),
    *(_setting(name, "another model", absent="not recorded") for name in SIZES),
    _setting("init", "training started elsewhere"),
    _setting("lora_rank", "other parameters are trained"),
    _setting("lora_alpha", "other updates of the adapters"),
    _setting("lora_targets", "other parameters are trained"),
    _setting("image_size", "asked for; the resolved size decides", matters=False, task="image"),
    _decided("image_size", "more pixels, more work per sample", task="image"),
    _resolved("image_channels", "another work per sample", task="image"),
    _resolved("parameters", "another model"),
    _resolved("trainable_parameters", "other parameters are trained"),
    _resolved("flops_per_sample", "another amount of work per sample"),
    _resolved("flops_per_token", "another amount of work per token", task="text"),
    _resolved("flops_per_token_literature", "follows from the model and seq_len", matters=False, task="text"),
    Rule(
        "attention",
        "config",
        ("resolved", "attention"),
        False,
        "follows from precision, packing, layout, device and torch",
        absent="not told: a mask in every layer",
        task="text",
    ),
    _resolved("initial_weights", "in words; their hash decides", matters=False, absent="not recorded"),
    _resolved("initial_weights_sha256", "training started elsewhere"),
    _setting("seed", "other initial weights and another order of the data"),
    # work
    _decided("steps", "more training, other accuracy"),
    Rule("steps done", "summary", ("steps",), True, "more training, other accuracy"),
    _setting("epochs", "the resolved number of steps decides", matters=False),
    _setting("steps", "asked for; the resolved number decides", matters=False),
    _setting("global_batch_size", "other gradients, and more work per step"),
    _setting("micro_batch_size", "other kernels and other activation memory"),
    _resolved("grad_accum_steps", "follows from the batch sizes and the layout, which decide", matters=False),
    _setting("optimizer", "other updates and another optimizer state"),
    _setting("lr", "other updates"),
    _setting("lr_schedule", "other updates"),
    _setting("warmup_steps", "other updates"),
    _setting("weight_decay", "other updates"),
    *(
        _setting(name, "other updates", absent="not recorded")
        for name in ("momentum", "nesterov", "beta1", "beta2", "eps")
    ),
    # numerics
    _setting("precision", "asked for; what the device made of it decides", matters=False),
    _decided("precision", "other kernels, other rounding, other memory"),
    _resolved("tf32", "products of fp32 numbers with 10 bits instead of 23"),
    _setting("activation_checkpointing", "more computation, less memory"),
    _setting("compile", "other kernels"),
    _setting("label_smoothing", "another loss"),
    _setting("teacher", "the same one may lie elsewhere; teacher_sha256 tells", matters=False),
    _setting("distil_temperature", "another loss", absent="not recorded"),
    _setting("distil_weight", "another loss", absent="not recorded"),
    _resolved("teacher_sha256", "another teacher", absent="no teacher"),
    _resolved("teacher_parameters", "follows from the teacher", matters=False, absent="no teacher"),
    _resolved("teacher_flops_per_sample", "follows from the teacher", matters=False, absent="no teacher"),
    _setting("batch_norm", "other statistics", absent="not recorded", task="image"),
    _resolved(
        "batch_norm_samples",
        "batch norm takes the statistics of more samples",
        absent="none told",
        task="image",
    ),
    Rule(
        "loss_chunk_tokens",
        "config",
        ("config", "loss_chunk_tokens"),
        True,
        "other memory, same numbers",
        absent="not recorded",
        task="text",
    ),
    _setting("clip_norm", "other updates, and a norm to compute"),
    Rule(
        "parameter dtypes", "ranks", ("dtypes", "parameters"), True, "as observed: other memory and rounding"
    ),
    Rule("gradient dtypes", "ranks", ("dtypes", "gradients"), True, "as observed: other memory and traffic"),
    Rule(
        "optimizer dtypes",
        "ranks",
        ("dtypes", "optimizer"),
        True,
        "as observed: other memory and rounding",
        none="it keeps nothing",
    ),
    Rule(
        "reduction dtypes",
        "ranks",
        ("dtypes", "reductions"),
        True,
        "as observed: other traffic and rounding",
        absent="nothing was added up",
        added="gradients",
    ),
    Rule(
        "activation reduction dtypes",
        "ranks",
        ("dtypes", "reductions"),
        False,
        "what tensor and context parallelism add up, in the type of the products: the losses are held against each "
        "other",
        absent="none were added up",
        added="activations",
    ),
    Rule(
        "gather dtypes",
        "ranks",
        ("dtypes", "gathers"),
        False,
        "as observed, what each strategy is made of: other traffic",
        absent="nothing was gathered",
    ),
    Rule(
        "exchange dtypes",
        "ranks",
        ("dtypes", "exchanges"),
        False,
        "as observed, what each strategy is made of: other traffic",
        absent="nothing was exchanged",
    ),
    Rule(
        "product dtypes",
        "ranks",
        ("dtypes", "products"),
        True,
        "as observed: other kernels and rounding",
        absent="no step was watched",
    ),
    *(_knob(name) for name in KNOBS),  # the observed types tell of rounding
    _resolved(
        "quantized",
        "how many bits zeropp sends of which parameters, part of what is compared",
        matters=False,
        absent="nothing",
    ),
    Rule(
        "tuning",
        "tuning",
        (),
        True,
        "the best of one strategy against another one as it comes",
        absent="not tuned",
    ),
    # place
    _resolved("world_size", "more devices"),
    _resolved("nodes", "traffic crosses the network"),
    _resolved("processes_per_node", "traffic crosses the network"),
    _resolved("device_type", "other hardware"),
    _resolved("device_name", "other hardware"),
    Rule("device of every rank", "ranks", ("device_name",), True, "the slowest device sets the pace"),
    _resolved("backend", "other collectives"),
    Rule("python", "config", ("provenance", "versions", "python"), True, "it launches every kernel"),
    Rule("torch", "config", ("provenance", "versions", "torch"), True, "other kernels"),
    Rule(
        "deepspeed",
        "config",
        ("provenance", "versions", "deepspeed"),
        True,
        "another engine",
        absent="not installed",
    ),
    Rule("image", "config", ("provenance", "image"), True, "other libraries", instead="git_sha"),
    Rule("git_sha", "config", ("provenance", "git_sha"), True, "other code", instead="image"),
    Rule(
        "hosts",
        "config",
        ("provenance", "hosts"),
        False,
        "pods get new names; device names tell the hardware",
    ),
    Rule("processor of every rank", "ranks", ("processor",), True, "it launches every kernel"),
    Rule(
        "names of the nodes",
        "place",
        ("nodes",),
        False,
        "other machines; whether they are alike, device, processor and clocks tell",
    ),
    Rule("ranks on each node", "place", ("ranks_per_node",), True, "traffic crosses the network"),
    Rule(
        "runs beside it",
        "place",
        ("beside",),
        True,
        "they were at work on its nodes during its steps, and took from it",
        expected="none",
    ),
    _gpu("power_limit_w", "another limit of power, other clocks"),
    _gpu("clock_limit_mhz", "GPUs at another clock rate"),
    _gpu("memory_clock_limit_mhz", "GPUs at another clock rate of their memory"),
    Rule(
        "GPU clock reached",
        "place",
        ("clock",),
        True,
        "GPUs at another clock rate",
        absent="not to be had",
    ),
    Rule(
        "GPU slowed by heat or a power brake",
        "place",
        ("slowed",),
        True,
        "the machine held it back",
        expected="none seen",
    ),
    # measuring
    _setting("profile_first_step", "asked for; the resolved step decides", matters=False),
    _decided("profile_first_step", "traces of other steps", absent="as asked"),
    _setting("profile_warmup", "the profiler costs time while it warms up"),
    _setting("profile_steps", "traces of other steps, and other steps left out of the times"),
    _setting("profile_shapes", "recording costs time in the traced steps"),
    _setting("profile_memory", "recording costs time in the traced steps"),
    _setting("memory_snapshot", "recording costs time in the traced steps", absent=False),
    _setting(
        "flops_profiler",
        "in a step of the profile's warm-up, which no time counts",
        matters=False,
        absent=False,
    ),
    _setting("evaluate_every", "asked for; validation is outside the step times", matters=False),
    _decided("evaluate_every", "outside the step times", matters=False, absent="as asked"),
    _setting(
        "target_accuracy_pct", "until when training is timed, not how it goes", matters=False, task="image"
    ),
    _setting(
        "target_perplexity", "until when training is timed, not how it goes", matters=False, task="text"
    ),
    _setting("log_every", "how often lines are written", matters=False),
    _setting(
        "offload",
        "where the state lies, part of what is compared: the host works and sends more",
        matters=False,
    ),
    _setting("tensorboard", "a copy of the metrics, written by the launcher", matters=False),
    _setting("checkpoint_every", "taken between the steps, written beside them", matters=False),
    _setting("checkpoint_minutes", "taken between the steps, written beside them", matters=False),
    _setting("checkpoint_keep", "outside the step times", matters=False),
    _setting("checkpoint_keep_finished", "after the run", matters=False),
    _setting(
        "resume", "where a further attempt starts; `attempts` tells whether there was one", matters=False
    ),
    _setting("resume_from", "the checkpoint that it was decides", matters=False),
    _setting("oom_ladder", "what may be changed when memory runs out; `rungs` tell what was", matters=False),
    _setting("memory_forecast", "whether the memory is foreseen; what fits trains the same", matters=False),
    _decided(
        "memory_forecast", "what each strategy was foreseen to hold", matters=False, absent="not foreseen"
    ),
    _setting("collective_timeout_s", "when a hanging collective fails", matters=False),
    _setting("flight_recorder", "each collective is written down, some of its host's time", absent=2000),
    _setting("least_gb_per_s", "what a check of the network expects", matters=False),
    _setting(
        "on_not_finite", "what a fault is met with; `not_finite_steps` tells whether it was", matters=False
    ),
    _setting("max_attempts", "when a run that fails again and again is given up", matters=False),
    _setting("deadline_s", "when a run is stopped", matters=False),
    # course
    Rule(
        "fault",
        "config",
        ("config", "fault"),
        True,
        "a fault was planted in it",
        expected="",
    ),
    _resolved(
        "resumed_from",
        "its first steps are another run's; comparable only with what went on from the same checkpoint",
        absent="its own beginning",
    ),
    _resolved(
        "rungs",
        "it ran out of memory with what was asked for, and went on with other settings",
        absent="none",
    ),
    Rule("attempts", "attempts", (), True, "a restarted run has other steps in its times", expected=1),
    Rule("skipped_steps", "summary", ("skipped_steps",), True, "a skipped step does less work", expected=0),
    Rule(
        "not_finite_steps",
        "summary",
        ("not_finite_steps",),
        True,
        "a loss or gradient that is not finite: what was learnt is in doubt",
        expected=0,
        absent=0,
    ),
    Rule(
        "straggler",
        "summary",
        ("straggler",),
        False,
        "a slow rank has held the others up; the machine's fault, and step times have it in them",
        expected="none",
        absent="none",
    ),
)
