"""Read the published tables of language models: one reader per source, each gives `Measured` rows.

FLOPs of a token or an image, forward and backward without recomputation, by the first rule that a row allows:

    shape     6 N + 6 L h s: N in products, the head once, the embedding not; half of the attention, as a causal kernel
    printed   TFLOP/s of the source / its tokens per second (mixtures of experts, whose active weights it has counted)
    macs      6 x multiply-accumulates of the forward pass, of images
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OWN = Path(__file__).with_name("data")
BACKTEST = Path(__file__).parents[1] / "backtest" / "data"
GIGA = 1e9


@dataclass(frozen=True)
class Measured:
    """One published measurement in 16 bits.

    Attributes:
        source: key of SOURCES.
        length: tokens of a row, or pixels of an image's side.
        per_s: tokens or images per second and GPU.
        gflop: of a token or an image.
    """

    source: str
    model: str
    family: str
    """dense, experts, encoder; of images transformer, convolutions, depthwise."""
    parameters_b: float
    length: int
    card: str
    gpus: int
    strategy: str
    per_s: float
    gflop: float
    rule: str = "shape"
    method: str = "full"
    """full or lora."""
    recompute: str = ""
    micro_batch: str = ""


SOURCES = {
    "mpt": "mosaicml/llm-foundry scripts/train/benchmarking (Apache-2.0); PyTorch FSDP",
    "nanotron": "The Ultra-Scale Playbook, vinjn/nanotron-ultrascale-playbook@924e4d0b (Apache-2.0); nanotron 0.5",
    "vtrain": "VIA-Research/vTrain@f8dda84 data/ground_truth_* (MIT); Megatron-DeepSpeed",
    "bloom": "bigscience-workshop/bigscience@9e64ede tr11 chronicles-prequel (Apache-2.0); Megatron-DeepSpeed, ZeRO-1",
    "internevo": "InternLM/InternEvo@c628a8c doc/en/train_performance.md (Apache-2.0)",
    "yafsdp": "yandex/YaFSDP@669fc36 README (Apache-2.0); PyTorch FSDP",
    "yafsdp-own": "yandex/YaFSDP@669fc36 README (Apache-2.0); YaFSDP",
    "megatron-core": "NVIDIA/Megatron-LM@d98e8a6 images/model_table.png (Apache-2.0)",
    "korthikanti": "arXiv 2205.05198 table 5; Megatron-LM",
    "torchtitan": "pytorch/torchtitan@b5bcd76 benchmarks (BSD-3-Clause); H100 of 96 GB HBM2e and 500 W",
    "fms-fsdp": "foundation-model-stack/fms-fsdp@5a296af README (Apache-2.0)",
    "torchao": "pytorch/ao@36027d8 docs/source/workflows/training.md (BSD-3-Clause); torchtitan",
    "granite": "huggingface/blog deepspeed-to-fsdp-and-back.md; Accelerate",
    "colossal": "hpcaitech/ColossalAI@4f9953b README (Apache-2.0)",
    "nemo": "NVIDIA-NeMo/Megatron-Bridge@067f987 docs/performance-*.md (Apache-2.0)",
    "automodel": "NVIDIA-NeMo/Automodel@36044ad docs/performance-summary.mdx (Apache-2.0)",
    "lambda": "lambdal/deeplearning-benchmark@aa5addb; NVIDIA DeepLearningExamples, NGC 24.10, 20 machines",
    "nvidia-dle": "NVIDIA/DeepLearningExamples@729963d READMEs (BSD-3, Apache-2.0)",
    "timm": "huggingface/pytorch-image-models@aa4b585 results/benchmark-train-amp-* (Apache-2.0); PyTorch 1.12",
    "stratlab": "this project, benchmarks/gpu/measured (2026-11): one GPU, one rank, one repeat",
}
"""Key -> where the row was published, its licence, its engine."""


def read_table(folder: Path, name: str) -> list[dict[str, str]]:
    """Return the rows of a table; lines that begin with # are its description."""
    lines = (folder / f"{name}.csv").read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def count_gpt(layers: int, hidden: int, vocab: int, length: int) -> float:
    """Return GFLOP per token of a GPT: 12 L h^2 weights in its layers."""
    return (6 * (12 * layers * hidden**2 + vocab * hidden) + 6 * layers * hidden * length) / GIGA


def count_llama(layers: int, hidden: int, inner: int, vocab: int, kept: float, length: int) -> float:
    """Return GFLOP per token of a Llama.

    Args:
        inner: width of the gated MLP.
        kept: heads of keys and values / heads.
    """
    weights = layers * ((2 + 2 * kept) * hidden**2 + 3 * hidden * inner) + vocab * hidden
    return (6 * weights + 6 * layers * hidden * length) / GIGA


# sizes of the published config.json; (layers, hidden, inner, vocab, kept), parameters in 1e9
LLAMAS = {
    "Llama 2 7B": ((32, 4096, 11008, 32000, 1.0), 6.74),
    "Llama 2 13B": ((40, 5120, 13824, 32000, 1.0), 13.02),
    "Llama 2 34B": ((48, 8192, 22016, 32000, 1 / 8), 33.7),
    "Llama 2 70B": ((80, 8192, 28672, 32000, 1 / 8), 69.0),
    "Llama 3 8B": ((32, 4096, 14336, 128256, 1 / 4), 8.03),
    "Llama 3 70B": ((80, 8192, 28672, 128256, 1 / 8), 70.6),
    "InternLM 7B": ((32, 4096, 11008, 103168, 1.0), 7.32),
}
ALIASES = {
    "Llama-7B": "Llama 2 7B",
    "Llama-13B": "Llama 2 13B",
    "Llama-34B": "Llama 2 34B",
    "Llama-70B": "Llama 2 70B",
}
ALIASES |= {"Llama-3.1-8B": "Llama 3 8B", "Llama-3.1-70B": "Llama 3 70B"}


def _of_llama(name: str, length: int) -> tuple[float, float]:
    """Return parameters in 1e9 and GFLOP per token."""
    shape, parameters = LLAMAS[name]
    return parameters, count_llama(*shape, length)


def name_strategy(parallel: int, stage: int, gpus: int) -> str:
    """Return our name of a foreign layout.

    Args:
        parallel: tp x pp x cp.
        stage: of ZeRO.
    """
    if gpus == 1:
        return "single"
    return "nd" if parallel > 1 else f"zero{stage}" if stage else "ddp"


def read_mpt() -> Iterator[Measured]:
    shapes = {row["model"]: row for row in read_table(BACKTEST, "mpt_models")}
    for row in read_table(BACKTEST, "mpt_throughput"):
        if row["precision"] == "amp_fp8":
            continue
        shape, length = shapes[row["model"]], int(row["seq_len"])
        yield Measured(
            "mpt",
            f"MPT {row['model']}",
            "dense",
            int(row["params"]) / GIGA,
            length,
            row["gpu"].replace("h100_80gb", "h100").replace("_", "-"),
            int(row["gpus"]),
            "fsdp",
            float(row["tokens_per_s_per_gpu"]),
            count_gpt(int(shape["layers"]), int(shape["hidden"]), int(shape["vocab"]), length),
            recompute="full" if row["activation_checkpointing"] == "True" else "",
            micro_batch=row["micro_batch"],
        )


def read_nanotron() -> Iterator[Measured]:
    for row in read_table(BACKTEST, "nanotron_playbook_h100"):
        if row["status"] != "ok" or not row["tokens_per_s_per_gpu"]:
            continue
        batch = int(row["dp"]) * int(row["micro_batch"]) * int(row["grad_accum"])
        if batch != int(row["global_batch_rows"]):
            continue
        layers, hidden, inner = int(row["layers"]), int(row["hidden"]), int(row["intermediate"])
        vocab, length = int(row["vocab"]), int(row["seq_len"])
        weights = layers * (4 * hidden**2 + 3 * hidden * inner) + vocab * hidden
        yield Measured(
            "nanotron",
            f"Llama-shaped {row['model']}",
            "dense",
            (weights + (0 if row["tied"] == "1" else vocab * hidden)) / GIGA,
            length,
            "h100",
            int(row["gpus"]),
            name_strategy(int(row["tp"]) * int(row["pp"]), int(row["zero_stage"]), int(row["gpus"])),
            float(row["tokens_per_s_per_gpu"]),
            count_llama(layers, hidden, inner, vocab, 1.0, length),
            micro_batch=row["micro_batch"],
        )


def read_vtrain() -> Iterator[Measured]:
    vocab = 51200  # the default of its configurations
    for row in read_table(BACKTEST, "vtrain_a100_megatron"):
        layers, hidden, length = int(row["layers"]), int(row["hidden"]), int(row["seq_len"])
        tokens, gpus = int(row["global_batch"]) * length, int(row["gpus"])
        yield Measured(
            "vtrain",
            f"GPT {layers} x {hidden}",
            "dense",
            (12 * layers * hidden**2 + vocab * hidden) / GIGA,
            length,
            "a100-80gb",
            gpus,
            name_strategy(int(row["tp"]) * int(row["pp"]), 0, gpus),
            tokens / float(row["iteration_ms"]) * 1e3 / gpus,
            count_gpt(layers, hidden, vocab, length),
            recompute="full",
            micro_batch=row["micro_batch"],
        )


def read_bloom() -> Iterator[Measured]:
    for row in read_table(BACKTEST, "bloom_a100_3d"):
        if row["status"] != "ok" or not row["step_s"]:
            continue
        layers, hidden, vocab, length = (int(row[name]) for name in ("layers", "hidden", "vocab", "seq_len"))
        gpus, gflop = int(row["gpus"]), count_gpt(layers, hidden, vocab, length)
        per_s = int(row["global_batch"]) * length / float(row["step_s"]) / gpus
        if per_s * gflop / 1e3 > float(
            row["tflops_printed"]
        ):  # which counts the recomputation too: another batch
            continue
        yield Measured(
            "bloom",
            f"GPT {row['size_b']}B",
            "dense",
            float(row["size_b"]),
            length,
            "a100-80gb",
            gpus,
            name_strategy(int(row["tp"]) * int(row["pp"]), 1, gpus),
            per_s,
            gflop,
            recompute="full",
            micro_batch=row["micro_batch"],
        )


def read_internevo() -> Iterator[Measured]:
    for row in read_table(BACKTEST, "internevo_7b_a100"):
        length, gpus = int(row["seq_len"]), int(row["gpus"])
        parameters, gflop = _of_llama("InternLM 7B", length)
        yield Measured(
            "internevo",
            "InternLM 7B",
            "dense",
            parameters,
            length,
            "a100-80gb",
            gpus,
            name_strategy(int(row["tp"]), 1, gpus),
            float(row["tokens_per_s_per_gpu"]),
            gflop,
            recompute="full" if row["checkpointing"] == "True" else "",
            micro_batch=row["micro_batch"],
        )


def read_yafsdp() -> Iterator[Measured]:
    for row in read_table(OWN, "yafsdp_a100_multinode"):
        length, gpus = int(row["seq_len"]), int(row["gpus"])
        parameters, gflop = _of_llama(row["model"], length)
        yield Measured(
            "yafsdp" if row["engine"] == "fsdp" else "yafsdp-own",
            row["model"],
            "dense",
            parameters,
            length,
            "a100-80gb",
            gpus,
            "fsdp",
            int(row["micro_batch"]) * length / float(row["step_s"]),
            gflop,
            recompute="" if row["checkpointed_layers"] == "0" else "some",
            micro_batch=row["micro_batch"],
        )


def read_small_tables() -> Iterator[Measured]:
    keys = {"Megatron-Core": "megatron-core", "Korthikanti": "korthikanti", "torchtitan": "torchtitan"}
    keys |= {"fms-fsdp": "fms-fsdp", "nanotron": "nanotron"}
    ours = {"FSDP2": "fsdp", "FSDP": "fsdp", "HSDP": "hsdp", "": "ddp"}
    for row in read_table(OWN, "small_published_tables"):
        key = next((key for start, key in keys.items() if row["source"].startswith(start)), "")
        if not key or row["precision"] not in ("bf16", "fp16"):
            continue
        layers, hidden, length = int(row["layers"]), int(row["hidden"]), int(row["seq_len"])
        gpus, parallel = int(row["gpus"]), int(row["tp"]) * int(row["pp"] or 1) * int(row["cp"] or 1)
        parameters = float(row["params_b"])
        if name := ALIASES.get(row["model"]):
            parameters, gflop = _of_llama(name, length)
        elif key == "nanotron":
            gflop = count_llama(layers, hidden, 8192, 131072, 1.0, length)
        else:
            gflop = count_gpt(layers, hidden, 131072 if key == "megatron-core" else 51200, length)
        if row["tokens_per_s_per_gpu"]:
            per_s = float(row["tokens_per_s_per_gpu"])
        elif row["step_s"]:
            per_s = int(row["global_batch"]) * length / float(row["step_s"]) / gpus
        else:  # Megatron's own count has the whole attention term
            whole = gflop + 6 * layers * hidden * length / GIGA
            per_s = float(row["tflops_per_gpu"]) * 1e3 / whole
        yield Measured(
            key,
            row["model"].replace("GPT", f"GPT {row['params_b']}B") if row["model"] == "GPT" else row["model"],
            "dense",
            parameters,
            length,
            "a100-80gb" if row["gpu"].startswith("A100") else row["gpu"].partition("-")[0].lower(),
            gpus,
            "nd" if parallel > 1 else ours[row["sharding"]],
            per_s,
            gflop,
            recompute=row["recompute"].replace("none", ""),
            micro_batch=row["micro_batch"],
        )


def read_singles() -> Iterator[Measured]:
    """Yield the rows of small_published_tables_2.csv whose tokens and sequences are given."""
    cards = {"H100-80": "h100", "H200": "h200", "B200": "b200", "A100-80": "a100-80gb"}
    for row in read_table(OWN, "small_published_tables_2"):
        source, setting, value = row["source"], row["setting"], row["value"]
        card = cards.get(row["gpu"].partition(" ")[0])
        if "docs/source/workflows" in source and setting.startswith("bf16") and card:
            key, model, length, per_s, strategy = "torchao", "Llama 3 8B", 8192, float(value), "fsdp"
        elif "deepspeed-to-fsdp" in source:
            # rows of 4,096 tokens: the blog's settings
            key, model, length, per_s = "granite", "Llama 2 7B", 4096, float(value)
            strategy = row["strategy"].partition(",")[0]
        elif "ColossalAI" in source and row["model"].endswith(" 7B"):
            key, model, length, per_s = "colossal", "Llama 2 7B", 4096, float(value) * 4096 / int(row["gpus"])
            strategy = "nd" if "tp2" in row["strategy"] else "zero2"
        else:
            continue
        parameters, gflop = _of_llama(model, length)
        gpus = int(row["gpus"])
        yield Measured(key, model, "dense", parameters, length, card or "", gpus, strategy, per_s, gflop)


def read_nemo() -> Iterator[Measured]:
    cards = {"DGX-H100": "h100", "DGX-B200": "b200"}
    for row in read_table(OWN, "nvidia_nemo_performance"):
        if (card := cards.get(row["system"])) is None:
            continue
        per_s, gpus = float(row["tokens_per_s_per_gpu"]), int(row["gpus"])
        parallel = int(row["tp"]) * int(row["pp"]) * int(row["cp"])
        dense = row["model"].startswith(("Llama", "Qwen2.5"))
        size = (
            next(word for word in row["model"].split() if word[:1].isdigit() and word.endswith("B"))
            if dense
            else "0"
        )
        yield Measured(
            "nemo" if row["suite"] == "Megatron-Bridge" else "automodel",
            row["model"],
            "dense" if dense else "experts",
            float(size.rstrip("B")),
            int(row["seq_len"]),
            card,
            gpus,
            "single" if gpus == 1 else "nd" if parallel > 1 or row["suite"] == "Megatron-Bridge" else "fsdp",
            per_s,
            float(row["model_tflops_per_gpu"]) * 1e3 / per_s,
            "printed",
            "lora" if row["kind"] == "lora" else "full",
            micro_batch=row["micro_batch"],
        )


READERS = (
    read_mpt,
    read_nanotron,
    read_vtrain,
    read_bloom,
    read_internevo,
    read_yafsdp,
    read_small_tables,
    read_singles,
    read_nemo,
)
