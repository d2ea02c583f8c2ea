from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from trainer.failures import DataMissing
from trainer.settings.config import Config, ConfigError
from trainer.settings.fields import TEXT_MODELS
from trainer.shapes.decoder_json import read_shape, shape_of_json
from trainer.shapes.decoder_rules import decoder_problems
from trainer.shapes.decoder_shapes import (
    FAMILIES,
    SHAPES,
    TEXT_HUB_IDS,
    count_flops_per_token,
    count_matmul_parameters,
    count_parameters,
    parameter_shapes,
    weight_shapes,
)
from trainer.shapes.model_shapes import model_problems

# config.json of Qwen/Qwen2.5-3B-Instruct and, in transformers' newer form, of Qwen/Qwen3-30B-A3B
QWEN = {
    "model_type": "qwen2",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "vocab_size": 151936,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "max_window_layers": 70,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-06,
    "max_position_embeddings": 32768,
}
QWEN_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_local_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-06,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}


def settings(**values) -> Config:
    named = {} if "model_path" in values else {"model": "qwen_tiny"}
    return Config(**{"run": "r", "task": "text"} | named | values)


def folder_with(tmp_path, content) -> str:
    (tmp_path / "config.json").write_text(json.dumps(content))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen3-30b-a3b", 30_532_122_624),
    ],
)
def test_published_numbers_of_parameters(name, parameters):
    assert count_parameters(SHAPES[name]) == parameters


def test_every_text_model_has_a_shape_and_each_but_the_tiny_ones_an_address():
    assert set(SHAPES) == set(TEXT_MODELS)
    assert {shape.family for shape in SHAPES.values()} == set(FAMILIES)
    tiny = [shape.family for name, shape in SHAPES.items() if name.endswith("_tiny")]
    assert sorted(tiny) == sorted(FAMILIES), "a small one of each, for the tests of every family"
    assert set(SHAPES) - set(TEXT_HUB_IDS) == {name for name in SHAPES if name.endswith("_tiny")}


def test_published_configurations_give_the_presets(tmp_path):
    assert shape_of_json(QWEN, "x") == SHAPES["qwen2.5-3b"]
    assert shape_of_json(QWEN_MOE, "x") == SHAPES["qwen3-30b-a3b"]
    assert read_shape(settings(model_path=folder_with(tmp_path, QWEN))) == SHAPES["qwen2.5-3b"]


@pytest.mark.parametrize(("tokens", "giga"), [(256, 18.63), (2048, 19.42), (4096, 20.33), (8192, 22.14)])
def test_operations_per_token_of_3b(tokens, giga):
    """The table in 6 N + 6 L H Q T for Qwen2.5-3B, worked out by hand."""
    shape = SHAPES["qwen2.5-3b"]
    assert count_matmul_parameters(shape) == pytest.approx(3.0857e9, rel=1e-5)
    assert count_flops_per_token(shape, tokens, causal=True) == pytest.approx(giga * 1e9, rel=3e-4)


def test_the_literature_counts_all_of_the_attention():
    shape = SHAPES["qwen2.5-3b"]
    causal, full = (count_flops_per_token(shape, 2048, causal=c) for c in (True, False))
    assert full == pytest.approx(20.33e9, rel=3e-4)
    assert full - causal == 6 * 36 * 2048 * 2048
    lora = count_flops_per_token(shape, 2048, causal=True, lora=True)
    assert causal - lora == 2 * count_matmul_parameters(shape)


def test_of_experts_the_active_ones_count():
    shape = SHAPES["qwen3-30b-a3b"]
    active, all_of_them = (count_matmul_parameters(shape, active_only=a) for a in (True, False))
    assert all_of_them - active == 48 * (128 - 8) * 3 * 768 * 2048
    with_embedding = active + 151_936 * 2048
    assert with_embedding == pytest.approx(3.3e9, rel=0.02)  # "3.3B activated" on the model card


def test_a_tied_head_has_no_name_of_its_own():
    tied = SHAPES["qwen_tiny"]
    assert "hf.lm_head.weight" not in parameter_shapes(tied)
    untied = replace(tied, tied=False)
    assert parameter_shapes(untied)["hf.lm_head.weight"] == (320, 64)
    assert count_parameters(untied) - count_parameters(tied) == 320 * 64


def test_adapters_lie_beside_the_attention_or_what_is_named():
    shape = SHAPES["qwen_tiny"]
    shapes = weight_shapes(shape, settings(lora_rank=3))
    assert shapes["hf.model.layers.1.self_attn.k_proj.base_layer.weight"] == (32, 64)
    assert shapes["hf.model.layers.1.self_attn.k_proj.base_layer.bias"] == (32,)
    assert shapes["hf.model.layers.1.self_attn.k_proj.lora_A.default.weight"] == (3, 64)
    assert shapes["hf.model.layers.1.self_attn.k_proj.lora_B.default.weight"] == (32, 3)
    assert sum(".lora_A." in name for name in shapes) == 4 * 4
    named = weight_shapes(shape, settings(lora_rank=3, lora_targets="down_proj,layers.2.mlp.up_proj"))
    assert sum(".lora_A." in name for name in named) == 4 + 1


def test_every_part_that_is_not_built_is_named_at_once(tmp_path):
    wrong = {
        "use_sliding_window": True,
        "rope_parameters": {"rope_type": "yarn"},
        "hidden_act": "gelu",
        "decoder_sparse_step": 2,
        "attention_bias": True,
        "vocab_size": None,
        "num_local_experts": None,
        "output_router_logits": True,
    }
    with pytest.raises(ConfigError) as caught:
        read_shape(settings(model_path=folder_with(tmp_path, QWEN_MOE | wrong)))
    problems = caught.value.problems
    assert len(problems) == 8 and all(p.startswith(f"TRAINER_MODEL_PATH='{tmp_path}': ") for p in problems)
    for words in (
        "vocab_size",
        "num_experts",
        "sliding",
        "yarn",
        "gelu",
        "experts in every layer",
        "bias",
        "router",
    ):
        assert sum(words in problem for problem in problems) == 1, words


def test_dropout_is_left_out_and_biases_that_are_not_there_are_refused(tmp_path, monkeypatch):
    """No family of today switches a dropout off by name; a config.json may say it all the same."""
    off = {**FAMILIES["qwen2"].off, "residual_dropout": 0.0}
    monkeypatch.setitem(FAMILIES, "qwen2", replace(FAMILIES["qwen2"], off=off))
    dense = QWEN_MOE | {"model_type": "qwen2", "attention_dropout": 0.1, "residual_dropout": 0.1}
    dense.pop("attention_bias", None)
    assert read_shape(settings(model_path=folder_with(tmp_path, dense))).family == "qwen2"
    with pytest.raises(ConfigError, match="attention_bias=false, expected true"):
        read_shape(settings(model_path=folder_with(tmp_path, dense | {"attention_bias": False})))


def test_other_families_are_refused(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_shape(settings(model_path=folder_with(tmp_path, {"model_type": "bert"})))
    assert caught.value.problems == [
        f"TRAINER_MODEL_PATH='{tmp_path}': model_type 'bert', expected one of {', '.join(FAMILIES)}"
    ]


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"use_sliding_window": True, "sliding_window": 8}, "use_sliding_window=true, expected false"),
        ({"sliding_window": 8}, "sliding_window=8, expected null"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types with sliding_attention, expected",
        ),
        ({"sliding_window": None, "layer_types": ["full_attention"]}, ""),
        ({"use_sliding_window": False, "sliding_window": 8, "layer_types": None}, ""),
    ],
)
def test_a_layer_that_looks_at_a_window_is_refused_however_it_is_said(said, problem):
    content = {name: value for name, value in QWEN.items() if "sliding" not in name} | said
    if not problem:
        assert shape_of_json(content, "x") == SHAPES["qwen2.5-3b"]
        return
    with pytest.raises(ConfigError) as caught:
        shape_of_json(content, "x")
    (found,) = caught.value.problems
    assert found.startswith(f"x: {problem}")


def test_no_language_model_no_folder_no_file(tmp_path):
    assert (
        "TRAINER_MODEL='vit_tiny': no language model, expected one of qwen2.5-0.5b"
        in (model_problems(Config(run="r", dataset="arithmetic"))[0])
    )
    assert model_problems(Config(run="r", task="image", model="qwen_tiny")) == [
        "TRAINER_TASK='image', TRAINER_MODEL='qwen_tiny': is a language model"
    ]
    assert model_problems(settings(model_path="/nowhere")) == [
        "TRAINER_MODEL_PATH='/nowhere': no such folder"
    ]
    with pytest.raises(DataMissing, match="its config.json cannot be read"):
        read_shape(settings(model_path=str(tmp_path)))


def test_rules_between_model_and_settings(tmp_path):
    found = decoder_problems(
        settings(seq_len=8192, init="pretrained", lora_rank=2, lora_targets="q_proj,lm_head")
    )
    assert [problem.split(":")[0] for problem in found] == [
        "TRAINER_SEQ_LEN=8192",
        "TRAINER_INIT='pretrained'",
        "TRAINER_LORA_TARGETS",
    ]
    assert "qwen2.5-3b" in found[1]
    folder = folder_with(tmp_path, QWEN)
    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle, never opened")
    assert "holds no *.safetensors" in decoder_problems(settings(model_path=folder, init="pretrained"))[0]
    assert decoder_problems(settings(model_path=folder)) == []
    assert decoder_problems(settings(model="qwen2.5-3b", init="pretrained")) == []


def test_it_needs_no_torch():
    code = (
        "import sys; from trainer.settings.config import Config\n"
        "from trainer.shapes.decoder_rules import decoder_problems\n"
        "assert decoder_problems(Config(run='r', model='qwen2.5-3b')) == []\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_model_of_the_hub(tmp_path):
    from tests.trainer.fake_hub import run_fake_hub

    code = (
        "from trainer.settings.config import Config; from trainer.shapes.decoder_shapes import SHAPES\n"
        "from trainer.shapes.decoder_json import read_shape\n"
        "assert read_shape(Config(run='r', task='text', model='org/net')) == SHAPES['qwen2.5-3b']\n"
        "from trainer.failures import DataMissing\n"
        "try: read_shape(Config(run='r', task='text', model='org/gone'))\n"
        "except DataMissing as failure: assert \"TRAINER_MODEL='org/gone'\" in str(failure)\n"
        "else: raise AssertionError"
    )
    with run_fake_hub({"models/org/net": {"config.json": json.dumps(QWEN).encode()}}) as address:
        env = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "PATH": ""}
        subprocess.run([sys.executable, "-c", code], check=True, env=env)
