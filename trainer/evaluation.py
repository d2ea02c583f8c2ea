"""Loss, accuracy and confusion matrix of one split, each rank a share of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from trainer.config import Config
from trainer.data.batches import Share, evaluation_batches
from trainer.data.images import ImageData
from trainer.models import build_model
from trainer.precision import resolve_precision


@dataclass(frozen=True)
class Evaluation:
    """Sums over all samples of a split, equal on every rank."""

    loss: float
    confusion: list[list[int]]
    """Rows are the true classes, columns the predicted ones."""

    @property
    def samples(self) -> int:
        return sum(map(sum, self.confusion))

    @property
    def accuracy_pct(self) -> float:
        right = sum(row[i] for i, row in enumerate(self.confusion))
        return 100.0 * right / self.samples

    def report(self, split: str, class_names: list[str]) -> dict[str, Any]:
        """The content of evaluation.json."""
        per_class = []
        for i, (name, row) in enumerate(zip(class_names, self.confusion, strict=True)):
            total = sum(row)
            accuracy = 100.0 * row[i] / total if total else None
            per_class.append({"label": name, "samples": total, "accuracy_pct": accuracy})
        return {
            "split": split,
            "samples": self.samples,
            "loss": self.loss,
            "accuracy_pct": self.accuracy_pct,
            "class_names": class_names,
            "per_class": per_class,
            "confusion_matrix": self.confusion,
        }


def evaluate(
    forward: Callable[[Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    classes: int,
    device: str,
) -> Evaluation:
    """Runs the model over the batches of this rank and adds up over all ranks; collective.

    Args:
        forward: images -> logits [batch, class], without gradients.
        batches: (images, labels, weights); a weight of 0 marks padding.
    """
    confusion = torch.zeros(classes * classes, dtype=torch.float64, device=device)
    loss = torch.zeros(1, dtype=torch.float64, device=device)
    for images, labels, weights in batches:
        logits = forward(images).float()
        loss += (F.cross_entropy(logits, labels, reduction="none") * weights).sum()
        confusion.index_add_(0, labels * classes + logits.argmax(dim=1), weights.double())
    sums = torch.cat([confusion, loss])
    if dist.is_initialized():
        dist.all_reduce(sums)
    total = sums[:-1].sum().item()
    matrix = sums[:-1].reshape(classes, classes).long().tolist()
    return Evaluation(sums[-1].item() / total, matrix)


def judge(
    config: Config, data: ImageData, image_size: int, rank: int, ranks: int, device: str
) -> tuple[Evaluation, dict[str, Any]]:
    """The test split under the weights in `model_path`, and the facts of the model; collective if there are ranks.

    Raises:
        ConfigError, DataMissing: weights that do not fit, or are not there.
    """
    classes = len(data.class_names)
    model = build_model(config, image_size=image_size, channels=data.channels, num_labels=classes)
    parameters = sum(p.numel() for p in model.parameters())
    model.to(device).eval()
    device_type = torch.device(device).type
    precision = resolve_precision(config, device_type)
    native = precision.name == "bf16_native"
    dtype = torch.bfloat16 if native else precision.autocast_dtype

    def forward(images: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast(device_type, dtype=dtype, enabled=dtype is not None):
            return model(images)

    batches = evaluation_batches(data.test, config.micro_batch_size, Share(rank, ranks), device)
    return evaluate(forward, batches, classes, device), {
        "precision": precision.name,
        "parameters": parameters,
        "flops_per_sample": model.flops_per_sample,
    }
