"""Experts of one rank. Autocast does not know their grouped product, so they have to follow it themselves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from trainer.models.decoder_build import build_decoder
from trainer.parallel.expert import Experts
from trainer.settings.config import Config


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_under_autocast_experts_compute_in_its_precision(dtype, monkeypatch):
    config = Config(run="try", model="qwen_moe_tiny", dataset="arithmetic", seq_len=16)
    whole = build_decoder(config).hf.model.layers[0].mlp.experts
    one = SimpleNamespace(size=lambda: 1, get_group=lambda: None)
    experts = Experts(whole, one)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(6, 64, generator=generator)
    chosen = torch.randint(0, 8, (6, 2), generator=generator)
    shares = torch.rand(6, 2, generator=generator)
    products = []
    compute = F.grouped_mm

    def watch(rows, weights, **given):
        products.append((rows.dtype, weights.dtype))
        return compute(rows, weights, **given)

    exact = experts(tokens, chosen, shares).detach()
    monkeypatch.setattr(F, "grouped_mm", watch)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        answer = experts(tokens, chosen, shares).detach()
    kind = dtype or torch.float32
    assert products == [(kind, kind)] * 2  # gate and up in one, then down
    assert answer.dtype == torch.float32
    difference = float((answer - exact).abs().max() / exact.abs().max())
    assert difference == 0 if dtype is None else 1e-5 < difference < 0.05
