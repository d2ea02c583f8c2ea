"""Weights by name: from a fake hub on loopback, and from torchvision's cache on the disk."""

from __future__ import annotations

from urllib.error import URLError

import pytest
import torch

from tests.trainer.fake_hub import run_fake_hub
from tests.trainer.models.conftest import write_model
from trainer.failures import DataMissing
from trainer.models import build_model
from trainer.models.export import export_model
from trainer.settings.config import Config, ConfigError
from trainer.shapes.model_shapes import default_image_size, registered_name
from trainer.shapes.preprocessing import PLAIN
from trainer.tasks.normalization import find_preprocessing

MOBILENET = "mobilenet_v3_large-5c1a4163.pth"


def build(model, *, size, channels=3, labels=10, empty=False, **values):
    config = Config(run="r", model=model, **{"init": "pretrained", **values})
    return build_model(config, image_size=size, channels=channels, num_labels=labels, empty=empty)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with small models under the names of large ones, and an empty cache."""
    from huggingface_hub import constants, file_download

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    theirs = write_model(tmp_path / "source", "vit", num_labels=1000)
    files = {path.name: path.read_bytes() for path in (tmp_path / "source").iterdir()}
    names = ("google/vit-base-patch16-224", "google/vit-huge-patch14-224-in21k", "owner/name")
    with run_fake_hub({f"models/{name}": files for name in names}) as endpoint:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        url = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
        monkeypatch.setattr(file_download, "HUGGINGFACE_CO_URL_TEMPLATE", url, raising=False)
        yield theirs


@pytest.mark.parametrize("model", ["vit_base", "vit_huge", "owner/name"])
def test_weights_from_the_hub(hub, model):
    ours = build(model, size=16)
    assert torch.equal(ours.hf.vit.layers[1].mlp.fc1.weight, hub.vit.layers[1].mlp.fc1.weight)
    assert ours(torch.rand(1, 3, 16, 16)).shape == (1, 10)


def test_a_model_that_the_hub_does_not_have(hub):
    with pytest.raises(DataMissing) as caught:
        build("vit_large", size=16)
    assert str(caught.value).startswith(
        "TRAINER_MODEL='vit_large': expected google/vit-large-patch16-224 from the hub, its cache in HF_HOME, or "
        "TRAINER_MODEL_PATH: an image classification model in Hugging Face format (config.json, *.safetensors); it "
        "cannot be loaded: "
    )
    with pytest.raises(DataMissing, match="^TRAINER_MODEL='other/model': expected other/model from the hub"):
        build("other/model", size=16, init="scratch")


def write_mobilenet(folder):
    import torchvision

    torch.manual_seed(4)
    theirs = torchvision.models.mobilenet_v3_large()
    (folder / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(theirs.state_dict(), folder / "hub" / "checkpoints" / MOBILENET)
    return theirs.eval()


def test_torchvision_s_weights_with_a_head_for_the_data(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    theirs, images = write_mobilenet(tmp_path), torch.rand(2, 3, 32, 32)
    ours = build("mobilenet", size=32).eval()
    assert torch.equal(ours.inner.features(images), theirs.features(images))
    assert ours(images).shape == (2, 10)
    grey, repeated = torch.rand(2, 1, 32, 32), build("mobilenet", size=32, channels=1, labels=1000).eval()
    assert torch.equal(repeated(grey), theirs(grey.repeat(1, 3, 1, 1)))
    empty = build("mobilenet", size=32, channels=1, empty=True)
    assert empty.inner.features[0][0].weight.shape[1] == 3
    with pytest.raises(ConfigError, match="the weights of mobilenet take 3 channels, the images have 4"):
        build("mobilenet", size=32, channels=4)


def test_finetuned_is_the_network_with_its_published_weights_and_a_fresh_head(tmp_path, monkeypatch):
    """From a file as torchvision publishes it: 1000 classes there, those of the data here."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    theirs, images = write_mobilenet(tmp_path), torch.rand(2, 3, 32, 32)
    config = Config.from_env({"TRAINER_RUN": "r", "TRAINER_MODEL": "mobilenet_finetuned"})
    assert config.init == "pretrained"
    ours = build_model(config, image_size=32, channels=3, num_labels=10)
    assert torch.equal(ours.eval().inner.features(images), theirs.features(images))
    assert ours(images).shape == (2, 10) and all(p.requires_grad for p in ours.parameters())
    assert (registered_name(config), default_image_size(config)) == ("mobilenet", 224)
    assert find_preprocessing(config).mean == (0.485, 0.456, 0.406)
    named = build("mobilenet", size=32)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), named.parameters(), strict=True))


def test_a_finetuned_network_goes_on_from_what_a_run_has_exported(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    write_mobilenet(tmp_path)
    config = Config(run="r", model="mobilenet_finetuned")
    trained = build_model(config, image_size=32, channels=3, num_labels=4)
    facts = {
        "image_size": 32,
        "channels": 3,
        "num_labels": 4,
        "class_names": list("abcd"),
        "preprocessing": PLAIN,
    }
    export_model(trained, trained.state_dict(), config, facts, tmp_path / "model")
    again = Config(run="r", model_path=str(tmp_path / "model"), init="pretrained")
    found = build_model(again, image_size=32, channels=3, num_labels=4)
    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), found.parameters(), strict=True))


def test_finetuned_from_scratch_is_refused():
    with pytest.raises(ConfigError) as caught:
        Config.from_env({"TRAINER_RUN": "r", "TRAINER_MODEL": "vgg_finetuned", "TRAINER_INIT": "scratch"})
    assert caught.value.problems == [
        "TRAINER_INIT=scratch, TRAINER_MODEL=vgg_finetuned: is vgg with published weights; with fresh ones take vgg"
    ]


def test_torchvision_s_weights_that_are_not_to_be_had(tmp_path, monkeypatch):
    def no_network(*arguments, **options):
        raise URLError("no network")  # stands in for the download

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    with pytest.raises(DataMissing) as caught:
        build("mobilenet", size=32)
    text = str(caught.value)
    assert text.startswith("TRAINER_INIT='pretrained', TRAINER_MODEL='mobilenet': expected https://") and (
        text.endswith(
            f"{MOBILENET}, or its file below TORCH_HOME; it cannot be loaded: <urlopen error no network>"
        )
    )
