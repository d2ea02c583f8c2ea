"""The engine of plain PyTorch in one process: in which mode and precision it computes, and each update by hand."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch
from torch import Tensor, nn

from stratlab_spec.settings.config import Config
from trainer.data.batches import Batch
from trainer.distributed.world import Precision
from trainer.engines.torch_engine import LONG, ROW, TorchEngine, clip_gradients, total_norm, whole_norm
from trainer.measuring.phases import Phases
from trainer.models.mixed_precision import LossScale, apply_low_precision
from trainer.models.model_with_loss import ClassLoss, ImageClassifier
from trainer.strategies import ddp


class Watched(ImageClassifier):
    """A linear layer that notes how it is called: in training mode, and in what autocast computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.loss = ClassLoss()
        self.seen: list[tuple[bool, torch.dtype | None]] = []

    def blocks(self) -> list[nn.Module]:
        return [self.layer]

    def predict(self, images: Tensor) -> Tensor:
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        assert self.layer.training is self.training
        self.seen.append((self.training, autocast))
        return self.layer(images)


def build(precision: str = "fp32", **settings: Any) -> tuple[TorchEngine, Watched]:
    torch.manual_seed(0)
    model = Watched()
    config = Config(**{"run": "try", "optimizer": "sgd", "weight_decay": 0.0} | settings)
    mesh = SimpleNamespace(device_type="cpu")
    run = SimpleNamespace(config=config, mesh=mesh, precision=Precision(precision))
    if dtype := run.precision.autocast_dtype:
        apply_low_precision(model, dtype)
    return TorchEngine(run, model, Phases("cpu")), model  # type: ignore[arg-type]


def batch(micro_batches: int = 1) -> Batch:
    images = torch.randn(4 * micro_batches, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(4 * micro_batches) % 2
    return Batch(list(zip(images.split(4), labels.split(4), strict=True)), len(images), len(images))


@pytest.mark.parametrize(
    ("precision", "autocast"), [("fp32", None), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_it_trains_in_training_mode_and_judges_in_evaluation_mode_with_the_same_precision(
    precision, autocast
):
    engine, model = build(precision)
    engine.train_step(batch(2), 0.1)
    sums = engine.evaluate(*batch().micro[0])
    assert sums.dtype == torch.float64 and not sums.requires_grad
    assert len(sums) == 6 and sums[2:].sum() == 4, "loss, among the five likeliest, confusion of two classes"
    engine.evaluate(*batch().micro[0])
    engine.train_step(batch(), 0.1)
    training, judging = (True, autocast), (False, autocast)
    assert model.seen == [training, training, judging, judging, training]


def parameters_after(scale: float, good_steps: int) -> tuple[list[Tensor], LossScale]:
    engine, model = build("fp16")
    engine.loss_scale.scale, engine.loss_scale.good_steps = scale, good_steps
    assert engine.train_step(batch(), 0.5).skipped == 0
    return [p.detach().clone() for p in model.parameters()], engine.loss_scale


def test_a_step_that_doubles_the_scale_is_unscaled_with_the_scale_it_was_computed_with():
    plain, kept = parameters_after(256.0, 0)
    doubled, grown = parameters_after(256.0, LossScale.INTERVAL - 1)
    assert (kept.scale, grown.scale) == (256.0, 512.0)
    assert all(torch.equal(a, b) for a, b in zip(plain, doubled, strict=True))


@pytest.mark.parametrize(("optimizer", "moved"), [("sgd", 1 - 0.5 * 0.3), ("adamw", 1 - 0.5 * 0.3)])
def test_weight_decay_without_a_gradient_by_hand(optimizer, moved):
    """Both make w (1 - lr x decay) of a weight without a gradient: neither torch's defaults nor the setting's."""
    engine, model = build(optimizer=optimizer, weight_decay=0.3)
    before = model.layer.weight.detach().clone()
    images, labels = torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])  # no gradient for the weight
    engine.train_step(Batch([(images, labels)], 4, 4), 0.5)
    torch.testing.assert_close(model.layer.weight.detach(), before * moved)


@pytest.mark.parametrize("size", [ROW, LONG + 1, 20_000_003])
def test_the_norm_is_that_of_fp64_however_long_a_tensor_is(size: int) -> None:
    """torch's own is 7e-4 too small at 20 million."""
    parts = [torch.randn(size, generator=torch.Generator().manual_seed(1)), torch.randn(5, 7)]
    wanted = torch.cat([part.flatten().double() for part in parts]).norm()
    assert total_norm(parts).item() == pytest.approx(wanted.item(), rel=1e-5)
    assert whole_norm(parts, "cpu").item() == total_norm(parts).item()


@pytest.mark.parametrize(("largest", "factor"), [(10.0, 1.0), (2.5, 0.5)])
def test_gradients_are_scaled_down_to_the_largest_norm_and_never_up(largest, factor):
    gradient = torch.tensor([3.0, 4.0])
    clip_gradients([gradient], largest, torch.tensor(5.0))
    torch.testing.assert_close(gradient, factor * torch.tensor([3.0, 4.0]), rtol=1e-5, atol=0)


def test_ddp_hears_of_its_static_graph_and_of_its_buckets(monkeypatch):
    made = Mock(side_effect=InterruptedError)
    monkeypatch.setattr(ddp, "DistributedDataParallel", made)
    config = Config(run="r", strategy="ddp", static_graph=True, reduce_bucket_mib=7)
    plan = SimpleNamespace(micro_batches=1)
    run: Any = SimpleNamespace(config=config, mesh=MagicMock(device_type="cpu"), plan=plan)
    with pytest.raises(InterruptedError):
        ddp.build(run, nn.Linear(2, 2), Phases("cpu"))
    assert (made.call_args.kwargs["static_graph"], made.call_args.kwargs["bucket_cap_mb"]) == (True, 7)
