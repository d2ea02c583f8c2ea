from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.trainer.models.conftest import write_model
from trainer.failures import DataMissing
from trainer.models import build_model
from trainer.models.export import export_model
from trainer.models.weights import read_weights
from trainer.record.provenance import hash_weights
from trainer.settings.config import Config, ConfigError
from trainer.shapes.preprocessing import PLAIN

CLASSES = ["cat", "dog", "eel"]
NAMES = ("vit_tiny", "cnn", "cnn_lstm", "ensemble", "mobilenet")
ADAPTED = {
    "cnn": "0",
    "cnn_lstm": "0",
    "ensemble": "0",
    "mobilenet": "0",
    "efficientnet": "fc1",
    "resnet": "conv2",
}


def build(*, size=32, channels=3, labels=3, empty=False, **values):
    config = Config(run="r", **values)
    return config, build_model(config, image_size=size, channels=channels, num_labels=labels, empty=empty)


def write(folder, config, model, *, size=32, state=None):
    facts = {
        "image_size": size,
        "channels": 3,
        "num_labels": 3,
        "class_names": CLASSES,
        "preprocessing": PLAIN,
    }
    export_model(model, state or model.state_dict(), config, facts, folder)
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def moved(model):
    """Every parameter that is trained, and every running statistic, is away from where it began."""
    torch.manual_seed(11)
    model.train()(torch.rand(4, 3, 32, 32))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("name", NAMES)
def test_a_model_comes_back_with_equal_logits(tmp_path, name):
    config, model = build(model=name, activation_checkpointing="blocks")
    files = write(tmp_path, config, moved(model))
    assert files == {"config.json", "model.safetensors", "preprocessor_config.json"}
    _, again = build(model_path=str(tmp_path), init="pretrained", seed=9)
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(again.eval()(images), model(images))


@pytest.mark.parametrize("name", NAMES)
def test_adapters_are_merged_and_lie_beside(tmp_path, name):
    config, model = build(model=name, lora_rank=3, lora_alpha=7.0, lora_targets=ADAPTED.get(name, ""))
    files = write(tmp_path, config, moved(model))
    assert files == {
        *("config.json", "model.safetensors", "preprocessor_config.json"),
        *("adapter/adapter_config.json", "adapter/adapter_model.safetensors"),
    }
    _, again = build(model_path=str(tmp_path), init="pretrained", seed=9)
    images = torch.rand(2, 3, 32, 32)
    logits, merged = model(images), again.eval()(images)
    assert (merged - logits).abs().max() <= 1e-5 * logits.abs().max()
    assert not any(".lora_" in name for name in again.state_dict())


def test_transformers_alone_reads_it_with_the_names_of_the_classes(tmp_path):
    from transformers import AutoModelForImageClassification

    config, model = build(model="vit_tiny")
    write(tmp_path, config, moved(model))
    theirs, images = (
        AutoModelForImageClassification.from_pretrained(tmp_path).eval(),
        torch.rand(2, 3, 32, 32),
    )
    assert torch.equal(theirs(pixel_values=images).logits, model(images))
    assert theirs.config.id2label == dict(enumerate(CLASSES)) and theirs.config.label2id["eel"] == 2


@pytest.mark.parametrize("kind", ["swin", "convnext", "dinov2"])
def test_a_model_from_the_hub_goes_back_as_one(tmp_path, images, kind):
    from transformers import AutoModelForImageClassification

    write_model(tmp_path / "base", kind)
    config, model = build(model_path=str(tmp_path / "base"), init="pretrained", size=16)
    model.eval()
    write(tmp_path / "out", config, model, size=16)
    theirs = AutoModelForImageClassification.from_pretrained(tmp_path / "out").eval()
    assert torch.equal(theirs(pixel_values=images).logits, model(images))


def test_a_module_without_weights_tells_the_names(tmp_path):
    """The state is the gathered one; the module at hand may hold shards or nothing."""
    config, model = build(model="vit_tiny")
    _, empty = build(model="vit_tiny", empty=True)
    write(tmp_path, config, torch.nn.ModuleDict({"wrapped": empty}), state=model.state_dict())
    _, again = build(model_path=str(tmp_path), init="pretrained", seed=9)
    assert hash_weights(again) == hash_weights(model)


def test_a_head_of_another_size_is_fresh(tmp_path):
    config, model = build(model="cnn")
    write(tmp_path, config, model)
    _, again = build(model_path=str(tmp_path), init="pretrained", seed=9, labels=8)
    assert torch.equal(again.stages[2][0].weight, model.stages[2][0].weight)
    assert again.head.weight.shape == (8, 128)


def test_channels_of_the_folder(tmp_path):
    for name in ("cnn", "mobilenet"):
        config, model = build(model=name)
        write(tmp_path / name, config, model.eval())
    grey = torch.rand(2, 1, 32, 32)
    _, again = build(model_path=str(tmp_path / "mobilenet"), init="pretrained", channels=1)
    assert torch.equal(again.eval()(grey), model(grey.repeat(1, 3, 1, 1)))
    with pytest.raises(ConfigError, match="the weights of cnn take 3 channels, the images have 1"):
        build(model_path=str(tmp_path / "cnn"), init="pretrained", channels=1)
    _, fresh = build(model_path=str(tmp_path / "cnn"), init="scratch", channels=1)
    assert fresh(grey).shape == (2, 3)


def test_a_folder_with_tensors_of_another_architecture(tmp_path):
    config, model = build(model="cnn")
    write(tmp_path, config, model)
    described = json.loads((tmp_path / "config.json").read_text())
    assert described == {
        "stratlab_model": "cnn",
        "image_size": 32,
        "channels": 3,
        "num_labels": 3,
        "class_names": CLASSES,
    }
    (tmp_path / "config.json").write_text(json.dumps(described | {"stratlab_model": "cnn_lstm"}))
    with pytest.raises(DataMissing) as caught:
        build(model_path=str(tmp_path), init="pretrained")
    assert str(caught.value) == (
        f"TRAINER_MODEL_PATH='{tmp_path}': expected the tensors of {tmp_path.name}; 3 are not there or of another "
        "shape, first lstm.from_hidden.weight"
    )
    (tmp_path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(DataMissing, match="model.safetensors cannot be read"):
        build(model_path=str(tmp_path), init="pretrained")


def test_a_folder_that_cannot_be_read_is_missing_data(tmp_path, monkeypatch):
    def refuse(folder, pattern):
        raise PermissionError("no entry")

    monkeypatch.setattr(Path, "glob", refuse)
    with pytest.raises(DataMissing, match="cannot be read: no entry"):
        read_weights(Config(run="try", model_path=str(tmp_path)))
