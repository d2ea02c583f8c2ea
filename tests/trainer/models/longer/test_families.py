"""Folders that transformers wrote, of every family: loaded, trained, exported, and loaded by transformers again."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.parity_llm.models import FORMS, draw_rows, write_models
from tests.trainer.models.small_decoder import settings
from trainer.measuring.operators import ProductTypes
from trainer.models.decoder_build import build_decoder
from trainer.models.export import export_model
from trainer.models.mixed_precision import apply_low_precision
from trainer.tasks.text_task import hash_of_state


def read_logits(folder, ids):
    theirs = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        return theirs.eval()(input_ids=ids, use_cache=False).logits


def assert_equal(ours, theirs):
    apart = float((ours - theirs).abs().max() / theirs.abs().max())
    assert apart <= 1e-5, apart


@pytest.mark.parametrize(("form", "lora_rank"), [*((form, 0) for form in FORMS), ("gpt2", 2), ("phi3", 2)])
def test_a_folder_is_loaded_trained_and_exported_with_equal_logits(tmp_path, form, lora_rank):
    write_models(tmp_path, [form])
    inputs, labels = draw_rows(1, False)
    config = settings(
        model_path=str(tmp_path / form), init="pretrained", packing=False, seq_len=32, lora_rank=lora_rank
    )
    decoder = build_decoder(config)
    with torch.no_grad():
        assert_equal(decoder.eval()(inputs), read_logits(tmp_path / form, inputs[:, 0]))
    for _ in range(2):  # the first step of an adapter moves B only
        decoder.train()(inputs, labels)[0].backward()
        with torch.no_grad():
            for parameter in decoder.parameters():
                if parameter.grad is not None:
                    parameter -= 0.05 * parameter.grad / (parameter.grad.norm() + 1e-9)
                    parameter.grad = None
    export_model(decoder, decoder.state_dict(), config, {}, tmp_path / "out")
    with torch.no_grad():
        trained = decoder.eval()(inputs)
    assert_equal(read_logits(tmp_path / "out", inputs[:, 0]), trained)
    again = build_decoder(config.model_copy(update={"model_path": str(tmp_path / "out"), "lora_rank": 0}))
    if lora_rank:
        with torch.no_grad():
            assert_equal(again.eval()(inputs), trained)
    else:
        assert hash_of_state(again) == hash_of_state(decoder)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_of_a_model_with_a_vision_tower_the_text_part_is_trained(tmp_path, prefix):
    write_models(tmp_path, ["gemma3"])
    folder = tmp_path / "gemma3"
    plain = settings(model_path=str(folder), init="pretrained", packing=False, seq_len=32)
    wanted = hash_of_state(build_decoder(plain))
    tensors = load_file(folder / "model.safetensors")
    named = {name.replace("model.", prefix, 1): tensor for name, tensor in tensors.items()}
    tower = {f"{prefix.replace('language_model', 'vision_tower')}layer.weight": torch.ones(2, 2)}
    save_file(named | tower, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.loads((folder / "config.json").read_text())
    whole = {
        "model_type": "gemma3",
        "vision_config": {"model_type": "siglip_vision_model"},
        "text_config": text,
    }
    (folder / "config.json").write_text(json.dumps(whole))
    assert hash_of_state(build_decoder(plain)) == wanted


def test_experts_with_biases_compute_in_16_bits_and_can_be_recomputed(tmp_path):
    write_models(tmp_path, ["gpt_oss"])
    folder = {"model_path": str(tmp_path / "gpt_oss"), "tokenizer": "bytes", "seq_len": 32}
    decoder = build_decoder(settings(**folder, activation_checkpointing="selective")).train()
    apply_low_precision(decoder, torch.bfloat16)
    with ProductTypes() as products:
        decoder(*draw_rows(1, True))[0].backward()
    assert products.dtypes() == ["bfloat16"]
