"""Read the published tables of images, and our own runs on one GPU; rows as in sources.py.

FLOPs of an image are 6 x multiply-accumulates of timm's table, at that table's image size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.published.sources import GIGA, OWN, Measured, count_gpt, name_strategy, read_table
from stratlab_spec.step_time.kernels import find_card_of_device

MEASURED = Path(__file__).parents[1] / "gpu" / "measured"


def _macs() -> dict[str, dict[str, str]]:
    return {row["model"]: row for row in read_table(OWN, "timm_train_rtx3090")}


def read_lambda() -> Iterator[Measured]:
    known = _macs()["resnet50"]
    for row in read_table(OWN, "lambda_ddp_hopper"):
        card = row["gpu"].lower()
        if row["task"] != "resnet50" or card not in ("h100", "h200", "b200") or row["form"] == "PCIe":
            continue
        gpus = int(row["gpus"])
        yield _of_image("lambda", "resnet50", known, 224, card, gpus, float(row["throughput"]) / gpus)


def read_dle() -> Iterator[Measured]:
    known = _macs()
    names = {"resnet50v1.5": "resnet50", "resnext101-32x4d": "resnext101_32x4d"}
    names |= {"se-resnext101-32x4d": "seresnext101_32x4d", "efficientnet-b0": "efficientnet_b0"}
    for row in read_table(OWN, "nvidia_dle_cnn_bert_scaling"):
        if "A100" not in row["machine"] or row["precision"] != "amp":
            continue
        gpus, per_s = int(row["gpus"]), float(row["throughput"]) / int(row["gpus"])
        if name := names.get(row["model"]):
            yield _of_image("nvidia-dle", name, known[name], 224, "a100-80gb", gpus, per_s)
        elif row["model"].startswith("bert-large-pretrain-seq128"):
            # its head sees masked tokens only; rows of 512 tokens print 45 % more tokens per second than these
            layers, hidden, length = 24, 1024, 128
            yield Measured(
                "nvidia-dle",
                "BERT-Large",
                "encoder",
                0.336,
                length,
                "a100-80gb",
                gpus,
                name_strategy(1, 0, gpus),
                per_s * length,
                count_gpt(layers, hidden, 0, 2 * length),  # each token sees all others
            )


def read_timm() -> Iterator[Measured]:
    for name, row in _macs().items():
        best = max(float(row[f"samples_per_s_{layout}"] or 0) for layout in ("nchw", "nhwc"))
        yield _of_image("timm", name, row, int(row["image_size"]), "rtx-3090", 1, best)


IMAGES = dict.fromkeys(("vit", "deit", "swin"), "transformer")
IMAGES |= dict.fromkeys(("mobilenet", "efficientnet", "convnext"), "depthwise")
"""Begin of a name -> family."""


def _name_family(name: str) -> str:
    return next((family for start, family in IMAGES.items() if name.startswith(start)), "convolutions")


def _of_image(
    key: str, name: str, known: dict[str, str], side: int, card: str, gpus: int, per_s: float
) -> Measured:
    size, gflop = float(known["params_m"]) / 1e3, 6 * float(known["gmacs"])
    family = next((family for start, family in IMAGES.items() if name.startswith(start)), "convolutions")
    return Measured(
        key, name, family, size, side, card, gpus, name_strategy(1, 0, gpus), per_s, gflop, "macs"
    )


def read_own() -> Iterator[Measured]:
    """Yield runs of stratlab on one GPU, one repeat each; without those that record or write while they are timed."""
    for path in sorted(MEASURED.glob("*.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            if row.get("stage") not in ("project", "strategies") or row.get("status") != "done":
                continue
            card = find_card_of_device(row.get("device_name") or "")
            if (
                card is None
                or row["precision"] != "bf16"
                or any(word in row["item"] for word in ("snapshot", "save"))
            ):
                continue
            settings, text = row["settings"], row.get("tokens_per_s") is not None
            if row.get("samples_per_s") is None:  # every step was profiled
                continue
            length = int(settings.get("SEQ_LEN" if text else "IMAGE_SIZE", 224))
            vit = row["model"].startswith("vit")
            family = "dense" if text else "transformer" if vit else _name_family(row["model"])
            yield Measured(
                "stratlab",
                row["model"],
                family,
                row["parameters"] / GIGA,
                length,
                card.name,
                1,
                row["strategy"],
                row["tokens_per_s" if text else "samples_per_s"],
                row["flops_per_sample"] / (length if text else 1) / GIGA,
                "shape",
                "lora" if settings.get("LORA_RANK", "0") != "0" else "full",
                recompute="" if settings.get("ACTIVATION_CHECKPOINTING", "none") == "none" else "blocks",
                micro_batch=settings["MICRO_BATCH_SIZE"],
            )


IMAGE_READERS = (read_lambda, read_dle, read_timm, read_own)
