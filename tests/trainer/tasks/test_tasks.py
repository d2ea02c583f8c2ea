"""Which task the settings mean; what an evaluation adds up, and what a token of a language model costs, by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import Tensor

from stratlab_spec.models.decoder import DecoderShape
from stratlab_spec.settings.config import Config
from tests.trainer.models.conftest import small_settings
from trainer.data.batches import Batch, Share
from trainer.data.text.token_rows import IGNORED
from trainer.engine import add_up, as_sums, build_result
from trainer.models.chunked_cross_entropy import TokenLoss
from trainer.models.model_with_loss import ClassLoss
from trainer.tasks import open_task
from trainer.tasks.evaluation import (
    Classification,
    add_up_split,
    read_classification,
    read_language_modelling,
)
from trainer.tasks.normalization import find_preprocessing
from trainer.tasks.text_task import TextTask


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, "image"),
        ({"model": "qwen_tiny"}, "text"),
        ({"dataset": "arithmetic", "model": "owner/name"}, "text"),
        ({"dataset": "owner/photos", "model": "owner/name"}, "image"),
        ({"dataset": "owner/words", "model": "owner/name", "task": "text"}, "text"),
    ],
)
def test_the_kind_follows_from_model_data_or_task(monkeypatch, settings, kind):
    opened: dict[str, tuple[object, ...]] = {}
    for name, place in (("text", "text_task.TextTask"), ("image", "image_task.ImageTask")):
        monkeypatch.setattr(f"trainer.tasks.{place}", lambda *given, name=name: opened.update({name: given}))
    config, share = Config(run="x", **settings), Share(1, 2)
    open_task(config, share, "cpu")
    assert opened == {kind: (config, share, "cpu")}


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


def test_a_language_model_s_loss_is_a_mean_over_tokens_and_not_over_batches():
    """30 nats over 10 tokens and 2 over 6."""
    sums = iter([torch.tensor([30.0, 10.0]), torch.tensor([2.0, 6.0])])
    empty = torch.zeros(1)
    found = read_language_modelling(add_up_split(lambda inputs, labels: next(sums), [(empty, empty)] * 2), 5)
    assert (found.loss, found.labels, found.samples) == (2.0, 16, 5)
    assert found.perplexity == pytest.approx(math.e**2)


SHAPE = DecoderShape(
    family="qwen2", layers=3, hidden=8, heads=4, kv_heads=2, head_dim=2, intermediate=16, vocab=10, tied=True
)
# per layer q 8 x 8, k and v 4 x 8, o 8 x 8, gate, up and down 16 x 8; and the head, 10 x 8
WEIGHTS = 3 * (64 + 2 * 32 + 64 + 3 * 128) + 80
ATTENTION = 12 * 3 * 8 * 64  # 12 L H Q T


@pytest.mark.parametrize(
    ("lora_rank", "teacher", "per_weight", "attention"),
    [(0, None, 6, ATTENTION), (4, None, 4, ATTENTION), (0, SHAPE, 6 + 2, ATTENTION + ATTENTION / 3)],
)
def test_a_token_s_operations_by_hand(lora_rank, teacher, per_weight, attention, monkeypatch):
    config = Config(run="try", model="qwen_tiny", seq_len=64, lora_rank=lora_rank)
    task = SimpleNamespace(_config=config, _teacher_shape=teacher)
    monkeypatch.setattr("trainer.tasks.text_task.find_decoder", lambda _: SimpleNamespace(shape=SHAPE))
    found = TextTask.cost(task, None)  # type: ignore[arg-type]
    assert found["flops_per_token"] == per_weight * WEIGHTS + attention / 2
    assert found["flops_per_token_literature"] == per_weight * WEIGHTS + attention
    assert found["flops_per_sample"] == 64 * found["flops_per_token"]


def test_published_weights_see_imagenet_s_pixels_and_a_hub_model_those_of_its_processor(tmp_path):
    published = find_preprocessing(Config(run="r", model="resnet_finetuned"))
    small_settings("vit").save_pretrained(tmp_path)
    seen = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.3]}
    transformers.ViTImageProcessor(**seen).save_pretrained(tmp_path)
    own = find_preprocessing(Config(run="r", model_path=str(tmp_path), init="pretrained"))
    assert (published.mean, published.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert own.mean == pytest.approx((0.4, 0.5, 0.6)) and own.std == pytest.approx((0.2, 0.25, 0.3))
