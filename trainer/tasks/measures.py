"""How good a model is on one split, each rank a share of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

TOP = 5
MOST_PERPLEXITY = 1e30
"""JSON has no infinity."""


class Evaluation(Protocol):
    """Numbers over all samples of a split, equal on every rank."""

    @property
    def samples(self) -> int:
        """How many were judged."""

    def measures(self) -> dict[str, float]:
        """The loss, and what people look at: names end in their unit."""

    def report(self, split: str) -> dict[str, Any]:
        """The content of evaluation.json."""


@dataclass(frozen=True)
class Classification:
    """Of an image classifier."""

    loss: float
    confusion: list[list[int]]
    """Rows are the true classes, columns the predicted ones."""
    class_names: list[str]
    top5: float | None = None
    """Samples whose class is among the five likeliest; None where there are no more than five."""

    @property
    def samples(self) -> int:
        return sum(map(sum, self.confusion))

    @property
    def accuracy_pct(self) -> float:
        right = sum(row[i] for i, row in enumerate(self.confusion))
        return 100.0 * right / self.samples

    def measures(self) -> dict[str, float]:
        top5 = {} if self.top5 is None else {"top5_accuracy_pct": 100.0 * self.top5 / self.samples}
        return {"loss": self.loss, "accuracy_pct": self.accuracy_pct, **top5}

    def report(self, split: str) -> dict[str, Any]:
        per_class = []
        for i, (name, row) in enumerate(zip(self.class_names, self.confusion, strict=True)):
            total = sum(row)
            accuracy = 100.0 * row[i] / total if total else None
            per_class.append({"label": name, "samples": total, "accuracy_pct": accuracy})
        return {
            "split": split,
            "samples": self.samples,
            **self.measures(),
            "class_names": self.class_names,
            "per_class": per_class,
            "confusion_matrix": self.confusion,
        }


@dataclass(frozen=True)
class LanguageModelling:
    """Of a language model: the mean loss over the tokens that are to be learnt."""

    loss: float
    rows: int
    labels: int

    @property
    def samples(self) -> int:
        return self.rows

    @property
    def perplexity(self) -> float:
        return min(math.exp(min(self.loss, 700.0)), MOST_PERPLEXITY)

    def measures(self) -> dict[str, float]:
        return {"loss": self.loss, "perplexity": self.perplexity}

    def report(self, split: str) -> dict[str, Any]:
        return {
            "split": split,
            "samples": self.rows,
            "labels": self.labels,
            "loss": self.loss,
            "perplexity": self.perplexity,
        }


def evaluate(
    forward: Callable[[Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    class_names: list[str],
    device: str,
) -> Classification:
    """Runs the model over the batches of this rank and adds up over all ranks; collective.

    Args:
        forward: images -> logits [batch, class], without gradients.
        batches: (images, labels, weights); a weight of 0 marks padding.
    """
    classes = len(class_names)
    confusion = torch.zeros(classes * classes, dtype=torch.float64, device=device)
    sums = torch.zeros(
        2, dtype=torch.float64, device=device
    )  # of the losses, of those among the five likeliest
    for images, labels, weights in batches:
        logits = forward(images).float()
        sums[0] += (F.cross_entropy(logits, labels, reduction="none") * weights).sum()
        likeliest = logits.topk(min(TOP, classes), dim=1).indices
        sums[1] += ((likeliest == labels[:, None]).any(1) * weights).sum()
        confusion.index_add_(0, labels * classes + logits.argmax(dim=1), weights.double())
    sums = _over_ranks(torch.cat([confusion, sums]))
    total = sums[:-2].sum().item()
    matrix = sums[:-2].reshape(classes, classes).long().tolist()
    top5 = sums[-1].item() if classes > TOP else None
    return Classification(sums[-2].item() / total, matrix, class_names, top5)


def evaluate_tokens(
    measure: Callable[[Tensor, Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    rows: int,
    device: str,
) -> LanguageModelling:
    """The same for a language model; collective.

    Args:
        measure: (inputs, labels) -> (sum of the losses, labels that count), each label counted by one rank.
        rows: of the split, over all ranks.
    """
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    for inputs, labels in batches:
        sums += measure(inputs, labels)
    loss, count = _over_ranks(sums).tolist()
    return LanguageModelling(loss / count if count else math.nan, rows, int(count))


def _over_ranks(sums: Tensor) -> Tensor:
    if dist.is_initialized():
        dist.all_reduce(sums)
    return sums
