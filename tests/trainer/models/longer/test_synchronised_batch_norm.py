"""Batch norm that can be taken over all ranks, in one process; over several: ranks/."""

from typing import Any

import torch
from torch import nn

from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import refuses
from tests.trainer.models.conftest import write_model
from trainer.models import build_model
from trainer.models.batch_norm import apply_synchronised_batch_norm

ROWS, CHANNELS = 12, 3


def layer(momentum: float | None = 0.1, **settings: Any) -> nn.BatchNorm2d:
    torch.manual_seed(0)
    found = nn.BatchNorm2d(CHANNELS, momentum=momentum, **settings)
    if found.affine:
        nn.init.normal_(found.weight)
        nn.init.normal_(found.bias)
    return found


def images(step: int, offset: float = 0.0) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(step)
    # each row another mean: what one rank sees is not what all see
    return torch.randn(ROWS, CHANNELS, 4, 5, generator=drawn) + torch.arange(ROWS).view(-1, 1, 1, 1) + offset


def test_in_evaluation_and_of_one_value_it_is_torch_s_own():
    norm, theirs = layer(), layer()
    apply_synchronised_batch_norm(norm)
    norm(images(1)), theirs(images(1))
    assert torch.equal(norm.eval()(images(2)), theirs.eval()(images(2)))
    with refuses(ValueError, "SL-batch-norm-one-value"):
        norm.train()(torch.ones(1, CHANNELS, 1, 1))


def build(**settings: Any) -> nn.Module:
    config = Config(run="r", **{"batch_norm": "synchronised"} | settings)
    return build_model(config, image_size=16, channels=3, num_labels=5)


def test_every_layer_of_a_network_is_one_and_recomputed_blocks_count_a_micro_batch_once(tmp_path):
    write_model(tmp_path / "resnet", "resnet")
    write_model(tmp_path / "vit", "vit")
    found = []
    for values in ({}, {"activation_checkpointing": "blocks"}, {"batch_norm": "local"}):
        model = build(model_path=str(tmp_path / "resnet"), **values)
        kinds = {type(m).__name__ for m in model.modules() if "BatchNorm" in type(m).__name__}
        assert kinds == {"BatchNorm2d" if "batch_norm" in values else "SynchronisedBatchNorm"}
        model(torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(3))).square().sum().backward()
        found.append(dict(model.named_buffers()) | {n: p.grad for n, p in model.named_parameters()})
    for other in found[1:]:
        assert list(other) == list(found[0])
        for name, tensor in found[0].items():
            torch.testing.assert_close(other[name], tensor, rtol=1e-4, atol=1e-5)
    for settings in ({"model": "vgg"}, {"model_path": str(tmp_path / "vit")}):
        with refuses(ConfigError, "SL-batch-norm-absent"):
            build(**settings)
