from __future__ import annotations

from stratlab_spec.settings.config import Config
from trainer.models import build_model


def test_resnet_s_residual_branches_begin_at_zero():
    """Goyal et al., arXiv 1706.02677, 5.1: at first every block is its shortcut, and gradients are short."""
    model = build_model(Config(run="r", model="resnet"), image_size=32, channels=1, num_labels=7)
    last = [p for name, p in model.named_parameters() if name.endswith("bn3.weight")]
    assert len(last) == 16 and not any(p.any() for p in last)
