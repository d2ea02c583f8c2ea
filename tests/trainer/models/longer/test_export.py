from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageClassification

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.model_specs import PLAIN
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes
from trainer.distributed.provenance import hash_weights
from trainer.models import build_model
from trainer.models.export import export_model
from trainer.models.weights import read_weights

CLASSES = ["cat", "dog", "eel"]
WHOLE = {"config.json", "model.safetensors", "preprocessor_config.json"}


def build(*, size=32, channels=3, labels=3, empty=False, **values):
    config = Config(run="r", **values)
    return config, build_model(config, image_size=size, channels=channels, num_labels=labels, empty=empty)


def write(folder, config, model, *, size=32, state=None):
    facts = {"image_size": size, "channels": 3, "num_labels": 3, "class_names": CLASSES}
    export_model(model, state or model.state_dict(), config, facts | {"preprocessing": PLAIN}, folder)
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


@pytest.mark.parametrize("name", ["vit_tiny", "ensemble"])
def test_a_model_comes_back_with_equal_logits(tmp_path, name):
    config, model = build(model=name, activation_checkpointing="blocks")
    assert write(tmp_path, config, moved(model)) == WHOLE
    _, again = build(model_path=str(tmp_path), init="pretrained", seed=9)
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(again.eval()(images), model(images))
    if name == "vit_tiny":  # transformers alone reads it with the names of the classes
        theirs = AutoModelForImageClassification.from_pretrained(tmp_path).eval()
        assert torch.equal(theirs(pixel_values=images).logits, model(images))
        assert theirs.config.id2label == dict(enumerate(CLASSES)) and theirs.config.label2id["eel"] == 2


@pytest.mark.parametrize(("name", "targets"), [("vit_tiny", ""), ("cnn_lstm", "0")])
def test_adapters_are_merged_and_lie_beside(tmp_path, name, targets):
    config, model = build(model=name, lora_rank=3, lora_alpha=7.0, lora_targets=targets)
    files = write(tmp_path, config, moved(model))
    assert files == WHOLE | {"adapter/adapter_config.json", "adapter/adapter_model.safetensors"}
    _, again = build(model_path=str(tmp_path), init="pretrained", seed=9)
    images = torch.rand(2, 3, 32, 32)
    logits, merged = model(images), again.eval()(images)
    assert (merged - logits).abs().max() <= 1e-5 * logits.abs().max()
    assert not any(".lora_" in name for name in again.state_dict())


def test_a_module_without_weights_tells_the_names(tmp_path):
    """The state is the gathered one; the module at hand may hold shards or nothing."""
    config, model = build(model="vit_tiny")
    _, empty = build(model="vit_tiny", empty=True)
    write(tmp_path, config, torch.nn.ModuleDict({"wrapped": empty}), state=model.state_dict())
    _, again = build(model_path=str(tmp_path), init="pretrained", seed=9)
    assert hash_weights(again) == hash_weights(model)


def test_a_head_of_another_size_and_other_channels(tmp_path):
    config, model = build(model="cnn")
    write(tmp_path, config, model)
    _, again = build(model_path=str(tmp_path), init="pretrained", seed=9, labels=8)
    assert torch.equal(again.stages[2][0].weight, model.stages[2][0].weight)
    assert again.head.weight.shape == (8, 128)
    with pytest.raises(ConfigError) as caught:
        build(model_path=str(tmp_path), init="pretrained", channels=1)
    assert find_codes(caught.value) == ["SL-channels-differ"]
    _, fresh = build(model_path=str(tmp_path), init="scratch", channels=1)
    assert fresh(torch.rand(2, 1, 32, 32)).shape == (2, 3)


def test_weights_that_do_not_fit_or_cannot_be_read_are_missing(tmp_path, monkeypatch):
    config, model = build(model="cnn")
    write(tmp_path, config, model)
    described = json.loads((tmp_path / "config.json").read_text())
    shape = {"stratlab_model": "cnn", "image_size": 32, "channels": 3, "num_labels": 3}
    assert described == shape | {"class_names": CLASSES}

    def refused() -> str:
        with pytest.raises(DataMissing) as caught:
            read_weights(Config(run="r", model_path=str(tmp_path)))
            build(model_path=str(tmp_path), init="pretrained")
        assert f"TRAINER_MODEL_PATH='{tmp_path}'" in str(caught.value)
        return str(caught.value)

    (tmp_path / "config.json").write_text(json.dumps(described | {"stratlab_model": "cnn_lstm"}))
    said = refused()
    assert find_codes(said) == ["SL-weights-differ"] and " 3 " in said and "lstm.from_hidden.weight" in said
    (tmp_path / "model.safetensors").write_bytes(b"no")
    said = refused()
    assert find_codes(said) == ["SL-weights-unreadable"] and "model.safetensors" in said

    def refuse(folder, pattern):
        raise PermissionError("no entry")

    monkeypatch.setattr(Path, "glob", refuse)
    assert find_codes(refused()) == ["SL-weights-folder-unreadable"]
