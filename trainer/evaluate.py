"""Loss, accuracy and confusion matrix of one split, each rank a share of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from trainer.engine import Engine


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
    engine: Engine, batches: Iterable[tuple[Tensor, Tensor, Tensor]], classes: int, device: str
) -> Evaluation:
    """Runs the model over the batches of this rank and adds up over all ranks; collective."""
    confusion = torch.zeros(classes * classes, dtype=torch.float64, device=device)
    loss = torch.zeros(1, dtype=torch.float64, device=device)
    for images, labels, weights in batches:
        logits = engine.evaluate(images).float()
        loss += (F.cross_entropy(logits, labels, reduction="none") * weights).sum()
        confusion.index_add_(0, labels * classes + logits.argmax(dim=1), weights.double())
    sums = torch.cat([confusion, loss])
    dist.all_reduce(sums)
    total = sums[:-1].sum().item()
    matrix = sums[:-1].reshape(classes, classes).long().tolist()
    return Evaluation(sums[-1].item() / total, matrix)
