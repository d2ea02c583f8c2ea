from __future__ import annotations

import pytest
import torch

from trainer.config import Config
from trainer.model_shapes import VIT, default_image_size, image_size_problem
from trainer.models import build_model
from trainer.models.vit import training_flops
from trainer.provenance import hash_weights


def settings(model: str, seed: int = 0) -> Config:
    return Config(run="r", model=model, seed=seed)


def published(name: str) -> int:
    """Parameters on the meta device, with the 1000 classes of ImageNet."""
    with torch.device("meta"):
        model = build_model(
            settings(name), image_size=default_image_size(settings(name)), channels=3, num_labels=1000
        )
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "millions"),
    [("vit_small", 22.05), ("vit_base", 86.57), ("vit_large", 304.33), ("vit_huge", 632.05)],
)
def test_published_parameter_counts(name, millions):
    """timm's counts of vit_{small,base,large}_patch16_224 and vit_huge_patch14_224."""
    assert published(name) / 1e6 == pytest.approx(millions, abs=0.01)


@pytest.mark.parametrize(
    ("name", "gflops"), [("vit_base", 105.4), ("vit_large", 369.3), ("vit_huge", 1003.8)]
)
def test_flops_of_the_published_shapes(name, gflops):
    assert training_flops(VIT[name], VIT[name].image, 3) / 1e9 == pytest.approx(gflops, abs=0.1)


@pytest.mark.parametrize("name", ["vit_tiny", "cnn"])
def test_logits_and_blocks(name):
    model = build_model(settings(name), image_size=16, channels=1, num_labels=7)
    assert model(torch.zeros(2, 1, 16, 16)).shape == (2, 7)
    inside = {id(p) for block in model.blocks() for p in block.parameters()}
    assert len(model.blocks()) > 1 and 0 < len(inside) <= len(list(model.parameters()))


@pytest.mark.parametrize("name", ["vit_tiny", "cnn"])
def test_counted_flops_agree_with_torch(name):
    from torch.utils.flop_counter import FlopCounterMode

    model = build_model(settings(name), image_size=16, channels=1, num_labels=10)
    with FlopCounterMode(display=False) as counter:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the others are not counted
            model(torch.zeros(1, 1, 16, 16))
    head = 2 * 10 * (64 if name == "vit_tiny" else 128)  # left out by convention
    assert model.flops_per_sample == 3 * (counter.get_total_flops() - head)


def test_initial_weights_depend_on_the_seed_alone():
    def sha(seed: int) -> str:
        torch.rand(seed + 3)  # whatever happened before
        return hash_weights(build_model(settings("vit_tiny", seed), image_size=16, channels=1, num_labels=10))

    assert sha(1) == sha(1) != sha(2)


def test_an_image_size_that_does_not_fit_names_one_that_does():
    assert image_size_problem(settings("vit_base"), 224) is None
    assert image_size_problem(settings("vit_huge"), 230) == (
        "TRAINER_IMAGE_SIZE=230: vit_huge needs a multiple of 14, for example 224"
    )
