from __future__ import annotations

import json
import subprocess
import sys

import pytest

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.decoder import (
    FAMILIES,
    SHAPES,
    TEXT_HUB_IDS,
    count_flops_per_token,
    count_matmul_parameters,
    count_parameters,
    weight_shapes,
)
from stratlab_spec.models.decoder_config import decoder_problems, read_shape, shape_of_json
from stratlab_spec.models.model_specs import model_problems
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.fields import TEXT_MODELS
from tests.codes import find_codes
from tests.trainer.fake_hub import run_fake_hub

# config.json of Qwen/Qwen2.5-3B-Instruct and, in transformers' newer form, of Qwen/Qwen3-30B-A3B
QWEN = json.loads(
    """{"model_type": "qwen2", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
    "num_attention_heads": 16, "num_key_value_heads": 2, "hidden_act": "silu", "vocab_size": 151936,
    "rope_theta": 1000000.0, "sliding_window": 32768, "use_sliding_window": false, "max_window_layers": 70,
    "tie_word_embeddings": true, "rms_norm_eps": 1e-06, "max_position_embeddings": 32768}"""
)
QWEN_MOE = json.loads(
    """{"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "num_local_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}, "tie_word_embeddings": false,
    "rms_norm_eps": 1e-06, "max_position_embeddings": 40960, "mlp_only_layers": [], "decoder_sparse_step": 1}"""
)


def settings(**values) -> Config:
    named = {} if "model_path" in values else {"model": "qwen_tiny"}
    return Config(**{"run": "r", "task": "text"} | named | values)


def refused(content) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        shape_of_json(content, "x")
    assert all(problem.startswith("x: ") for problem in caught.value.problems)
    return find_codes(caught.value)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("qwen2.5-0.5b", 494_032_768), ("qwen2.5-3b", 3_085_938_688), ("qwen3-30b-a3b", 30_532_122_624)],
)
def test_published_numbers_of_parameters(name, parameters):
    assert count_parameters(SHAPES[name]) == parameters


def test_every_text_model_has_a_shape_and_each_but_the_tiny_ones_an_address():
    assert set(SHAPES) == set(TEXT_MODELS)
    tiny = {name: shape.family for name, shape in SHAPES.items() if name.endswith("_tiny")}
    assert sorted(tiny.values()) == sorted(FAMILIES), "a small one of each, for the tests of every family"
    assert set(SHAPES) - set(TEXT_HUB_IDS) == {*tiny}


def test_published_configurations_give_the_presets(tmp_path):
    assert shape_of_json(QWEN, "x") == SHAPES["qwen2.5-3b"]
    assert shape_of_json(QWEN_MOE, "x") == SHAPES["qwen3-30b-a3b"]
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    assert read_shape(settings(model_path=str(tmp_path))) == SHAPES["qwen2.5-3b"]


def test_operations_per_token_of_3b():
    """The table in 6 N + 6 L H Q T for Qwen2.5-3B, worked out by hand; the literature counts all of the attention."""
    shape = SHAPES["qwen2.5-3b"]
    assert count_matmul_parameters(shape) == pytest.approx(3.0857e9, rel=1e-5)
    for tokens, giga in ((256, 18.63), (2048, 19.42), (8192, 22.14)):
        assert count_flops_per_token(shape, tokens, causal=True) == pytest.approx(giga * 1e9, rel=3e-4)
    causal, full = (count_flops_per_token(shape, 2048, causal=c) for c in (True, False))
    assert full == pytest.approx(20.33e9, rel=3e-4) and full - causal == 6 * 36 * 2048 * 2048
    lora = count_flops_per_token(shape, 2048, causal=True, lora=True)
    assert causal - lora == 2 * count_matmul_parameters(shape)


def test_of_experts_the_active_ones_count():
    shape = SHAPES["qwen3-30b-a3b"]
    active, all_of_them = (count_matmul_parameters(shape, active_only=a) for a in (True, False))
    assert all_of_them - active == 48 * (128 - 8) * 3 * 768 * 2048
    assert active + 151_936 * 2048 == pytest.approx(3.3e9, rel=0.02)  # "3.3B activated" on the model card


def test_adapters_lie_beside_the_attention_or_what_is_named():
    shape, k = SHAPES["qwen_tiny"], "hf.model.layers.1.self_attn.k_proj"
    shapes = weight_shapes(shape, settings(lora_rank=3))
    assert shapes[f"{k}.base_layer.weight"] == (32, 64) and shapes[f"{k}.base_layer.bias"] == (32,)
    assert shapes[f"{k}.lora_A.default.weight"] == (3, 64)
    assert shapes[f"{k}.lora_B.default.weight"] == (32, 3)
    assert sum(".lora_A." in name for name in shapes) == 4 * 4
    named = weight_shapes(shape, settings(lora_rank=3, lora_targets="down_proj,layers.2.mlp.up_proj"))
    assert sum(".lora_A." in name for name in named) == 4 + 1


def test_every_part_that_is_not_built_is_named_at_once():
    wrong = {
        "vocab_size": (None, "SL-decoder-json-incomplete"),
        "num_local_experts": (None, "SL-decoder-json-incomplete"),
        "use_sliding_window": (True, "SL-decoder-window-switch"),
        "rope_parameters": ({"rope_type": "yarn"}, "SL-decoder-rope"),
        "hidden_act": ("gelu", "SL-decoder-activation"),
        "decoder_sparse_step": (2, "SL-decoder-sparse-step"),
        "attention_bias": (True, "SL-decoder-bias"),
        "output_router_logits": (True, "SL-decoder-part"),
    }
    content = QWEN_MOE | {name: value for name, (value, _) in wrong.items()}
    assert refused(content) == [code for _, code in wrong.values()]
    assert refused({"model_type": "bert"}) == ["SL-decoder-family"]
    assert refused(QWEN | {"attention_bias": False}) == ["SL-decoder-bias"]


@pytest.mark.parametrize(
    ("said", "codes"),
    [
        ({"use_sliding_window": True, "sliding_window": 8}, ["SL-decoder-window-switch"]),
        ({"sliding_window": 8}, ["SL-decoder-window"]),
        ({"layer_types": ["full_attention", "sliding_attention"]}, ["SL-decoder-layer-types"]),
        ({"sliding_window": None, "layer_types": ["full_attention"]}, []),
        ({"use_sliding_window": False, "sliding_window": 8, "layer_types": None}, []),
    ],
)
def test_a_layer_that_looks_at_a_window_is_refused_however_it_is_said(said, codes):
    content = {name: value for name, value in QWEN.items() if "sliding" not in name} | said
    if codes:
        assert refused(content) == codes
    else:
        assert shape_of_json(content, "x") == SHAPES["qwen2.5-3b"]


def test_rules_between_model_and_settings(tmp_path):
    found = decoder_problems(
        settings(seq_len=8192, init="pretrained", lora_rank=2, lora_targets="q_proj,lm_head")
    )
    assert find_codes(found) == ["SL-seq-len-above-model", "SL-weights-unpublished", "SL-lora-lm-head"]
    assert "qwen2.5-3b" in found[1]
    with pytest.raises(DataMissing) as caught:
        read_shape(settings(model_path=str(tmp_path)))
    assert find_codes(caught.value) == ["SL-decoder-json-unreadable"]
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle, never opened")
    for config, codes in (
        (settings(model_path=str(tmp_path), init="pretrained"), ["SL-weights-absent"]),
        (settings(model_path=str(tmp_path)), []),
        (settings(model="qwen2.5-3b", init="pretrained"), []),
        (Config(run="r", dataset="arithmetic"), ["SL-model-no-text"]),
        (Config(run="r", task="image", model="qwen_tiny"), ["SL-model-text-for-images"]),
        (settings(model_path="/nowhere"), ["SL-model-folder-absent"]),
    ):
        assert find_codes(model_problems(config)) == codes


def test_a_model_of_the_hub_needs_no_torch(tmp_path):
    code = (
        "import sys; from stratlab_spec.settings.config import Config\n"
        "from stratlab_spec.models.decoder import SHAPES\n"
        "from stratlab_spec.models.decoder_config import read_shape\n"
        "assert read_shape(Config(run='r', task='text', model='org/net')) == SHAPES['qwen2.5-3b']\n"
        "from stratlab_spec.exit_codes import DataMissing\n"
        "try: read_shape(Config(run='r', task='text', model='org/gone'))\n"
        "except DataMissing as failure: assert \"TRAINER_MODEL='org/gone'\" in str(failure)\n"
        "else: raise AssertionError\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    with run_fake_hub({"models/org/net": {"config.json": json.dumps(QWEN).encode()}}) as address:
        env = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "PATH": ""}
        subprocess.run([sys.executable, "-c", code], check=True, env=env)
