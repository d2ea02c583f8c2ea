"""Evaluate a model on one split, each rank on its share: inside an engine, or with finished weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from stratlab_spec.settings.config import Config
from trainer.distributed.world import resolve_precision
from trainer.engine import as_sums
from trainer.models.mixed_precision import apply_low_precision
from trainer.models.model_with_loss import TOP, Learner

MOST_PERPLEXITY = 1e30
"""Largest reported number, because JSON has no infinity."""


class Evaluation(Protocol):
    """Results over all samples of a split, equal on every rank."""

    @property
    def samples(self) -> int:
        """Return the number of evaluated samples."""

    def measures(self) -> dict[str, float]:
        """Return the loss and the reported measures; names end in their unit."""

    def report(self, split: str) -> dict[str, Any]:
        """Return the content of evaluation.json."""


@dataclass(frozen=True)
class Classification:
    """Results of an image classifier."""

    loss: float
    confusion: list[list[int]]
    """Confusion matrix: rows are the true classes, columns the predicted ones."""
    class_names: list[str]
    top5: float | None = None
    """Samples whose class is among the five most probable; None with five classes or fewer."""

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
            accuracy = 100.0 * row[i] / sum(row) if any(row) else None
            per_class.append({"label": name, "samples": sum(row), "accuracy_pct": accuracy})
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
    """Results of a language model: the mean loss over the tokens with labels."""

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
        return {"split": split, "samples": self.rows, "labels": self.labels, **self.measures()}


def do_nothing() -> None:
    """Do nothing between two batches."""


def add_up_split(
    evaluate: Callable[[Tensor, Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    after_batch: Callable[[], None] = do_nothing,
) -> Tensor:
    """Sum the results of `evaluate` (an engine's) over the batches of this rank and over all ranks; collective.

    Args:
        after_batch: called after each batch; it may raise, after the same batch on every rank.

    Returns:
        (sum of the losses, then the task's measures), float64 [1 + n].
    """
    sums = None
    for inputs, labels in batches:
        found = evaluate(inputs, labels)
        sums = found if sums is None else sums.add_(found)
        after_batch()
    assert sums is not None, "a split without batches"
    if dist.is_initialized():
        dist.all_reduce(sums)
    return sums


def read_classification(sums: Tensor, class_names: list[str]) -> Classification:
    """Build the results from the sums of `ClassLoss`."""
    classes = len(class_names)
    matrix = sums[2:].reshape(classes, classes).long().tolist()
    loss, among, total = sums[0].item(), sums[1].item(), sums[2:].sum().item()
    return Classification(loss / total, matrix, class_names, among if classes > TOP else None)


def read_language_modelling(sums: Tensor, rows: int) -> LanguageModelling:
    """Build the results from the sums of `TokenLoss` over a split of `rows`."""
    loss, count = sums.tolist()
    return LanguageModelling(loss / count if count else math.nan, rows, int(count))


def open_judge(
    config: Config, model: Learner, device: str
) -> tuple[Callable[[Tensor, Tensor], Tensor], dict[str, Any]]:
    """Move the model to the device; return (a function like `Engine.evaluate`, facts of the model)."""
    parameters = sum(p.numel() for p in model.parameters())
    model.to(device).eval()
    device_type = torch.device(device).type
    precision = resolve_precision(config, device_type)
    dtype = torch.bfloat16 if precision.name == "bf16_native" else precision.autocast_dtype
    if dtype is not None:
        apply_low_precision(model, dtype)

    def judge(inputs: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            return as_sums(*model(inputs, labels))

    return judge, {"precision": precision.name, "parameters": parameters}
