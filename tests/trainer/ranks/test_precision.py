from __future__ import annotations

import pytest
import torch

from tests.ranks import run_ranks
from trainer.models.loss_scale import LossScale
from trainer.settings.config import Config, ConfigError
from trainer.settings.precision import Precision, apply_whole_fp32, resolve_precision, uses_tf32


def config(precision: str, strategy: str = "ddp") -> Config:
    return Config(run="try", precision=precision, strategy=strategy)


def test_auto_is_fp32_on_a_cpu_and_on_a_gpu_what_it_has_natively(monkeypatch):
    assert resolve_precision(config("auto"), "cpu").name == "fp32"
    for has_bf16, name in ((True, "bf16"), (False, "fp16")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda has=has_bf16, **_: has)
        assert resolve_precision(config("auto"), "cuda").name == name


@pytest.fixture
def tf32():
    """Both switches on, and afterwards as they were; not by monkeypatch, which cannot undo a property."""
    switches = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = True
    yield switches
    for switch, was in zip(switches, before, strict=True):
        switch.allow_tf32 = was


def test_fp32_keeps_all_its_bits_in_cudnn_too(tf32):
    assert uses_tf32()
    apply_whole_fp32()
    assert [switch.allow_tf32 for switch in tf32] == [False, False]
    assert not uses_tf32()


def test_fp16_is_refused_on_a_cpu_only():
    with pytest.raises(
        ConfigError, match="TRAINER_PRECISION=fp16: needs a GPU, and this is a CPU; use fp32, bf16"
    ):
        resolve_precision(config("fp16"), "cpu")
    assert resolve_precision(config("fp16"), "cuda").scales_loss


def test_fp16_on_a_cpu_is_refused_before_the_process_group_starts(tmp_path):
    def attempt() -> None:
        import os

        import torch.distributed as dist

        from trainer import worker
        from trainer.hangs.pulse import open_pulse
        from trainer.layout.world import read_world

        try:
            worker.train_run(
                Config(run="try", precision="fp16", results=str(tmp_path)),
                read_world(os.environ),
                "",
                open_pulse(os.environ, 0, 0),
            )
        except ConfigError:
            assert not dist.is_initialized()
            return
        raise AssertionError("not refused")

    run_ranks(attempt, 1)


@pytest.mark.parametrize(
    ("precision", "strategy", "autocast"),
    [
        ("fp32", "ddp", None),
        ("bf16", "zero3", torch.bfloat16),
        ("bf16", "fsdp", torch.bfloat16),
        ("bf16_native", "zero1", None),
        ("fp16", "hsdp", torch.float16),
    ],
)
def test_what_autocast_computes_in(precision, strategy, autocast):
    assert resolve_precision(config(precision, strategy), "cuda").autocast_dtype == autocast


def test_the_loss_scale_follows_torchs_own_scaler():
    """The same course as torch.amp.GradScaler over good and bad steps, with a short interval."""
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
    assert theirs.get_scale() == ours.scale


def test_without_fp16_the_loss_is_not_scaled_and_nothing_is_skipped():
    scale = LossScale(Precision("bf16").scales_loss)
    scale.update(True)
    assert scale.scale == 1.0 and not scale.must_skip(float("inf"))


def test_the_scale_survives_a_checkpoint():
    scale, other = LossScale(True, scale=512.0, good_steps=7), LossScale(True)
    other.load(scale.state())
    assert other == scale
