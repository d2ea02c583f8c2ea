import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.decoder_config import SHAPES
from tests.codes import find_codes
from tests.trainer.models.small_decoder import FAMILIES, build, document, row_of, settings
from trainer.models.decoder import build_hugging_face
from trainer.models.decoder_build import build_decoder
from trainer.models.weights import open_weights
from trainer.tasks.text_task import hash_of_state, hash_weights_by_name

Q = "hf.model.layers.1.self_attn.q_proj"


def weights_of(config):
    return open_weights(config, build_decoder(config, empty=True))


def pretrained(folder, **values):
    return settings(model_path=str(folder), init="pretrained", **values)


def write_published(folder, model, max_shard_size="1GB"):
    torch.manual_seed(5)
    hf = build_hugging_face(SHAPES[model])
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    hf.save_pretrained(folder, max_shard_size=max_shard_size)


def change(folder, action):
    """Replaces the tensors of a folder with one file."""
    file = folder / "model.safetensors"
    save_file(action(load_file(file)), file, metadata={"format": "pt"})


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
    torch.manual_seed(8)
    backwards = {name: again.tensor(name) for name in reversed(again.names)}
    assert all(torch.equal(forwards[name], backwards[name]) for name in one.names)
    name, embedding = f"{Q}.weight", "hf.model.embed_tokens.weight"
    assert not torch.equal(one.tensor(name), other.tensor(name))
    assert not torch.equal(one.tensor(name), one.tensor(name.replace("q_proj", "o_proj")))
    deeper = weights_of(settings("qwen_moe_tiny"))  # the same name in another model
    assert torch.equal(one.tensor(embedding), deeper.tensor(embedding))


@pytest.mark.parametrize(
    ("model", "shard", "packing"),
    [*((name, "1GB", True) for name in FAMILIES), ("qwen_moe_tiny", "20KB", False)],
)
def test_published_weights_give_the_logits_of_transformers(tmp_path, model, shard, packing):
    write_published(tmp_path, model, shard)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa").eval()
    decoder = build_decoder(pretrained(tmp_path, packing=packing)).eval()
    inputs, _ = row_of([document(14, 1), document(6, 2)] if packing else [document(20, 1)], restart=packing)
    wanted = theirs(input_ids=inputs[:, 0], position_ids=inputs[:, 1], use_cache=False).logits
    assert (decoder(inputs) - wanted).abs().max() <= 2e-6 * wanted.abs().max()
    for name, parameter in theirs.named_parameters():
        assert torch.equal(parameter, decoder.get_parameter(f"hf.{name}")), name


def test_files_in_bf16_become_fp32_and_adapters_beside_them_are_fresh(tmp_path):
    write_published(tmp_path, "qwen_tiny")
    change(tmp_path, lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()})
    stored = load_file(tmp_path / "model.safetensors")["model.layers.1.self_attn.q_proj.weight"]
    loaded, fresh = build_decoder(pretrained(tmp_path, lora_rank=4)), build(lora_rank=4)
    tensor = loaded.get_parameter(f"{Q}.base_layer.weight")
    assert tensor.dtype == torch.float32 and torch.equal(tensor, stored.float())
    name = f"{Q}.lora_A.default.weight"
    assert torch.equal(loaded.get_parameter(name), fresh.get_parameter(name))


@pytest.mark.parametrize(
    ("model", "name", "tensor", "code"),
    [
        ("qwen_tiny", "model.layers.3.mlp.up_proj.weight", None, "SL-tensor-absent"),
        ("qwen_tiny", "model.norm.weight", torch.ones(65), "SL-tensor-shape"),
        ("qwen_moe_tiny", "model.layers.0.mlp.experts.5.down_proj.weight", None, "SL-tensor-piece-absent"),
        (
            "qwen_moe_tiny",
            "model.layers.0.mlp.experts.5.up_proj.weight",
            torch.ones(31, 64),
            "SL-tensor-pieces",
        ),
    ],
)
def test_the_first_tensor_that_is_missing_or_wrong_is_named(tmp_path, model, name, tensor, code):
    write_published(tmp_path, model)
    change(tmp_path, lambda all_: {n: t for n, t in (all_ | {name: tensor}).items() if t is not None})
    with pytest.raises(DataMissing) as caught:
        build_decoder(pretrained(tmp_path))
    assert find_codes(caught.value) == [code] and name.partition(".5.")[0] in str(caught.value)


@pytest.mark.parametrize(("model", "lora_rank"), [("qwen_tiny", 4), ("qwen_moe_tiny", 0)])
def test_the_hash_is_the_same_from_names_and_from_memory_whatever_was_drawn_before(model, lora_rank):
    config = settings(model, lora_rank=lora_rank)
    torch.manual_seed(1)
    decoder, weights = build_decoder(config), weights_of(config)
    torch.manual_seed(2)
    alone = hash_weights_by_name(weights, weights.names, 0, 1)
    assert alone == hash_of_state(decoder) == hash_of_state(build_decoder(config))
    assert alone == hash_weights_by_name(weights, weights.names[::-1], 0, 1)
    with torch.no_grad():
        decoder.get_parameter("hf.model.layers.2.input_layernorm.weight")[3] += 1e-6
    assert alone != hash_of_state(decoder)
