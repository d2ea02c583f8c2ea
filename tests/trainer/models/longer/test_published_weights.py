"""Weights by name: from a fake hub on loopback, and from torchvision's cache on the disk."""

from __future__ import annotations

from urllib.error import URLError

import pytest
import torch

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import Config
from tests.codes import find_codes
from tests.trainer.fake_hub import run_fake_hub
from tests.trainer.models.conftest import write_model
from trainer.models import build_model

MOBILENET = "mobilenet_v3_large-5c1a4163.pth"


def build(model, *, size, channels=3, labels=10, empty=False, **values):
    config = Config(run="r", model=model, **{"init": "pretrained", **values})
    return build_model(config, image_size=size, channels=channels, num_labels=labels, empty=empty)


def refused(model, **values) -> str:
    with pytest.raises(DataMissing) as caught:
        build(model, **values)
    assert f"TRAINER_MODEL={model!r}" in str(caught.value)
    return str(caught.value)


def test_weights_from_the_hub(tmp_path, monkeypatch):
    """Small models under the names of large ones, and an empty cache."""
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
            ours = build(model, size=16)
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
