"""One configuration in this process, and which code counted it."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import time
import traceback
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.memory.configurations import Configuration

GIB = 2**30
WARM = (
    *("torch", "trainer.memory_estimation.steps", "transformers.models.vit.modeling_vit"),
    *("transformers.models.qwen2.modeling_qwen2", "torch.distributed.pipelining.schedules", "peft"),
    *("deepspeed.runtime.zero.stage3", "deepspeed.runtime.zero.stage_1_and_2"),
    *(f"trainer.strategies.{name}" for name in ("single", "ddp", "fsdp", "hsdp", "zero", "nd")),
    *(f"trainer.models.{name}" for name in ("lora", "activation_checkpointing", "hugging_face", "vit")),
)


def warm_up() -> None:
    """Imports what every count needs."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a thread pool does not survive a fork
    for name in WARM:
        importlib.import_module(name)


def count_one(one: Configuration) -> tuple[Configuration, dict[str, Any]]:
    """(the same, figures in GiB and costs), or what went wrong under `failed`."""
    from stratlab_spec.settings.config import Config
    from trainer.memory_estimation.steps import count, find_pictures

    warnings.filterwarnings("ignore")
    named = dict(setting.split("=", 1) for setting in f"run=benchmark {one.settings}".split())
    began, cpu = time.perf_counter(), time.process_time()
    try:
        config = Config.from_env({f"TRAINER_{name.upper()}": value for name, value in named.items()})
        found = count(config, one.ranks, one.rank, find_pictures(config, one.labels))
    except Exception:
        return one, {"failed": traceback.format_exc()[-2000:]}
    figures = {"peak": found.peak.total, "between": found.between.total, **found.peak.by_cause()}
    return one, {
        "gib": {name: round(size / GIB, 4) for name, size in figures.items()},
        "wall_s": round(time.perf_counter() - began, 1),
        "cpu_s": round(time.process_time() - cpu, 1),
        "operators": found.operators,
    }


def describe_code() -> dict[str, str]:
    """What the figures depend on, after `warm_up`: the sources of `trainer` that take part, and the libraries."""
    parts = {name: m.__file__ for name, m in sys.modules.items() if name.split(".")[0] == "trainer"}
    digest = hashlib.sha256()
    for name in sorted(parts):
        digest.update(name.encode() + b"\0" + Path(parts[name] or os.devnull).read_bytes())
    libraries = ("torch", "deepspeed", "transformers", "peft")
    return {"trainer_sha256": digest.hexdigest(), **{name: version(name) for name in libraries}}
