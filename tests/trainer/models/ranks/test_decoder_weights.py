from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.ranks import run_ranks
from tests.trainer.models.small_decoder import FAMILIES, build, document, moved, row_of, settings
from trainer.failures import DataMissing
from trainer.models.decoder import build_hugging_face
from trainer.models.decoder_build import build_decoder
from trainer.models.decoder_weights import hash_of_state, hash_weights_by_name
from trainer.models.weight_sources import open_weights
from trainer.shapes.decoder_json import read_shape
from trainer.shapes.decoder_shapes import SHAPES

Q = "hf.model.layers.1.self_attn.q_proj"


def weights_of(config):
    return open_weights(config, read_shape(config))


@pytest.fixture(params=[*FAMILIES, "sharded"])
def published(request, tmp_path):
    """A folder as transformers writes it; `sharded`: experts in many files with an index."""
    model = "qwen_moe_tiny" if request.param == "sharded" else request.param
    write_published(tmp_path, model, "20KB" if request.param == "sharded" else "1GB")
    return tmp_path


def write_published(folder, model, max_shard_size="1GB"):
    torch.manual_seed(5)
    hf = build_hugging_face(SHAPES[model])
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    hf.save_pretrained(folder, max_shard_size=max_shard_size)


def damage(folder, name, tensor=None):
    """Replaces a tensor of a folder with one file, or takes it away."""
    tensors = load_file(folder / "model.safetensors")
    assert name in tensors
    del tensors[name]
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_fresh_weights_are_what_transformers_would_draw():
    weights = weights_of(settings(lora_rank=4))
    assert weights.tensor(f"{Q}.base_layer.weight").std() == pytest.approx(0.02, rel=0.05)
    assert weights.tensor("hf.model.embed_tokens.weight").mean().abs() < 1e-3
    assert weights.tensor(f"{Q}.base_layer.bias").abs().max() == 0
    assert weights.tensor("hf.model.norm.weight").unique().tolist() == [1]
    down, up = (weights.tensor(f"{Q}.lora_{x}.default.weight") for x in "AB")
    assert up.abs().max() == 0 and up.shape == (64, 4)
    assert down.shape == (4, 64) and 0.11 < down.abs().max() <= 1 / 8  # 1 / sqrt(64): peft's kaiming uniform


def test_fresh_weights_depend_on_seed_and_name_alone():
    one, again, other = weights_of(settings()), weights_of(settings()), weights_of(settings(seed=1))
    forwards = {name: one.tensor(name) for name in one.names}
    torch.rand(3)
    torch.manual_seed(8)
    backwards = {name: again.tensor(name) for name in reversed(again.names)}
    assert all(torch.equal(forwards[name], backwards[name]) for name in one.names)
    assert not torch.equal(one.tensor(f"{Q}.weight"), other.tensor(f"{Q}.weight"))
    assert not torch.equal(one.tensor(f"{Q}.weight"), one.tensor(f"{Q}.weight".replace("q_proj", "o_proj")))
    deeper = open_weights(settings(), SHAPES["qwen_moe_tiny"])  # the same name in another model
    assert torch.equal(
        one.tensor("hf.model.embed_tokens.weight"), deeper.tensor("hf.model.embed_tokens.weight")
    )


def test_the_base_under_adapters_is_the_model_without():
    plain, adapted = build(), build(lora_rank=4)
    assert torch.equal(plain.get_parameter(f"{Q}.weight"), adapted.get_parameter(f"{Q}.base_layer.weight"))
    inputs, _ = row_of([document(20, 1)])
    assert (plain(inputs) - adapted(inputs)).abs().max() < 1e-6  # B is zero
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert len(trained) == 4 * 4 * 2 and all(".lora_" in name for name in trained)


def test_a_model_does_not_depend_on_the_global_generator():
    torch.manual_seed(1)
    first = hash_of_state(build(lora_rank=4))
    torch.manual_seed(2)
    assert hash_of_state(build(lora_rank=4)) == first != hash_of_state(build(lora_rank=4, seed=3))


@pytest.mark.parametrize("packing", [False, True])
def test_published_weights_give_the_logits_of_transformers(published, packing):
    """Packed too: transformers finds the documents in the positions, and masks them with code of its own."""
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(published, attn_implementation="sdpa").eval()
    decoder = build_decoder(settings(model_path=str(published), init="pretrained", packing=packing)).eval()
    inputs, _ = row_of([document(14, 1), document(6, 2)] if packing else [document(20, 1)], restart=packing)
    wanted = theirs(input_ids=inputs[:, 0], position_ids=inputs[:, 1], use_cache=False).logits
    assert (decoder(inputs) - wanted).abs().max() <= 2e-6 * wanted.abs().max()
    for name, parameter in theirs.named_parameters():
        assert torch.equal(parameter, decoder.get_parameter(f"hf.{name}")), name


def test_what_is_not_asked_for_is_not_read(tmp_path):
    write_published(tmp_path, "qwen_moe_tiny", "20KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    needed = {file for name, file in index.items() if name.startswith("model.layers.2.mlp.experts.")}
    assert len(needed) > 1
    for file in set(index.values()) - needed:
        (tmp_path / file).unlink()
    weights = weights_of(settings(model_path=str(tmp_path), init="pretrained"))
    assert weights.tensor("hf.model.layers.2.mlp.experts.gate_up_proj").shape == (8, 64, 64)
    with pytest.raises(DataMissing, match="cannot be read"):
        weights.tensor("hf.model.layers.0.self_attn.q_proj.weight")


def test_files_in_bf16_become_fp32(tmp_path):
    write_published(tmp_path, "qwen_tiny")
    tensors = {n: t.bfloat16() for n, t in load_file(tmp_path / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    tensor = weights_of(settings(model_path=str(tmp_path), init="pretrained")).tensor(f"{Q}.weight")
    assert tensor.dtype == torch.float32
    assert torch.equal(tensor, tensors["model.layers.1.self_attn.q_proj.weight"].float())


def test_adapters_beside_published_weights_are_the_fresh_ones(tmp_path):
    write_published(tmp_path, "qwen_tiny")
    loaded = build_decoder(settings(model_path=str(tmp_path), init="pretrained", lora_rank=4))
    fresh = build(lora_rank=4)
    name = f"{Q}.lora_A.default.weight"
    assert torch.equal(loaded.get_parameter(name), fresh.get_parameter(name))
    name = f"{Q}.base_layer.weight"
    stored = load_file(tmp_path / "model.safetensors")["model.layers.1.self_attn.q_proj.weight"]
    assert torch.equal(loaded.get_parameter(name), stored)


@pytest.mark.parametrize(
    ("model", "name", "tensor", "words"),
    [
        (
            "qwen_tiny",
            "model.layers.3.mlp.up_proj.weight",
            None,
            "has no tensor model.layers.3.mlp.up_proj.weight",
        ),
        (
            *("qwen_tiny", "model.norm.weight", torch.ones(65)),
            r"model.norm.weight has the shape \(65,\), expected \(64,\)",
        ),
        (
            *("qwen_moe_tiny", "model.layers.0.mlp.experts.5.up_proj.weight", None),
            "has no tensor model.layers.0.mlp.experts.5.up_proj.weight",
        ),
        (
            *("qwen_moe_tiny", "model.layers.0.mlp.experts.5.up_proj.weight", torch.ones(31, 64)),
            r"experts.5.up_proj.weight has the shape \(31, 64\), expected \(32, 64\)",
        ),
        ("qwen_moe_tiny", "lm_head.weight", None, "has no tensor lm_head.weight"),
    ],
)
def test_the_first_tensor_that_is_missing_or_wrong_is_named(tmp_path, model, name, tensor, words):
    write_published(tmp_path, model)
    damage(tmp_path, name, tensor)
    with pytest.raises(DataMissing, match=words) as caught:
        build_decoder(settings(model_path=str(tmp_path), init="pretrained"))
    assert str(caught.value).startswith(f"TRAINER_MODEL_PATH='{tmp_path}': ")


def test_damaged_files(tmp_path):
    write_published(tmp_path, "qwen_tiny")
    (tmp_path / "model.safetensors").write_bytes(b"no")
    config = settings(model_path=str(tmp_path), init="pretrained")
    with pytest.raises(DataMissing, match=r"model\.safetensors cannot be read"):
        build_decoder(config)
    (tmp_path / "model.safetensors.index.json").write_text("[")
    with pytest.raises(DataMissing, match=r"model\.safetensors\.index\.json cannot be read"):
        build_decoder(config)


@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_hash_is_the_same_from_names_and_from_memory(model, lora_rank):
    config = settings(model, lora_rank=lora_rank)
    decoder, weights = build_decoder(config), weights_of(config)
    alone = hash_weights_by_name(weights, weights.names, 0, 1)
    assert alone == hash_of_state(decoder)
    assert alone == hash_weights_by_name(weights, weights.names[::-1], 0, 1)
    with torch.no_grad():
        decoder.get_parameter("hf.model.layers.2.input_layernorm.weight")[3] += 1e-6
    assert alone != hash_of_state(decoder)


def test_the_hash_does_not_depend_on_the_number_of_ranks():
    config = settings("qwen_moe_tiny")
    alone = hash_of_state(build_decoder(config))

    def compare() -> None:
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        weights = open_weights(config, read_shape(config))
        found = hash_weights_by_name(weights, weights.names, dist.get_rank(), dist.get_world_size())
        assert found == alone, (found, alone)

    run_ranks(compare, 3)


def test_moved_weights_are_not_the_fresh_ones():
    """The helper of these tests does what it says."""
    assert hash_of_state(moved(build())) != hash_of_state(build())
