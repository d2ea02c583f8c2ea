"""Top-5 by hand, and what a training step counts."""

from __future__ import annotations

import pytest
import torch

from trainer.data.batches import IGNORED, Batch
from trainer.engine import add_up, as_sums, build_result
from trainer.models.chunked_cross_entropy import TokenLoss
from trainer.models.model_with_loss import ClassLoss
from trainer.tasks.evaluation import Classification, read_classification


def judge(logits: torch.Tensor, labels: torch.Tensor, names: list[str]) -> Classification:
    return read_classification(as_sums(*ClassLoss().eval()(logits, labels)), names)


def rows(*orders: list[int], classes: int) -> torch.Tensor:
    """Logits whose classes come in these orders, the likeliest first; those that are not named come last."""
    logits = torch.zeros(len(orders), classes)
    for i, order in enumerate(orders):
        for place, label in enumerate(order):
            logits[i, label] = 10.0 - place
    return logits


def test_top_5_counts_what_is_among_the_five_likeliest_of_more_than_five() -> None:
    logits = rows([0, 1, 2, 3, 4], [1, 2, 3, 4, 0], [1, 2, 3, 4, 5, 0], [6, 0], classes=7)
    labels = torch.tensor([0, 0, 0, IGNORED])  # the last one is padding
    found = judge(logits, labels, [str(i) for i in range(7)])
    assert found.samples == 3 and found.measures()["accuracy_pct"] == pytest.approx(100 / 3)
    assert found.measures()["top5_accuracy_pct"] == pytest.approx(200 / 3)
    assert found.report("test")["top5_accuracy_pct"] == pytest.approx(200 / 3)
    found = judge(rows([0, 1], [1, 0], classes=5), torch.tensor([0, 0]), list("abcde"))
    assert set(found.measures()) == {"loss", "accuracy_pct"}


def test_a_step_counts_what_it_tells_right_of_images() -> None:
    logits = rows([2], [1], [0], classes=3).requires_grad_()
    _, counted = ClassLoss()(logits, torch.tensor([2, 1, 1]))
    assert counted.tolist() == [2] and not counted.requires_grad
    mixed = torch.tensor([[0.1, 0.2, 0.7], [0.6, 0.4, 0.0], [0.9, 0.1, 0.0]])  # mixup: by the larger share
    assert ClassLoss()(logits, mixed)[1].tolist() == [2]
    of_text, batch = TokenLoss().measure(torch.zeros(2, 4, dtype=torch.int64)), Batch([], 2, 8)
    assert build_result(batch, torch.zeros(()), of_text, 1.0, 0).measures is None
    assert build_result(batch, torch.zeros(()), torch.tensor([3]), 1.0, 0).measures == 3
    assert add_up(add_up(None, torch.tensor(1)), torch.tensor(2)).item() == 3  # of micro-batches
