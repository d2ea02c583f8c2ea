from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from trainer.models import build_model
from trainer.models.vit import training_flops
from trainer.record.provenance import hash_weights
from trainer.settings.config import Config
from trainer.settings.fields import MODELS, TEXT_MODELS
from trainer.settings.network_table import FINETUNED_NETWORKS, NETWORKS, write_rows
from trainer.shapes.model_shapes import TORCHVISION, VIT, default_image_size

OURS = tuple(name for name, row in NETWORKS.items() if row.builder)
SMALL = ("vit_tiny", *OURS, "mobilenet")


def settings(model: str, seed: int = 0, **values) -> Config:
    return Config(run="r", model=model, seed=seed, **values)


def build(model: str, **values):
    size = values.pop("image_size", 32)
    shape = {"image_size": size, "channels": values.pop("channels", 1), "num_labels": values.pop("labels", 7)}
    return build_model(settings(model, **values), **shape)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("vit_small", 22.05),
        ("vit_base", 86.57),
        ("vit_large", 304.33),
        ("vit_huge", 632.05),
        ("mobilenet", 5.48),
        ("efficientnet", 5.29),
        ("vgg", 138.36),
        ("resnet", 25.56),
    ],
)
def test_published_parameter_counts(name, millions):
    """timm's counts of vit_{small,base,large}_patch16_224 and vit_huge_patch14_224; torchvision's of the others."""
    size = default_image_size(settings(name))
    model = build_model(settings(name), image_size=size, channels=3, num_labels=1000, empty=True)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.01)
    assert all(p.is_meta for p in model.parameters()) and size == 224


@pytest.mark.parametrize(
    ("name", "gflops"), [("vit_base", 105.4), ("vit_large", 369.3), ("vit_huge", 1003.8)]
)
def test_flops_of_the_published_vits(name, gflops):
    assert training_flops(VIT[name], VIT[name].image, 3) / 1e9 == pytest.approx(gflops, abs=0.1)


@pytest.mark.parametrize(
    ("name", "giga_multiplications"),
    [("mobilenet", 0.22), ("efficientnet", 0.39), ("vgg", 15.47), ("resnet", 4.09)],
)
def test_flops_of_the_published_convolutional_networks(name, giga_multiplications):
    """torchvision's table of weights; one multiplication with its addition is two operations, three passes."""
    model = build_model(settings(name), image_size=224, channels=3, num_labels=1000, empty=True)
    assert model.flops_per_sample / 6e9 == pytest.approx(giga_multiplications, abs=0.01)


def test_resnet_s_residual_branches_begin_at_zero():
    """Goyal et al., arXiv 1706.02677, 5.1: at first every block is its shortcut, and gradients are short."""
    model = build_model(settings("resnet"), image_size=32, channels=1, num_labels=7)
    last = [p for name, p in model.named_parameters() if name.endswith("bn3.weight")]
    assert len(last) == 16 and not any(p.any() for p in last)
    images, labels = torch.rand(16, 1, 32, 32), torch.arange(16) % 7

    def norm() -> float:
        model.zero_grad()
        (model(images, labels)[0] / 16).backward()
        return float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))

    short = norm()
    with torch.no_grad():
        for weight in last:
            weight.fill_(1.0)
    assert norm() > 10 * short


@pytest.mark.parametrize("name", ["vit_tiny", *NETWORKS])
def test_counted_flops_agree_with_torch(name):
    model = build_model(settings(name), image_size=32, channels=1, num_labels=7, empty=True).eval()
    with FlopCounterMode(display=False) as counter:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the others are not counted
            model(torch.zeros(1, 1, 32, 32, device="meta"))
    heads = [model.network().get_submodule(head) for head in model.heads]
    head = sum(2 * layer.in_features * layer.out_features for layer in heads)  # left out by convention
    assert head > 0 and model.flops_per_sample == 3 * (counter.get_total_flops() - head)


def test_every_name_is_a_network_of_its_own():
    """A name that is known to the settings alone was another network once."""
    assert {*MODELS} == {*VIT, *NETWORKS, *FINETUNED_NETWORKS, *TEXT_MODELS}
    kinds = [
        type(build_model(settings(name), image_size=32, channels=1, num_labels=7, empty=True))
        for name, row in NETWORKS.items()
        if row.builder
    ]
    assert len(kinds) == len({*kinds}) == len([row for row in NETWORKS.values() if row.builder]) > 2


def test_the_readme_has_the_rows_of_the_table():
    text = Path("README.md").read_text()
    assert write_rows(text) == text, "make schema"
    without = text.replace("| `cnn` |", "| `gone` |")
    assert without != text and write_rows(without) == text


def test_the_readme_names_each_network_and_no_other():
    section = Path("README.md").read_text().split("## Models and data", 1)[1].split("\n\n", 2)[1]
    cells = [re.findall("`([^`]+)`", row.split("|")[1]) for row in section.splitlines()[2:]]
    named = [name for cell in cells for names in cell for name in names.split()]
    assert sorted(name for name in named if name not in ("owner/name", "model_path")) == sorted(MODELS)


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("name", ["vit_tiny", *NETWORKS])
def test_logits_and_blocks(name, channels):
    model = build_model(settings(name), image_size=32, channels=channels, num_labels=7, empty=True)
    assert model(torch.zeros(2, channels, 32, 32, device="meta")).shape == (2, 7)
    blocks = [{id(p) for p in block.parameters()} for block in model.blocks()]
    every = [p for block in blocks for p in block]
    assert len(blocks) > 1, f"blocks() lists {len(blocks)}, expected several"
    assert all(blocks), "a block without parameters"
    assert len(every) == len(set(every)), "one block inside another"
    assert 0 < len(every) < len(list(model.parameters()))


@pytest.mark.parametrize("name", SMALL)
def test_initial_weights_depend_on_the_seed_alone(name):
    def sha(seed: int, before: int) -> str:
        torch.manual_seed(before)
        return hash_weights(build(name, seed=seed))

    assert sha(1, before=5) == sha(1, before=6) != sha(2, before=5)


@pytest.mark.parametrize("name", [*SMALL, "efficientnet"])
def test_training_has_no_randomness(name):
    """Dropout and stochastic depth are off: two passes in training mode give the same logits."""
    model, images = build(name, image_size=64).train(), torch.rand(2, 1, 64, 64)
    assert torch.equal(model(images), model(images))


def test_vgg_has_no_dropout_either():
    model = build_model(settings("vgg"), image_size=32, channels=1, num_labels=7, empty=True)
    assert [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)] == [0.0, 0.0]


@pytest.mark.parametrize("name", TORCHVISION)
def test_weights_are_called_as_torchvision_calls_them(name):
    import torchvision

    from trainer.models.torchvision_networks import NETWORKS, rename_stages

    model = build_model(settings(name), image_size=32, channels=3, num_labels=1000, empty=True)
    with torch.device("meta"):
        published = getattr(torchvision.models, NETWORKS[name].function)().state_dict()
    published = rename_stages(published) if name == "vgg" else published
    ours = model.network().state_dict()
    assert {n: t.shape for n, t in ours.items()} == {n: t.shape for n, t in published.items()}


def test_vgg_in_stages_computes_what_torchvision_s_does():
    import torchvision

    from trainer.models.torchvision_networks import group_stages, rename_stages

    plain = torchvision.models.vgg.make_layers(torchvision.models.vgg.cfgs["D"])
    staged = group_stages(copy.deepcopy(plain))
    named = rename_stages({f"features.{name}": tensor for name, tensor in plain.state_dict().items()})
    staged.load_state_dict({name.removeprefix("features."): tensor for name, tensor in named.items()})
    images = torch.rand(1, 3, 32, 32)
    assert len(staged) == 5 and torch.equal(plain(images), staged(images))


def test_the_lstm_computes_what_torch_s_does():
    from trainer.models.cnn_lstm import Lstm

    ours, theirs = Lstm(6, 5), torch.nn.LSTM(6, 5, batch_first=True)
    with torch.no_grad():
        ours.from_input.weight.copy_(theirs.weight_ih_l0)
        ours.from_input.bias.copy_(theirs.bias_ih_l0 + theirs.bias_hh_l0)
        ours.from_hidden.weight.copy_(theirs.weight_hh_l0)
    sequence = torch.rand(3, 4, 6)
    torch.testing.assert_close(ours(sequence), theirs(sequence)[0][:, -1])


def test_a_window_moves_over_a_still_image_from_edge_to_edge():
    from trainer.models.cnn_lstm import FRAMES, pan

    image = torch.arange(16.0).expand(1, 1, 16, 16)  # a pixel's value is its column
    frames = pan(image)
    assert frames.shape == (1, FRAMES, 1, 16, 8)
    assert frames[0, :, 0, 0, 0].tolist() == [0, 2, 4, 6, 8] and frames[0, -1, 0, 0, -1] == 15


def test_cnn_lstm_takes_sequences_of_any_length_and_their_order_matters():
    model = build("cnn_lstm")
    frames = torch.rand(2, 3, 1, 32, 32)
    assert model(frames).shape == (2, 7)
    assert not torch.allclose(model(frames), model(frames.flip(1)))


def test_an_ensemble_is_the_mean_of_different_members():
    model, images = build("ensemble"), torch.rand(2, 1, 32, 32)
    logits = [member(images) for member in model.members]
    torch.testing.assert_close(model(images), sum(logits) / 3)
    assert len({hash_weights(member) for member in model.members}) == 3
    alone = build("cnn", seed=0)
    assert model.flops_per_sample == 3 * alone.flops_per_sample


@pytest.mark.parametrize("name", ["cnn", "vit_tiny", "mobilenet"])
def test_every_parameter_gets_a_gradient(name):
    model = build(name)
    model(torch.rand(2, 1, 32, 32)).square().sum().backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "pooler" not in n)
