"""Every setting of a run: the source of the charts' schema. They are read in config.py."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from stratlab_spec.registry import FINETUNED_NETWORKS, NETWORKS
from stratlab_spec.settings.bounds import number_problem
from stratlab_spec.settings.faults import FAULTS, KINDS
from stratlab_spec.settings.reserved_folders import is_reserved
from stratlab_spec.settings.text_columns import COLUMNS_PATTERN, parse_text_columns
from stratlab_spec.strategies import STRATEGIES

if TYPE_CHECKING:
    Strategy = str
else:
    Strategy = Literal[tuple(STRATEGIES)]
TEXT_MODELS = (
    *("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-4b", "qwen3-8b"),
    *("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "mistral-7b", "gemma-2-2b", "gemma-3-4b", "phi-3-mini"),
    *("olmo-2-7b", "gpt2", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b"),
    *("qwen_tiny", "qwen_moe_tiny"),
)
VIT_MODELS = ("vit_tiny", "vit_small", "vit_base", "vit_large", "vit_huge")
MODELS = (*VIT_MODELS, *NETWORKS, *FINETUNED_NETWORKS, *TEXT_MODELS)
TEXT_DATASETS = ("arithmetic", "metamathqa", "meta-math/MetaMathQA")
HUB_ID = r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*"
LONGEST_NAME = 200
"""Of texts that become a file name or a part of one: file systems take 255 bytes."""
YEAR_S = 365 * 24 * 3600
GRACE_S = (20, 7200)
"""Least and most of a grace period."""
COMMA_LIST = r"^([A-Za-z0-9_.]+(,[A-Za-z0-9_.]+)*)?$"


class Refusal(ValueError):
    """A value that is not allowed. Any other ValueError of a rule is a bug of this project."""


def _set_by_chart(default: Any = ..., **constraints: Any) -> Any:
    """Declare a field that the chart fills from the release, so that `run.config` must not name it."""
    return Field(default, json_schema_extra={"set_by_chart": True}, **constraints)


def _of_pixels(default: Any, **constraints: Any) -> Any:
    """Declare a field that a language model does not use, so that it is rejected there."""
    return Field(default, json_schema_extra={"of_pixels": True}, **constraints)


class Settings(BaseModel):
    """One run, as typed by the user; nothing derived from the machine is in here."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    # identity
    run: str = _set_by_chart(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=LONGEST_NAME)
    """Name of the run: the Helm release."""
    results: str = _set_by_chart("results/runs", min_length=1)
    """Folder of the results volume."""
    image: str = _set_by_chart("")
    """Image that runs, for the record."""
    accelerator: str = _set_by_chart("")
    """Resource that the pod requests, one per process; without them the run does not start. Empty = none."""
    wait_s: int = _set_by_chart(600, ge=0)
    """Longest wait for the other pods of the run; torch's own limit by default."""
    grace_s: int = _set_by_chart(120, ge=GRACE_S[0], le=GRACE_S[1])
    """From SIGTERM to the end of the pod, as the chart has set it in Kubernetes."""
    allow_faults: bool = _set_by_chart(False)
    """Whether `fault` may be set."""
    comparison: str = Field(
        default="default", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=LONGEST_NAME
    )
    """Runs meant to be compared: one folder on the volume, one MLflow experiment."""
    mode: Literal["train", "evaluate", "check"] = "train"
    """evaluate = the test split only, with the weights of model_path or of the run of this name; check = no run, but
    its requirements: versions, devices, memory, volume, clocks, network."""
    least_gb_per_s: float = Field(default=0.0, ge=0, le=1e5)
    """With mode check: GB/s that an all-reduce of all processes must reach (bus bandwidth); 0 = by the known speed
    of the links."""
    task: Literal["auto", "image", "text"] = "auto"
    """Image classification or a language model; auto = by the names of model and data set."""
    seed: int = Field(default=0, ge=0, le=(1 << 32) - 1)
    """Seeds initial weights and data order."""

    # model
    model: str = Field(
        default="vit_tiny",
        pattern=f"^({'|'.join(MODELS).replace('.', '[.]')}|{HUB_ID})$",
        max_length=LONGEST_NAME,
    )
    """Architecture and size, or the hub id (owner/name) of an image classifier or a language model;
    <name>_finetuned = that network with its published weights (init=pretrained)."""
    model_path: str = ""
    """Local folder of an image classifier or a language model in Hugging Face format."""
    model_layers: int = Field(default=0, ge=0, le=1000)
    """Layers of a vision transformer or a decoder; 0 = the preset's own."""
    model_hidden: int = Field(default=0, ge=0, le=1 << 16)
    """Width of the stream between its layers; 0 = the preset's own."""
    model_heads: int = Field(default=0, ge=0, le=1 << 10)
    """Heads of its attention; 0 = the preset's own."""
    model_kv_heads: int = Field(default=0, ge=0, le=1 << 10)
    """Decoder: heads of keys and values; 0 = the preset's own."""
    model_intermediate: int = Field(default=0, ge=0, le=1 << 20)
    """Width of its feed-forward part, or of each expert in a mixture of experts; 0 = the preset's own."""
    model_patch: int = Field(default=0, ge=0, le=1 << 10)
    """Vision transformer: pixels of an edge of a patch; 0 = the preset's own."""
    model_vocab: int = Field(default=0, ge=0, le=1 << 24)
    """Decoder: words of its vocabulary; 0 = the preset's own."""
    init: Literal["scratch", "pretrained"] = "scratch"
    """pretrained = published weights, or the weights in model_path."""
    batch_norm: Literal["local", "synchronised"] = "local"
    """Samples for batch norm's mean and variance while training: each process's own micro-batch, or all processes'
    micro-batches (two small collectives per layer)."""
    lora_rank: int = Field(default=0, ge=0)
    """Rank of LoRA adapters, base frozen; 0 = train everything."""
    lora_alpha: float = Field(default=16.0, gt=0)
    """Scale of the adapters: alpha / rank."""
    lora_targets: str = Field(default="", pattern=COMMA_LIST)
    """Module names that get adapters; empty = the attention's, or without one every linear layer and
    ungrouped convolution but the head."""

    # teacher
    teacher: str = ""
    """Network that the model learns from in addition to the labels: a finished run below the results volume
    (<comparison>/<run>), a folder in Hugging Face format, a name of `model` with published weights, or a hub id;
    empty = none."""
    distill_temperature: float = Field(default=2.0, ge=0.01, le=100)
    """Divisor of the logits of teacher and model; below 0.01 the softmax knows only one class, above 100 all classes
    alike, and neither teaches anything."""
    distill_alpha: float = Field(default=0.5, gt=0, le=1)
    """Weight of the distance to the teacher in the loss; the labels have the rest."""

    # data
    dataset: str = Field(default="digits", min_length=1, max_length=LONGEST_NAME)
    """`digits`, `synthetic`, `cifar100`, `food101` (images), `arithmetic`, `metamathqa` (text), or the hub id
    of a data set."""
    dataset_path: str = ""
    """Local data set in `datasets` format; used instead of a hub id."""
    image_column: str = _of_pixels("")
    """Column that holds the images; empty = the data set's own."""
    label_column: str = _of_pixels("")
    """Column that holds the class; empty = the data set's own."""
    image_size: int = _of_pixels(0, ge=0, le=2048)
    """Pixels of an edge after resizing; 0 = the model's own."""
    augment: Literal["none", "crop_flip", "randaugment", "mixup", "all"] = _of_pixels("none")
    """On the device; the last three include crop and flip."""
    normalization: Literal["auto", "imagenet"] = _of_pixels("auto")
    """Mean and deviation of the pixels: auto = the published weights' own, from scratch 0.5 (-1 to 1); imagenet =
    ImageNet's, also from scratch."""
    data_residence: Literal["auto", "device", "stream"] = "auto"
    """device = all images there once; stream = batch by batch; auto = by size, up to 5 % of a GPU."""
    validation_fraction: float = Field(default=0.1, gt=0, lt=1)
    """Share of the training samples kept for validation."""
    train_samples: int = Field(default=0, ge=0)
    """Use only this number of training samples; 0 = all."""

    # text
    tokenizer: str = ""
    """Hub id or local folder of a tokenizer, or `bytes`; empty = the model's own."""
    seq_len: int = Field(default=512, ge=8, le=1 << 20)
    """Tokens of a row."""
    packing: bool = True
    """Several documents per row, none sees another; off = one document per row, padded."""

    text_columns: str = Field(default="", pattern=COLUMNS_PATTERN)
    """The part of each column of a text data set, such as query=instruction,response=output; empty = by their names."""
    chat_roles: Literal["strict", "merge"] = "strict"
    """Chats that the template refuses: strict = the run does not start; merge = turns of one role that follow
    each other become one, other roles the user's, and answers before the first question go."""
    long_documents: Literal["cut", "drop"] = "cut"
    """Documents above seq_len: cut = a chat loses its end, plain text continues in another row; drop = left
    out."""
    allow_altered_answers: bool = False
    """Train although the tokenizer's chat template drops a part of the text of more than 5 % of the
    documents, as some do with reasoning."""

    # strategy
    strategy: Strategy = "single"
    """The place of parameters, gradients and state."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """Keep the optimizer, or parameters and optimizer, in host memory."""
    zeropp: str = Field(default="hpz", pattern=COMMA_LIST)
    """Parts of ZeRO++, separated by commas: hpz = a second copy inside each node, qwz = weights gathered in 8 bits,
    qgz = gradients reduced in 4; the last two only on GPUs."""
    dp_replicate: int = Field(default=0, ge=0)
    """Replicas of the model; 0 = every process the other axes leave."""
    dp_shard: int = Field(default=0, ge=0)
    """Processes that share one replica; 0 = every process left."""

    layout: Literal["auto", "given"] = "auto"
    """nd: auto = degrees by the number of processes, the model and `dimensions`; given = the values of dp_replicate,
    dp_shard, cp, tp, pp, ep."""
    dimensions: int = Field(default=1, ge=1, le=5)
    """nd: data, +pipeline, +tensor, +sequence or context, +expert."""
    cp: int = Field(default=0, ge=0)
    """Processes that share a sequence (context parallel)."""
    tp: int = Field(default=0, ge=0)
    """Processes that share each layer (tensor parallel)."""
    pp: int = Field(default=0, ge=0)
    """Stages of the pipeline."""
    ep: int = Field(default=0, ge=0)
    """Processes that share the experts of a layer."""
    pp_schedule: Literal["1f1b", "gpipe", "interleaved1f1b"] = "1f1b"
    """Order of the micro-batches in the pipeline."""
    cp_method: Literal["ulysses", "allgather"] = "ulysses"
    """Context parallel: exchange heads, or gather keys and values."""
    sequence_parallel: Literal["auto", "on", "off"] = "auto"
    """Sequence parallelism on the tp axis; auto = from 4 dimensions on, and with experts."""

    # knobs of a strategy: stratlab_spec/strategies.py
    accumulate: Literal["auto", "sharded", "whole"] = "auto"
    """fsdp, hsdp, nd: gradients between micro-batches, reduced each time and kept in shards, or whole and
    reduced once a step; auto = sharded, with a pipeline whole."""
    reshard_after_forward: Literal["auto", "on", "off"] = "auto"
    """Give parameters back after the forward pass and gather them again for the backward pass; auto = on,
    with a pipeline off."""
    prefetch_blocks: int = Field(default=1, ge=1, le=64)
    """Blocks whose parameters are gathered ahead of the computing block."""
    reduce_bucket_mib: int = Field(default=0, ge=0, le=8192)
    """ddp, DeepSpeed: MiB of gradients (fp32) that are reduced together; 0 = ddp 25, DeepSpeed 192."""
    gather_bucket_mib: int = Field(default=192, ge=1, le=8192)
    """zero1, zero2: MiB of weights (fp32) that are gathered together after the update."""
    overlap_reduction: bool = True
    """DeepSpeed: reduce gradients during the backward pass, not between passes."""
    persistent_elements: int = Field(default=100_000, ge=0, le=1 << 31)
    """zero3, zeropp: parameters with fewer elements stay whole on every rank."""
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    """Element type in which the data ranks sum gradients."""
    static_graph: bool = False
    """ddp: each step uses the same parameters, without a search for others."""

    # numerics
    precision: Literal["auto", "fp32", "bf16", "bf16_native", "fp16"] = "auto"
    """bf16 = one recipe on every strategy: products in bf16, weights, norms and reductions in fp32;
    bf16_native = DeepSpeed's own, parameters kept in bf16; auto = bf16 where the device has it, else fp16;
    fp32 on a CPU."""
    activation_checkpointing: str = Field(
        default="none", pattern=r"^(none|every_[2-9]|every_[1-9][0-9]{1,2}|blocks|selective)$"
    )
    """Activations to compute again in the backward pass instead of keeping them: none, every_N = every Nth block
    (every_2, every_3, ...), blocks = each, selective = each, except its products and attention."""
    compile: bool = False
    """torch.compile, block by block; not with zero3, zeropp, nor some blocks that are recomputed."""
    clip_norm: float = Field(default=0.0, ge=0)
    """Clip the global gradient norm; 0 = off."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of the target spread over all classes."""
    loss_chunk_tokens: int = Field(default=2048, ge=1)
    """Text: tokens whose logits exist at once; fewer take less memory and more time."""

    # work
    global_batch_size: int = Field(default=64, ge=1)
    """Samples of one optimizer step."""
    micro_batch_size: int = Field(default=32, ge=1)
    """Samples of one forward pass of one process."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the training samples."""
    steps: int = Field(default=0, ge=0)
    """Optimizer steps, instead of epochs; 0 = by epochs."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """Optimizer."""
    lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Weight decay."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """sgd: share of the last update in the next."""
    nesterov: bool = False
    """sgd: Nesterov's momentum, which looks one update ahead."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """adamw: decay of the mean of the gradients."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """adamw: decay of the mean of the squared gradients."""
    eps: float = Field(default=1e-8, gt=0, lt=1)
    """adamw: added to the root that an update is divided by."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after warm-up; the last two end at 0."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up."""

    # profile
    profile_first_step: int = Field(default=60, ge=1)
    """First step that is recorded. On a GPU only steps before the profile are timed."""
    profile_warmup: int = Field(default=1, ge=0)
    """Profiled but discarded steps before it."""
    profile_steps: int = Field(default=3, ge=0)
    """Recorded steps; 0 = no profile."""
    profile_shapes: bool = False
    """Record tensor shapes."""
    profile_memory: bool = True
    """Record allocations."""
    memory_snapshot: bool = False
    """On GPUs: every allocation of the recorded steps with its line of code, of each rank, in
    traces/memory_snapshots; for pytorch.org/memory_viz."""
    flops_profiler: bool = False
    """DeepSpeed's strategies: its flops profiler in the first step of the profile's warm-up, into
    traces/flops_profiler.txt."""

    # keep
    checkpoint_every: int = Field(default=0, ge=0)
    """Steps between checkpoints; also at the end and at each new best. 0 = by the clock."""
    checkpoint_minutes: float = Field(default=15.0, ge=0, le=100_000)
    """Minutes between checkpoints where checkpoint_every is 0; from the first one on the end is saved too. 0
    = none."""
    checkpoint_keep: int = Field(default=2, ge=1)
    """Newest checkpoints that are kept while it trains, in addition to the best."""
    checkpoint_keep_finished: Literal["newest", "all", "none"] = "newest"
    """Checkpoints kept after success: only the newest, the same ones, or none; the weights always stay."""
    resume: Literal["auto", "never"] = "auto"
    """auto = a further attempt resumes from the newest checkpoint."""
    resume_from: str = ""
    """Another run to resume from, with any strategy and number of processes: its folder below the results volume
    (<comparison>/<run>), or one of its checkpoints."""
    evaluate_every: int = Field(default=0, ge=0)
    """Steps between validations; 0 = once per epoch."""
    log_every: int = Field(default=10, ge=1)
    """Steps between writes of the metrics; they are never further apart than 10."""
    tensorboard: bool = False
    """Write TensorBoard's event files too, into `tensorboard` of the run directory."""
    target_accuracy_pct: float = Field(default=0.0, ge=0, le=100)
    """Validation accuracy until which training is timed; 0 = none."""
    target_perplexity: float = Field(default=0.0, ge=0)
    """Of text: validation perplexity until which training is timed; 0 = none."""

    # safety
    on_not_finite: Literal["stop", "skip", "warn"] = "stop"
    """A loss or gradient that is not finite: stop with exit code 12, leave the update out on all ranks, or continue;
    each is recorded with its rank."""
    collective_timeout_s: int = Field(default=600, ge=10, le=YEAR_S)
    """A collective that hangs fails then."""
    flight_recorder: int = Field(default=2000, ge=0, le=1_000_000)
    """Collectives that NCCL's flight recorder keeps on each rank; after a time-out they are written to
    hangs/flight_recorder. 0 = none."""
    oom_fallback: bool = False
    """Out of accelerator memory: continue with a smaller micro-batch (same global batch), recomputation, the next
    strategy that holds less, offloading; five rungs at most."""
    memory_forecast: bool = True
    """Predict the memory (recorded steps or a count), do not start a run that cannot fit, and report
    the forecast's error at the end."""
    max_attempts: int = Field(default=3, ge=1, le=1000)
    """Starts of a pod that reach no new step."""
    deadline_s: int = Field(default=86400, ge=60, le=YEAR_S)
    """Longest time from the first start to the end."""

    fault: str = Field(
        default="",
        pattern=FAULTS,
        description="For tests, where run.allowFaults is true: kind@step[:rank], once in the run, or in every attempt "
        f"with a final !; several with commas. Kinds: {', '.join(KINDS)}.",
    )

    @model_validator(mode="before")
    @classmethod
    def _finetuned(cls, given: Any) -> Any:
        """Start from published weights by default if the model's name implies them."""
        if isinstance(given, dict) and given.get("model") in FINETUNED_NETWORKS:
            return {"init": "pretrained", **given}
        return given

    @model_validator(mode="before")
    @classmethod
    def _strategy_defaults(cls, given: Any) -> Any:
        """Set the knobs of the strategy's row as defaults."""
        row = STRATEGIES.get(str(given.get("strategy"))) if isinstance(given, dict) else None
        return {**row.defaults, **given} if row else given

    @field_validator("*", mode="before")
    @classmethod
    def _numbers(cls, value: Any, info: ValidationInfo) -> Any:
        if problem := number_problem(_number_schemas()[info.field_name or ""], value):
            raise Refusal(problem)
        return value

    @field_validator("text_columns")
    @classmethod
    def _text_columns(cls, given: str) -> str:
        try:
            parse_text_columns(given)
        except ValueError as failure:
            raise Refusal(str(failure)) from failure
        return given

    @field_validator("results")
    @classmethod
    def _results(cls, path: str) -> str:
        if is_reserved(path):
            raise Refusal("is a folder of the system, choose another such as /results [SL-results-reserved]")
        return path

    @property
    def is_text(self) -> bool:
        """Whether a language model is trained."""
        if self.task != "auto":
            return self.task == "text"
        return self.model in TEXT_MODELS or self.dataset in TEXT_DATASETS

    @property
    def dataset_name(self) -> str:
        """Return the data set's name for tables: the last part of its path, or its id."""
        return _last_part(self.dataset_path) or self.dataset

    @property
    def model_name(self) -> str:
        """Return the model's name for tables: the last part of its path, or its name or id."""
        return _last_part(self.model_path) or self.model

    @property
    def dataset_setting(self) -> str:
        """The setting that names the data set, for sentences."""
        if self.dataset_path:
            return f"TRAINER_DATASET_PATH={self.dataset_path!r}"
        return f"TRAINER_DATASET={self.dataset!r}"

    @property
    def model_setting(self) -> str:
        """The setting that names the model, for sentences."""
        return (
            f"TRAINER_MODEL_PATH={self.model_path!r}" if self.model_path else f"TRAINER_MODEL={self.model!r}"
        )


@functools.cache
def _number_schemas() -> dict[str, dict[str, Any]]:
    """Return setting -> its JSON schema."""
    return Settings.model_json_schema()["properties"]


def _last_part(path: str) -> str:
    return os.path.basename(os.path.normpath(path)) if path else ""
