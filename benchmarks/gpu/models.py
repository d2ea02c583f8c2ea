"""The settings of the models that are measured, on a card and in small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.gpu.processes import ask
from benchmarks.gpu.session import Session
from stratlab_spec.strategies import STRATEGIES

Settings = dict[str, str]

IMAGES = {"DATASET": "synthetic", "TRAIN_SAMPLES": "1024", "STEPS": "30"}
ARITHMETIC = {"DATASET": "arithmetic", "TOKENIZER": "bytes"}
TEXT = ARITHMETIC | {"STEPS": "24", "SEQ_LEN": "2048", "GLOBAL_BATCH_SIZE": "4"}
EXPERTS_SIZES = {"LAYERS": 12, "HIDDEN": 1024, "HEADS": 16, "KV_HEADS": 8, "INTERMEDIATE": 768}
EXPERTS = {f"MODEL_{name}": str(size) for name, size in EXPERTS_SIZES.items()}
"""A mixture of experts of a size that keeps a card busy: the preset's own is a toy."""
TINY = {"STEPS": "16", "GLOBAL_BATCH_SIZE": "8", "MICRO_BATCH_SIZE": "4"}
TINY_IMAGES = {"DATASET": "synthetic", "TRAIN_SAMPLES": "64", **TINY}
TINY_TEXT = {**ARITHMETIC, "TRAIN_SAMPLES": "400", "SEQ_LEN": "192", **TINY}
CONVOLUTIONAL = ("resnet", "mobilenet", "efficientnet", "vgg")
NAMES = ("vit_base", "vit_huge", *CONVOLUTIONAL, "qwen2.5-3b", "qwen2.5-1.5b", "qwen2.5-0.5b", "experts")
LARGE_CARD_GIB = 100.0
"""Above this size two rows of 2048 tokens of the 3B model fit in addition to its fp32 state."""

EXTRAS: dict[str, Settings] = {
    "compile": {"COMPILE": "true"},
    "checkpointing": {"ACTIVATION_CHECKPOINTING": "blocks"},
    "selective": {"ACTIVATION_CHECKPOINTING": "selective"},
    "native": {"PRECISION": "bf16_native"},
    "fp16": {"PRECISION": "fp16"},
    "fp32": {"PRECISION": "fp32"},
    "lora": {"LORA_RANK": "16", "INIT": "scratch"},
    "unpacked": {"PACKING": "false"},
    "offload": {"OFFLOAD": "optimizer"},
    "offload_all": {"OFFLOAD": "all"},
    "synchronised": {"BATCH_NORM": "synchronised"},
    "augmented": {"AUGMENT": "all"},
    "streamed": {"DATA_RESIDENCE": "stream"},
    "clipped": {"CLIP_NORM": "1"},
    "saves": {"STEPS": "250", "CHECKPOINT_EVERY": "60", "CHECKPOINT_KEEP": "1", "PROFILE_STEPS": "0"},
    "short": {"STEPS": "8", "PROFILE_STEPS": "0"},
    "snapshot": {"STEPS": "14", "PROFILE_STEPS": "2", "MEMORY_SNAPSHOT": "true"},
    "traced_save": {
        "STEPS": "70",
        "CHECKPOINT_EVERY": "60",
        "PROFILE_FIRST_STEP": "59",
        "PROFILE_STEPS": "6",
    },
    "kept": {"CHECKPOINT_EVERY": "8"},
    "taught": {"TEACHER": "gpu/vit_base-single-kept-short"},
    "again": {},
}
"""A run is named `model:strategy`, with these after a plus; `again` only marks a repeat. `taught` learns from
vit_base:single+kept+short, which has to have run."""
COMPILE_S = 40
"""The time that compiling adds to a run, at least."""


@dataclass(frozen=True)
class Model:
    """One model to measure.

    Attributes:
        settings: of `python -m trainer`, without TRAINER_.
        needs_s: a run is not started with less time than this.
    """

    settings: Settings
    needs_s: float


def build_models(session: Session) -> dict[str, Model]:
    """Return name -> model, at the size of this card; in small sizes the same names mean small models."""
    if session.tiny:
        text = Model(TINY_TEXT | {"MODEL": "qwen_tiny", "LR": "3e-3"}, 1)
        smaller = {"MODEL": "vit_tiny", "IMAGE_SIZE": "16", "LR": "1e-3"}
        return {
            "vit_base": Model(TINY_IMAGES | {"MODEL": "vit_tiny", "LR": "1e-3"}, 1),
            "vit_huge": Model(TINY_IMAGES | smaller, 1),
            **dict.fromkeys(CONVOLUTIONAL, Model(TINY_IMAGES | {"MODEL": "cnn", "LR": "1e-3"}, 1)),
            **dict.fromkeys(("qwen2.5-3b", "qwen2.5-1.5b", "qwen2.5-0.5b"), text),
            "experts": Model(TINY_TEXT | {"MODEL": "qwen_moe_tiny", "LR": "3e-3"}, 1),
        }
    rows = "2" if read_card_gib(session) >= LARGE_CARD_GIB else "1"
    return {
        "vit_base": _images("vit_base", 256, "3e-4", 20),
        "vit_huge": _images("vit_huge", 64, "1e-4", 35),
        **{name: _images(name, 128, "1e-3", 20) for name in CONVOLUTIONAL},
        "qwen2.5-3b": _text("qwen2.5-3b", rows, 70),
        "qwen2.5-1.5b": _text("qwen2.5-1.5b", rows, 45),
        "qwen2.5-0.5b": _text("qwen2.5-0.5b", "2", 20),
        "experts": Model({**_text("qwen_moe_tiny", "2", 20).settings, **EXPERTS}, 20),
    }


def _images(model: str, batch: int, rate: str, needs_s: float) -> Model:
    sizes = {"GLOBAL_BATCH_SIZE": str(batch), "MICRO_BATCH_SIZE": str(batch)}
    return Model({**IMAGES, **sizes, "MODEL": model, "LR": rate}, needs_s)


def _text(model: str, rows: str, needs_s: float) -> Model:
    return Model({**TEXT, "MICRO_BATCH_SIZE": rows, "MODEL": model, "LR": "1e-4"}, needs_s)


def read_card_gib(session: Session) -> float:
    """Return the memory of the card, read without torch: torch's context would take some of it from the runs."""
    if not session.is_cuda:
        return 0.0
    said = ask("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits").split()
    return float(said[0]) / 1024 if said and said[0].isdigit() else 80.0


def find_run_problems(names: str) -> list[str]:
    """Return problems of the requested runs: unknown parts, and the known ones."""
    problems = []
    for name in (part.strip() for part in names.split(",") if part.strip()):
        model, _, rest = name.partition(":")
        strategy, *extras = rest.split("+")
        parts = {
            "model": ([model], NAMES),
            "strategy": ([strategy], STRATEGIES),
            "extra": (extras, (*EXTRAS,)),
        }
        for part, (given, known) in parts.items():
            problems += [
                f"--runs {name}: the {part} {word!r} is not known; allowed: {', '.join(known)} [SL-gpu-run-unknown]"
                for word in given
                if word not in known
            ]
    return problems


def resolve_run(name: str, models: Mapping[str, Model]) -> tuple[str, Settings, float]:
    """Return `vit_base:single+compile` -> (model, settings, seconds it needs)."""
    model, _, rest = name.partition(":")
    strategy, *extras = rest.split("+")
    settings = {**models[model].settings, "STRATEGY": strategy}
    for extra in extras:
        settings |= EXTRAS[extra]
    return model, settings, models[model].needs_s + COMPILE_S * ("compile" in extras)
