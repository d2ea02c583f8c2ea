import pytest
import torch
from transformers import AutoConfig

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import refuses
from tests.trainer.models.conftest import SMALL, small_settings, write_model
from trainer.models import build_model
from trainer.models.hugging_face import HuggingFaceModel
from trainer.run import hash_weights


def build(folder, *, size=16, channels=3, labels=5, empty=False, **values):
    config = Config(run="r", model_path=str(folder), **{"init": "pretrained", **values})
    return build_model(config, image_size=size, channels=channels, num_labels=labels, empty=empty)


@pytest.mark.parametrize("kind", SMALL)
def test_any_architecture_gives_the_logits_of_transformers_or_a_fresh_head_of_another_size(
    tmp_path, images, kind
):
    theirs = write_model(tmp_path, kind)
    ours, empty = build(tmp_path).eval(), build(tmp_path, empty=True)
    assert torch.equal(ours(images), theirs(pixel_values=images).logits)
    assert len(ours.blocks()) > 1 and ours.flops_per_sample > 0
    shapes = {n: t.shape for n, t in ours.state_dict().items()}
    assert {n: t.shape for n, t in empty.state_dict().items() if t.is_meta} == shapes
    wide, again, other = (build(tmp_path, labels=9, seed=seed) for seed in (0, 0, 1))
    heads = tuple(f"{head}." for head in wide.heads)
    body = {n: t for n, t in wide.hf.state_dict().items() if not n.startswith(heads)}
    assert all(torch.equal(t, theirs.state_dict()[n]) for n, t in body.items())
    assert hash_weights(wide) == hash_weights(again) != hash_weights(other) and wide(images).shape == (2, 9)


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
    with refuses(ConfigError, "SL-channels-differ"):
        build(tmp_path, channels=4)


def test_weights_that_cannot_be_loaded_are_missing(tmp_path):
    weights = {name: tmp_path / name / "model.safetensors" for name in ("other", "broken", "pickle", "text")}
    for path in weights.values():
        write_model(path.parent, "vit")
    small_settings("vit", intermediate_size=40).save_pretrained(tmp_path / "other")
    weights["broken"].write_bytes(b"not tensors at all")
    weights["pickle"].rename(tmp_path / "pickle" / "pytorch_model.bin")
    (tmp_path / "pickle" / "other.safetensors").touch()
    AutoConfig.for_model("bert").save_pretrained(tmp_path / "text")
    for name, init in (("other", None), ("broken", None), ("pickle", None), ("text", "scratch")):
        with refuses(DataMissing, "SL-model-unloadable", name) as caught:
            build(tmp_path / name, init=init or "pretrained")
        if name == "other":
            assert " 6 tensors " in str(caught.value) and "vit.layers.0.mlp.fc1.bias" in str(caught.value)


def test_an_image_size_that_cannot_be_interpolated_is_refused(tmp_path):
    narrow = {"hidden_sizes": [16] * 3, "num_attention_heads": [2] * 3, "depths": [1] * 3, "key_dim": [4] * 3}
    write_model(tmp_path, "levit", image_size=64, **narrow)
    assert build(tmp_path, size=64)(torch.rand(2, 3, 64, 64)).shape == (2, 5)
    with refuses(ConfigError, "SL-image-size-fails", "TRAINER_IMAGE_SIZE=96", " 64 "):
        build(tmp_path, size=96)


def test_blocks_are_a_list_of_several_however_large_a_single_one_is():
    """Checkpointed and sharded one by one: a list of one holds everything."""

    def layers(*sizes: int) -> torch.nn.ModuleList:
        return torch.nn.ModuleList(torch.nn.Linear(size, size) for size in sizes)

    hf = torch.nn.Module()
    hf.whole, hf.layers, hf.fewer = layers(50), layers(2, 3), layers(2, 2)
    assert HuggingFaceModel(hf, repeat=0).blocks() == list(hf.layers)
    del hf.layers, hf.fewer
    hf.empty = torch.nn.Identity()
    assert HuggingFaceModel(hf, repeat=0).blocks() == [hf.whole]
