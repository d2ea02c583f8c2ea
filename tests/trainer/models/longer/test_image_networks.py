"""Every image network by its name: size, operations, blocks, its published weights, and the head by class names."""

import json
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
import torchvision
from torch.utils.flop_counter import FlopCounterMode

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.model_specs import PLAIN, VIT, default_image_size
from stratlab_spec.registry import FINETUNED_NETWORKS, NETWORKS
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.fields import MODELS, TEXT_MODELS
from tests.codes import find_codes
from tests.trainer.fake_hub import run_fake_hub
from tests.trainer.models.conftest import write_model
from trainer.models import build_model, torchvision_networks
from trainer.models.cnn_lstm import FRAMES, Lstm, pan
from trainer.models.export import export_model
from trainer.models.torchvision_networks import rename_stages
from trainer.run import hash_weights

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
    assert {*MODELS} == {*VIT, *NETWORKS, *FINETUNED_NETWORKS, *TEXT_MODELS}
    kinds = [type(build(name, empty=True)) for name, row in NETWORKS.items() if row.builder]
    assert len(kinds) == len({*kinds}) > 2


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


MOBILENET = "mobilenet_v3_large-5c1a4163.pth"


def build_published(model, *, size, channels=3, labels=10, empty=False, **values):
    config = Config(run="r", model=model, **{"init": "pretrained", **values})
    return build_model(config, image_size=size, channels=channels, num_labels=labels, empty=empty)


def refused(model, **values) -> str:
    with pytest.raises(DataMissing) as caught:
        build_published(model, **values)
    assert f"TRAINER_MODEL={model!r}" in str(caught.value)
    return str(caught.value)


def test_weights_from_the_hub(tmp_path, monkeypatch):
    from huggingface_hub import constants, file_download

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    theirs = write_model(tmp_path / "source", "vit", num_labels=1000)
    files = {path.name: path.read_bytes() for path in (tmp_path / "source").iterdir()}
    with run_fake_hub({f"models/{n}": files for n in ("google/vit-base-patch16-224", "owner/name")}) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub)
        url = hub + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
        monkeypatch.setattr(file_download, "HUGGINGFACE_CO_URL_TEMPLATE", url, raising=False)
        for model in ("vit_base", "owner/name"):
            ours = build_published(model, size=16)
            assert torch.equal(ours.hf.vit.layers[1].mlp.fc1.weight, theirs.vit.layers[1].mlp.fc1.weight)
            assert ours(torch.rand(1, 3, 16, 16)).shape == (1, 10)
        for model, init in (("vit_large", "pretrained"), ("other/model", "scratch")):
            assert find_codes(said := refused(model, size=16, init=init)) == ["SL-model-unloadable"]
            assert ("google/vit-large-patch16-224" in said) == (model == "vit_large")


def test_torchvision_s_weights_that_are_not_to_be_had(tmp_path, monkeypatch):
    def no_network(*arguments, **options):
        raise URLError("no network")  # stands in for the download

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    assert find_codes(said := refused("mobilenet", size=32)) == ["SL-published-unloadable"]
    assert MOBILENET in said and "https://" in said


KNOWN, WANTED, OTHERS = ["ape", "bee", "cow"], ["cow", "ape", "bee"], ["ape", "bee", "dog"]
EDGE = 32


def build_with_head(config: Config, names: list[str], **more):
    shape = {"image_size": EDGE, "channels": 3, "num_labels": len(names)}
    return build_model(config, **shape, class_names=names, **more).eval()


def logits(model) -> torch.Tensor:
    torch.manual_seed(0)
    with torch.no_grad():
        return model.predict(torch.rand(2, 3, EDGE, EDGE))


def export(folder: Path, name: str) -> tuple[Config, torch.Tensor]:
    """Settings that load weights which know KNOWN, and their logits."""
    config = Config(run="r", model=name, seed=5)
    model = build_with_head(config, KNOWN)
    facts = {"image_size": EDGE, "channels": 3, "num_labels": 3, "class_names": KNOWN}
    export_model(model, model.state_dict(), config, facts | {"preprocessing": PLAIN}, folder)
    return Config(run="r", model_path=str(folder), init="pretrained"), logits(model)


@pytest.mark.parametrize("name", ["vit_tiny", "ensemble"])
def test_another_order_gives_the_same_logits_by_name(tmp_path, name):
    config, expected = export(tmp_path, name)
    for whole in (False, True):
        found = logits(build_with_head(config, WANTED, whole=whole))
        assert torch.allclose(found, expected[:, [2, 0, 1]], atol=1e-6)
    assert torch.allclose(logits(build_with_head(config, KNOWN)), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["deit", "resnet"])
def test_weights_from_elsewhere_are_mapped_too_and_keep_their_order_without_names(tmp_path, kind):
    write_model(tmp_path, kind, num_labels=3, id2label=dict(enumerate(KNOWN)), image_size=EDGE)
    config = Config(run="r", model_path=str(tmp_path), init="pretrained")
    first, second = (logits(build_with_head(config, names)) for names in (KNOWN, WANTED))
    assert torch.allclose(second, first[:, [2, 0, 1]], atol=1e-6) and not torch.allclose(second, first)
    content = json.loads((tmp_path / "config.json").read_text())
    del content["id2label"], content["label2id"]
    (tmp_path / "config.json").write_text(json.dumps(content | {"num_labels": 3}))
    assert torch.equal(logits(build_with_head(config, WANTED)), first)


@pytest.mark.parametrize("name", ["mobilenet", "efficientnet", "vgg", "resnet"])
def test_weights_are_called_as_torchvision_calls_them(name):
    model = build(name, channels=3, labels=1000, empty=True)
    with torch.device("meta"):
        published = getattr(torchvision.models, torchvision_networks.NETWORKS[name].function)().state_dict()
    published = rename_stages(published) if name == "vgg" else published
    ours = model.network().state_dict()
    assert {n: t.shape for n, t in ours.items()} == {n: t.shape for n, t in published.items()}
