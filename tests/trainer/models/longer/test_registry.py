from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torchvision
from torch.utils.flop_counter import FlopCounterMode

from stratlab_spec.models.model_specs import VIT, default_image_size
from stratlab_spec.registry import FINETUNED_NETWORKS, NETWORKS, write_rows
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.fields import MODELS, TEXT_MODELS
from trainer.distributed.provenance import hash_weights
from trainer.models import build_model, torchvision_networks
from trainer.models.cnn_lstm import FRAMES, Lstm, pan
from trainer.models.torchvision_networks import rename_stages

OURS = ("vit_tiny", *(name for name, row in NETWORKS.items() if row.builder))


def build(model: str, *, size=32, channels=1, labels=7, empty=False, **values):
    config = Config(run="r", model=model, **values)
    return build_model(config, image_size=size, channels=channels, num_labels=labels, empty=empty)


@pytest.mark.parametrize(
    ("name", "millions", "giga_multiplications"),
    [
        ("vit_base", 86.57, 105.4 / 6),
        ("vit_huge", 632.05, 1003.8 / 6),
        ("mobilenet", 5.48, 0.22),
        ("efficientnet", 5.29, 0.39),
        ("vgg", 138.36, 15.47),
        ("resnet", 25.56, 4.09),
    ],
)
def test_published_parameter_counts_and_operations(name, millions, giga_multiplications):
    """timm's counts of the transformers, torchvision's table of the others; a multiplication with its addition is two
    operations, in three passes."""
    assert default_image_size(Config(run="r", model=name)) == 224
    model = build(name, size=224, channels=3, labels=1000, empty=True)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.01)
    assert model.flops_per_sample / 6e9 == pytest.approx(giga_multiplications, abs=0.02)


@pytest.mark.parametrize("name", [*OURS, "mobilenet"])
def test_counted_flops_agree_with_torch(name):
    model = build(name, empty=True).eval()
    with FlopCounterMode(display=False) as counter:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the others are not counted
            model(torch.zeros(1, 1, 32, 32, device="meta"))
    heads = [model.network().get_submodule(head) for head in model.heads]
    head = sum(2 * layer.in_features * layer.out_features for layer in heads)  # left out by convention
    assert head > 0 and model.flops_per_sample == 3 * (counter.get_total_flops() - head)


def test_every_name_is_a_network_of_its_own():
    """A name that is known to the settings alone was another network once."""
    assert {*MODELS} == {*VIT, *NETWORKS, *FINETUNED_NETWORKS, *TEXT_MODELS}
    kinds = [type(build(name, empty=True)) for name, row in NETWORKS.items() if row.builder]
    assert len(kinds) == len({*kinds}) > 2


def test_the_readme_names_each_network_and_no_other():
    text = Path("README.md").read_text()
    assert write_rows(text) == text, "make schema"
    assert write_rows(text.replace("| `cnn` |", "| `gone` |")) == text
    section = text.split("## Models and data", 1)[1].split("\n\n", 2)[1]
    cells = [re.findall("`([^`]+)`", row.split("|")[1]) for row in section.splitlines()[2:]]
    named = [name for cell in cells for names in cell for name in names.split()]
    assert sorted(name for name in named if name not in ("owner/name", "model_path")) == sorted(MODELS)


@pytest.mark.parametrize("name", ["vit_tiny", *NETWORKS])
def test_logits_blocks_and_nothing_that_drops(name):
    model = build(name, channels=2, empty=True)
    assert model(torch.zeros(2, 2, 32, 32, device="meta")).shape == (2, 7)
    blocks = [{id(p) for p in block.parameters()} for block in model.blocks()]
    every = [p for block in blocks for p in block]
    assert len(blocks) > 1 and all(blocks), "several, each with parameters"
    assert len(every) == len(set(every)), "one block inside another"
    assert 0 < len(every) < len(list(model.parameters()))
    rates = [float(getattr(m, "p", 0)) for m in model.modules() if "Drop" in type(m).__name__]
    rates += [m.p for m in model.modules() if type(m).__name__ == "StochasticDepth"]
    assert not any(rates)


@pytest.mark.parametrize("name", OURS)
def test_weights_depend_on_the_seed_alone_training_on_nothing_and_all_get_gradients(name):
    def sha(seed: int, before: int) -> str:
        torch.manual_seed(before)
        return hash_weights(build(name, seed=seed))

    assert sha(1, before=5) == sha(1, before=6) != sha(2, before=5)
    model, images = build(name).train(), torch.rand(2, 1, 32, 32)
    logits = model(images)
    assert torch.equal(model(images), logits)
    logits.square().sum().backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "pooler" not in n)


@pytest.mark.parametrize("name", ["mobilenet", "efficientnet", "vgg", "resnet"])
def test_weights_are_called_as_torchvision_calls_them(name):
    model = build(name, channels=3, labels=1000, empty=True)
    with torch.device("meta"):
        function = torchvision_networks.NETWORKS[name].function
        published = getattr(torchvision.models, function)().state_dict()
    published = rename_stages(published) if name == "vgg" else published
    ours = model.network().state_dict()
    assert {n: t.shape for n, t in ours.items()} == {n: t.shape for n, t in published.items()}


def test_the_lstm_computes_what_torch_s_does():
    ours, theirs = Lstm(6, 5), torch.nn.LSTM(6, 5, batch_first=True)
    with torch.no_grad():
        ours.from_input.weight.copy_(theirs.weight_ih_l0)
        ours.from_input.bias.copy_(theirs.bias_ih_l0 + theirs.bias_hh_l0)
        ours.from_hidden.weight.copy_(theirs.weight_hh_l0)
    sequence = torch.rand(3, 4, 6)
    torch.testing.assert_close(ours(sequence), theirs(sequence)[0][:, -1])


def test_cnn_lstm_takes_frames_whose_order_matters_or_a_window_that_moves_over_a_still_image():
    frames = pan(torch.arange(16.0).expand(1, 1, 16, 16))  # a pixel's value is its column
    assert frames.shape == (1, FRAMES, 1, 16, 8)
    assert frames[0, :, 0, 0, 0].tolist() == [0, 2, 4, 6, 8] and frames[0, -1, 0, 0, -1] == 15
    model, frames = build("cnn_lstm"), torch.rand(2, 3, 1, 32, 32)
    assert model(frames).shape == (2, 7) and not torch.allclose(model(frames), model(frames.flip(1)))


def test_an_ensemble_is_the_mean_of_different_members():
    model, images = build("ensemble"), torch.rand(2, 1, 32, 32)
    logits = [member(images) for member in model.members]
    torch.testing.assert_close(model(images), sum(logits) / 3)
    assert len({hash_weights(member) for member in model.members}) == 3
    assert model.flops_per_sample == 3 * build("cnn").flops_per_sample
