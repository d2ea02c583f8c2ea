import pytest
import torch

from stratlab_spec.settings.config import Config
from trainer.distributed.world import resolve_precision
from trainer.models.mixed_precision import LossScale


def config(precision: str, strategy: str = "ddp") -> Config:
    return Config(run="try", precision=precision, strategy=strategy)


def test_auto_is_fp32_on_a_cpu_and_on_a_gpu_what_it_has_natively(monkeypatch):
    assert resolve_precision(config("auto"), "cpu").name == "fp32"
    for has_bf16, name in ((True, "bf16"), (False, "fp16")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda has=has_bf16, **_: has)
        assert resolve_precision(config("auto"), "cuda").name == name


@pytest.mark.parametrize(
    ("precision", "strategy", "autocast"),
    [
        ("fp32", "ddp", None),
        ("bf16", "zero3", torch.bfloat16),
        ("bf16_native", "zero1", None),
        ("fp16", "hsdp", torch.float16),
    ],
)
def test_what_autocast_computes_in(precision, strategy, autocast):
    assert resolve_precision(config(precision, strategy), "cuda").autocast_dtype == autocast


def test_the_loss_scale_follows_torchs_own_scaler():
    theirs = torch.amp.GradScaler("cpu", growth_interval=3)
    ours = LossScale(enabled=True)
    ours.INTERVAL = 3
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for bad in (True, False, False, False, False, True, False, False, False, False):
        loss = theirs.scale(weight.sum() * (float("inf") if bad else 1.0))
        assert theirs.get_scale() == ours.scale
        loss.backward()
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
        skip = ours.must_skip(float("nan") if bad else 1.0)
        assert skip == bad
        ours.update(skip)
    other = LossScale(True)
    other.load(ours.state())
    assert theirs.get_scale() == ours.scale == other.scale and other == ours
