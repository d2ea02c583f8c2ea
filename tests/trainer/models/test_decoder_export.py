from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.trainer.models.small_decoder import FAMILIES, build, document, moved, row_of, settings
from trainer.failures import DataMissing
from trainer.models.decoder_build import build_decoder
from trainer.models.decoder_weights import hash_of_state
from trainer.models.export import export_model


def write(folder, decoder, config, **facts):
    export_model(decoder, decoder.state_dict(), config, facts, folder)
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def built(model, **values):
    return settings(model, packing=False, **values), moved(build(model, packing=False, **values)).eval()


def logits_of(decoder, count=20):
    return decoder(row_of([document(count, 1)], count)[0])


def small_tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"a": 0, "b": 1, "<end>": 2, "<pad>": 3}
    whole = Tokenizer(models.WordLevel(words, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=whole, eos_token="<end>", pad_token="<pad>")


@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize("attn", ["sdpa", "eager"])
def test_transformers_alone_gives_the_same_logits(tmp_path, model, attn):
    from transformers import AutoModelForCausalLM

    config, decoder = built(model)
    files = write(tmp_path, decoder, config)
    assert files == {"config.json", "generation_config.json", "model.safetensors"}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=attn).eval()
    assert theirs.config.use_cache and theirs.config._attn_implementation == attn
    wanted = logits_of(decoder)
    found = theirs(input_ids=row_of([document(20, 1)], 20)[0][:, 0]).logits
    assert (found - wanted).abs().max() <= 2e-6 * wanted.abs().max()
    assert "stratlab" not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize("model", FAMILIES)
def test_it_comes_back(tmp_path, model):
    config, decoder = built(model)
    write(tmp_path, decoder, config)
    again = build_decoder(settings(model_path=str(tmp_path), init="pretrained", seed=9, packing=False))
    assert again.shape == decoder.shape
    assert hash_of_state(again) == hash_of_state(decoder)


@pytest.mark.parametrize("model", FAMILIES)
def test_adapters_are_merged_and_lie_beside(tmp_path, model):
    import peft
    from transformers import AutoModelForCausalLM

    base_config, base = built(model)
    write(tmp_path / "base", base, base_config)
    values = {"lora_rank": 3, "lora_alpha": 7.0, "lora_targets": "q_proj,v_proj"}
    config = settings(model_path=str(tmp_path / "base"), init="pretrained", packing=False, **values)
    decoder = moved(build_decoder(config)).eval()
    files = write(tmp_path / "out", decoder, config)
    assert {"adapter/adapter_config.json", "adapter/adapter_model.safetensors"} <= files
    wanted, ids = logits_of(decoder), row_of([document(20, 1)], 20)[0][:, 0]
    assert (logits_of(base) - wanted).abs().max() > 0.1
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert (merged(input_ids=ids).logits - wanted).abs().max() < 1e-5 * wanted.abs().max()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    outside = peft.PeftModel.from_pretrained(theirs, tmp_path / "out" / "adapter").eval()
    assert (outside(input_ids=ids).logits - wanted).abs().max() < 1e-5 * wanted.abs().max()
    saved = json.loads((tmp_path / "out" / "adapter" / "adapter_config.json").read_text())
    assert saved["task_type"] == "CAUSAL_LM" and saved["r"] == 3 and len(saved["target_modules"]) == 8


def test_the_tokenizer_lies_beside_and_its_tokens_are_in_the_configuration(tmp_path):
    from transformers import AutoConfig, AutoTokenizer

    config, decoder = built("qwen_tiny")
    files = write(tmp_path, decoder, config, tokenizer=small_tokenizer())
    assert {"tokenizer.json", "tokenizer_config.json"} <= files
    assert AutoTokenizer.from_pretrained(tmp_path)("b a")["input_ids"] == [1, 0]
    described = AutoConfig.from_pretrained(tmp_path)
    assert (described.eos_token_id, described.pad_token_id) == (2, 3)
    again = settings(model_path=str(tmp_path), init="pretrained")  # without one, the source's tokens stay
    write(tmp_path / "again", build_decoder(again), again)
    assert AutoConfig.from_pretrained(tmp_path / "again").eos_token_id == 2


def test_a_module_without_weights_tells_the_names(tmp_path):
    """The state is the gathered one, with or without the tied head; the module may be wrapped, or hold nothing."""
    config, decoder = built("qwen_tiny")
    state = decoder.state_dict()
    del state["hf.lm_head.weight"]
    empty = torch.nn.ModuleDict({"wrapped": build(empty=True)})
    export_model(empty, state, config, {}, tmp_path)
    again = build_decoder(settings(model_path=str(tmp_path), init="pretrained", packing=False))
    assert hash_of_state(again) == hash_of_state(decoder)


@pytest.mark.parametrize("model", FAMILIES)
def test_tensors_that_nobody_would_read_are_another_model(tmp_path, model):
    """As biases that a configuration does not speak of; what is computed anyway is no tensor of a model."""
    config, decoder = built(model)
    write(tmp_path, decoder, config)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    idle = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8), "lm_head.weight": torch.zeros(1)}
    save_file(idle | tensors, file)
    wanted = settings(model_path=str(tmp_path), init="pretrained", packing=False)
    assert hash_of_state(build_decoder(wanted)) == hash_of_state(decoder)
    more = {f"model.layers.{i}.self_attn.o_proj.bias": torch.zeros(64) for i in range(4)}
    save_file(more | tensors, file)
    with pytest.raises(DataMissing) as caught:
        build_decoder(wanted)
    first = ", ".join(sorted(more)[:3])
    assert str(caught.value).endswith(f"has tensors that this model does not: {first} and 1 more")
