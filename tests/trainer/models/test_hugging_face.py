from __future__ import annotations

import copy
import shutil

import pytest
import torch

from tests.trainer.models.conftest import SMALL, small_settings, write_model
from trainer.failures import DataMissing
from trainer.models import build_model
from trainer.models.hugging_face import HuggingFaceModel
from trainer.record.provenance import hash_weights
from trainer.settings.config import Config, ConfigError


def settings(folder, **values) -> Config:
    return Config(run="r", model_path=str(folder), **values)


def build(folder, *, size=16, channels=3, labels=5, empty=False, **values):
    config = settings(folder, **{"init": "pretrained", **values})
    return build_model(config, image_size=size, channels=channels, num_labels=labels, empty=empty)


@pytest.mark.parametrize("kind", SMALL)
def test_any_architecture_gives_the_logits_of_transformers(tmp_path, images, kind):
    theirs = write_model(tmp_path, kind)
    ours = build(tmp_path).eval()
    assert torch.equal(ours(images), theirs(pixel_values=images).logits)
    assert len(ours.blocks()) > 1 and ours.flops_per_sample > 0
    empty = build(tmp_path, empty=True)
    shapes = {n: t.shape for n, t in ours.state_dict().items()}
    assert {n: t.shape for n, t in empty.state_dict().items()} == shapes
    assert all(t.is_meta for t in empty.state_dict().values())


@pytest.mark.parametrize("kind", SMALL)
def test_a_head_of_another_size_is_fresh_and_the_body_is_not(tmp_path, kind):
    theirs = write_model(tmp_path, kind)
    ours, again, other = (
        build(tmp_path, labels=9),
        build(tmp_path, labels=9),
        build(tmp_path, labels=9, seed=1),
    )
    heads = tuple(f"{head}." for head in ours.heads)
    body = {n: t for n, t in ours.hf.state_dict().items() if not n.startswith(heads)}
    assert all(torch.equal(t, theirs.state_dict()[n]) for n, t in body.items())
    assert hash_weights(ours) == hash_weights(again) != hash_weights(other)
    assert ours(torch.rand(2, 3, 16, 16)).shape == (2, 9)


def test_fresh_weights_follow_the_seed_and_the_shape_of_the_images(tmp_path):
    write_model(tmp_path, "vit")
    model = build(tmp_path, init="scratch", size=24, channels=1, labels=4)
    assert model(torch.rand(2, 1, 24, 24)).shape == (2, 4)
    assert hash_weights(model) != hash_weights(
        build(tmp_path, init="scratch", size=24, channels=1, labels=4, seed=1)
    )


@pytest.mark.parametrize("kind", ["vit", "deit", "swin", "dinov2"])
def test_dropout_is_off(tmp_path, images, kind):
    rates = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5, "drop_path_rate": 0.5}
    write_model(tmp_path, kind, **{k: v for k, v in rates.items() if hasattr(small_settings(kind), k)})
    model = build(tmp_path).train()
    assert torch.equal(model(images), model(images))


def test_positions_are_interpolated_as_transformers_does(tmp_path):
    theirs, images = write_model(tmp_path, "vit"), torch.rand(2, 3, 24, 24)
    ours = build(tmp_path, size=24).eval()
    wanted = theirs(pixel_values=images, interpolate_pos_encoding=True).logits
    torch.testing.assert_close(ours(images), wanted, rtol=0, atol=1e-6)
    assert ours.flops_per_sample > 2 * build(tmp_path).flops_per_sample
    assert build(tmp_path, size=24, empty=True).hf.vit.embeddings.position_embeddings.shape == (1, 37, 16)


def test_one_grey_channel_is_repeated_for_weights_that_take_three(tmp_path):
    theirs, grey = write_model(tmp_path, "vit"), torch.rand(2, 1, 16, 16)
    ours = build(tmp_path, channels=1).eval()
    assert torch.equal(ours(grey), theirs(pixel_values=grey.repeat(1, 3, 1, 1)).logits)


def test_other_channels_are_refused(tmp_path):
    write_model(tmp_path, "vit")
    with pytest.raises(ConfigError) as caught:
        build(tmp_path, channels=4)
    name = tmp_path.name
    assert caught.value.problems == [
        f"TRAINER_INIT='pretrained': the weights of {name} take 3 channels, the images have 4"
    ]


def test_an_image_size_that_cannot_be_interpolated_is_refused(tmp_path):
    narrow = {"hidden_sizes": [16] * 3, "num_attention_heads": [2] * 3, "depths": [1] * 3, "key_dim": [4] * 3}
    write_model(tmp_path, "levit", image_size=64, **narrow)
    assert build(tmp_path, size=64)(torch.rand(2, 3, 64, 64)).shape == (2, 5)
    with pytest.raises(ConfigError) as caught:
        build(tmp_path, size=96)
    sentence = f"TRAINER_IMAGE_SIZE=96: {tmp_path.name} was made for 64 and fails: "
    assert caught.value.problems[0].startswith(sentence)


def test_weights_of_a_body_without_a_head(tmp_path):
    """google/vit-huge-patch14-224-in21k is such a checkpoint."""
    theirs = write_model(tmp_path / "whole", "vit")
    theirs.vit.save_pretrained(tmp_path / "body")
    ours = build(tmp_path / "body", labels=3)
    assert torch.equal(ours.hf.vit.layers[1].mlp.fc2.weight, theirs.vit.layers[1].mlp.fc2.weight)
    assert ours(torch.rand(2, 3, 16, 16)).shape == (2, 3)


def test_weights_of_something_else_are_missing_and_say_which(tmp_path):
    write_model(tmp_path, "vit")
    small_settings("vit", intermediate_size=40).save_pretrained(tmp_path)
    with pytest.raises(DataMissing) as caught:
        build(tmp_path)
    text = str(caught.value)
    assert text.startswith(
        f"TRAINER_MODEL_PATH='{tmp_path}': expected an image classification model in Hugging Face"
    )
    assert "6 tensors are not there or of another shape, first vit.layers.0.mlp.fc1.bias" in text


def test_a_broken_file_is_missing(tmp_path):
    write_model(tmp_path, "vit")
    (tmp_path / "model.safetensors").write_bytes(b"not tensors at all")
    with pytest.raises(DataMissing, match="it cannot be loaded"):
        build(tmp_path)


def test_a_pickle_is_not_loaded(tmp_path):
    write_model(tmp_path, "vit")
    shutil.move(tmp_path / "model.safetensors", tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="holds no \\*.safetensors"):
        build(tmp_path)
    (tmp_path / "other.safetensors").touch()
    with pytest.raises(DataMissing, match="model.safetensors"):
        build(tmp_path)


def test_a_model_for_something_else_is_missing(tmp_path):
    from transformers import AutoConfig

    AutoConfig.for_model("bert").save_pretrained(tmp_path)
    with pytest.raises(DataMissing, match="image classification model"):
        build(tmp_path, init="scratch")


def test_a_copy_computes_with_its_own_weights(tmp_path, images):
    write_model(tmp_path, "vit")
    model = build(tmp_path, activation_checkpointing="blocks")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    twin(images).sum().backward()
    assert twin.hf.vit.layers[0].mlp.fc1.weight.grad.abs().sum() > 0


def test_blocks_are_a_list_of_several_however_large_a_single_one_is():
    """Checkpointed and sharded one by one: a list of one holds everything."""

    def linear(size: int) -> torch.nn.Linear:
        return torch.nn.Linear(size, size)

    hf = torch.nn.Module()
    hf.whole = torch.nn.ModuleList([linear(50)])
    hf.layers = torch.nn.ModuleList([linear(2), linear(3)])
    hf.fewer = torch.nn.ModuleList([linear(2), linear(2)])
    assert HuggingFaceModel(hf, repeat=0).blocks() == list(hf.layers)
    del hf.layers, hf.fewer
    hf.empty = torch.nn.Identity()
    assert HuggingFaceModel(hf, repeat=0).blocks() == [hf.whole]
