"""Weights by name: from a fake hub on loopback, and from torchvision's cache on the disk."""

from __future__ import annotations

from urllib.error import URLError

import pytest
import torch

from tests.trainer.fake_hub import run_fake_hub
from tests.trainer.models.conftest import write_model
from trainer.failures import DataMissing
from trainer.models import build_model
from trainer.settings.config import Config, ConfigError

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
