"""What an evaluation adds up, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from trainer.data.batches import IGNORED
from trainer.engine import as_sums
from trainer.models.model_with_loss import ClassLoss
from trainer.tasks.evaluation import add_up_split, read_classification, read_language_modelling

# true class -> predicted class, and how often: no class is taken for another as often as the other for it
ANSWERS = [(0, 0), (0, 1), (0, 1), (0, 2), (1, 1), (2, 0), (2, 2)]


def test_rows_of_the_confusion_matrix_are_the_truth_and_columns_the_answers():
    labels = torch.tensor([truth for truth, _ in ANSWERS] + [IGNORED])  # padding: counts nowhere
    answers = torch.tensor([answer for _, answer in ANSWERS] + [0])
    batches = [(answers[part], labels[part]) for part in (slice(0, 4), slice(4, 8))]
    loss = ClassLoss(0.1).eval()  # an evaluation smoothes nothing

    def evaluate(answered: Tensor, truth: Tensor) -> Tensor:
        """An eighth for the two other classes, the rest for the answer."""
        logits = torch.full((len(answered), 3), math.log(1 / 8))
        return as_sums(*loss(logits.scatter_(1, answered[:, None], math.log(3 / 4)), truth))

    found = read_classification(add_up_split(evaluate, batches), ["cat", "dog", "owl"])
    assert found.confusion == [[1, 2, 1], [0, 1, 0], [1, 0, 1]]
    assert found.samples == 7 and found.accuracy_pct == pytest.approx(100 * 3 / 7)
    assert found.loss == pytest.approx((3 * math.log(4 / 3) + 4 * math.log(8)) / 7)
    report = found.report("test")
    assert report["per_class"] == [
        {"label": "cat", "samples": 4, "accuracy_pct": 25.0},
        {"label": "dog", "samples": 1, "accuracy_pct": 100.0},
        {"label": "owl", "samples": 2, "accuracy_pct": 50.0},
    ]
    assert report["confusion_matrix"] == found.confusion and report["split"] == "test"


def test_a_class_without_samples_has_no_accuracy():
    sums = as_sums(*ClassLoss().eval()(torch.tensor([[1.0, 0.0]]), torch.tensor([0])))
    found = read_classification(sums, ["cat", "dog"])
    assert [row["accuracy_pct"] for row in found.report("test")["per_class"]] == [100.0, None]


def test_a_language_model_s_loss_is_a_mean_over_tokens_and_not_over_batches():
    """30 nats over 10 tokens and 2 over 6."""
    sums = iter([torch.tensor([30.0, 10.0]), torch.tensor([2.0, 6.0])])
    empty = torch.zeros(1)
    total = add_up_split(lambda inputs, labels: next(sums), [(empty, empty)] * 2)
    found = read_language_modelling(total, 5)
    assert (found.loss, found.labels, found.samples) == (2.0, 16, 5)
    assert found.perplexity == pytest.approx(math.e**2)
