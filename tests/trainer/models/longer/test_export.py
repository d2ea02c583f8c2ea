"""Exported models, of images and text, give the same logits outside, and come back."""

import json
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.model_specs import PLAIN
from stratlab_spec.settings.config import Config
from tests.codes import find_codes, refuses
from tests.trainer.models.small_decoder import FAMILIES, build, document, moved, row_of, settings
from trainer.models import build_model
from trainer.models.decoder_build import build_decoder
from trainer.models.export import export_model
from trainer.models.weights import read_weights
from trainer.tasks.text_task import hash_of_state

CLASSES = ["cat", "dog", "eel"]
WHOLE = {"config.json", "model.safetensors", "preprocessor_config.json"}


def build_classifier(*, size=32, channels=3, labels=3, empty=False, **values):
    config = Config(run="r", **values)
    return config, build_model(config, image_size=size, channels=channels, num_labels=labels, empty=empty)


def write(folder, config, model, *, size=32, state=None):
    facts = {"image_size": size, "channels": 3, "num_labels": 3, "class_names": CLASSES}
    export_model(model, state or model.state_dict(), config, facts | {"preprocessing": PLAIN}, folder)
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def moved_classifier(model):
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
    config, model = build_classifier(model=name, activation_checkpointing="blocks")
    assert write(tmp_path, config, moved_classifier(model)) == WHOLE
    _, again = build_classifier(model_path=str(tmp_path), init="pretrained", seed=9)
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(again.eval()(images), model(images))
    if name == "vit_tiny":  # transformers alone reads it with the names of the classes
        theirs = AutoModelForImageClassification.from_pretrained(tmp_path).eval()
        assert torch.equal(theirs(pixel_values=images).logits, model(images))
        assert theirs.config.id2label == dict(enumerate(CLASSES)) and theirs.config.label2id["eel"] == 2


@pytest.mark.parametrize(("name", "targets"), [("vit_tiny", ""), ("cnn_lstm", "0")])
def test_adapters_are_merged_and_lie_beside(tmp_path, name, targets):
    config, model = build_classifier(model=name, lora_rank=3, lora_alpha=7.0, lora_targets=targets)
    files = write(tmp_path, config, moved_classifier(model))
    assert files == WHOLE | {"adapter/adapter_config.json", "adapter/adapter_model.safetensors"}
    _, again = build_classifier(model_path=str(tmp_path), init="pretrained", seed=9)
    images = torch.rand(2, 3, 32, 32)
    logits, merged = model(images), again.eval()(images)
    assert (merged - logits).abs().max() <= 1e-5 * logits.abs().max()
    assert not any(".lora_" in name for name in again.state_dict())


def test_weights_that_do_not_fit_or_cannot_be_read_are_missing(tmp_path, monkeypatch):
    config, model = build_classifier(model="cnn")
    write(tmp_path, config, model)
    described = json.loads((tmp_path / "config.json").read_text())
    shape = {"stratlab_model": "cnn", "image_size": 32, "channels": 3, "num_labels": 3}
    assert described == shape | {"class_names": CLASSES}

    def refused() -> str:
        with pytest.raises(DataMissing) as caught:
            read_weights(Config(run="r", model_path=str(tmp_path)))
            build_classifier(model_path=str(tmp_path), init="pretrained")
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


def write_decoder(folder, decoder, config, **facts):
    export_model(decoder, decoder.state_dict(), config, facts, folder)
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def built(model):
    return settings(model, packing=False), moved(build(model, packing=False)).eval()


def pretrained(folder, **values):
    return settings(model_path=str(folder), init="pretrained", packing=False, **values)


def logits_of(decoder):
    return decoder(row_of([document(20, 1)], 20)[0])


def differ(theirs, wanted) -> float:
    """By how much of the largest one logits of transformers or peft are others."""
    found = theirs.eval()(input_ids=row_of([document(20, 1)], 20)[0][:, 0]).logits
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize(("model", "attn"), zip(FAMILIES, ("sdpa", "eager"), strict=True))
def test_transformers_alone_gives_the_same_logits_and_it_comes_back(tmp_path, model, attn):
    config, decoder = built(model)
    files = write_decoder(tmp_path, decoder, config)
    assert files == {"config.json", "generation_config.json", "model.safetensors"}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=attn)
    assert theirs.config.use_cache and theirs.config._attn_implementation == attn
    assert differ(theirs, logits_of(decoder)) <= 2e-6
    assert "stratlab" not in (tmp_path / "config.json").read_text()
    again = build_decoder(pretrained(tmp_path, seed=9))
    assert again.shape == decoder.shape and hash_of_state(again) == hash_of_state(decoder)


@pytest.mark.parametrize("model", FAMILIES)
def test_adapters_of_a_decoder_are_merged_and_lie_beside(tmp_path, model):
    base_config, base = built(model)
    write_decoder(tmp_path / "base", base, base_config)
    config = pretrained(tmp_path / "base", lora_rank=3, lora_alpha=7.0, lora_targets="q_proj,v_proj")
    decoder = moved(build_decoder(config)).eval()
    files = write_decoder(tmp_path / "out", decoder, config)
    assert {"adapter/adapter_config.json", "adapter/adapter_model.safetensors"} <= files
    wanted = logits_of(decoder)
    assert (logits_of(base) - wanted).abs().max() > 0.1
    assert differ(AutoModelForCausalLM.from_pretrained(tmp_path / "out"), wanted) < 1e-5
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert differ(peft.PeftModel.from_pretrained(theirs, tmp_path / "out" / "adapter"), wanted) < 1e-5
    saved = json.loads((tmp_path / "out" / "adapter" / "adapter_config.json").read_text())
    assert saved["task_type"] == "CAUSAL_LM" and saved["r"] == 3 and len(saved["target_modules"]) == 8


def test_the_tokenizer_lies_beside_and_its_tokens_are_in_the_configuration(tmp_path):
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<end>": 2, "<pad>": 3}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<pad>")
    config, decoder = built("qwen_tiny")
    files = write_decoder(tmp_path, decoder, config, tokenizer=tokenizer)
    assert {"tokenizer.json", "tokenizer_config.json"} <= files
    assert AutoTokenizer.from_pretrained(tmp_path)("b a")["input_ids"] == [1, 0]
    described = AutoConfig.from_pretrained(tmp_path)
    assert (described.eos_token_id, described.pad_token_id) == (2, 3)
    again = pretrained(tmp_path)  # without one, the source's tokens stay
    write_decoder(tmp_path / "again", build_decoder(again), again)
    assert AutoConfig.from_pretrained(tmp_path / "again").eos_token_id == 2


def test_tensors_that_nobody_would_read_are_another_model(tmp_path):
    config, decoder = built("qwen_tiny")
    write_decoder(tmp_path, decoder, config)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    idle = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8), "lm_head.weight": torch.zeros(1)}
    save_file(idle | tensors, file)
    assert hash_of_state(build_decoder(pretrained(tmp_path))) == hash_of_state(decoder)
    more = {f"model.layers.{i}.self_attn.o_proj.bias": torch.zeros(64) for i in range(4)}
    save_file(more | tensors, file)
    with refuses(DataMissing, "SL-tensors-unknown", ", ".join(sorted(more)[:3]), " 1 more"):
        build_decoder(pretrained(tmp_path))
