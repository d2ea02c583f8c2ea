"""Decoders without torch: shapes, sizes that are given, stages of a pipeline."""

import dataclasses
import json

import pytest

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.decoder import (
    FAMILIES,
    count_flops_per_token,
    count_matmul_parameters,
    count_parameters,
    parameter_shapes,
    split_layers,
)
from stratlab_spec.models.decoder_config import SHAPES, TEXT_HUB_IDS, decoder_problems, read_shape
from stratlab_spec.models.decoder_json import shape_of_json
from stratlab_spec.models.model_specs import VIT, image_size_problem, model_problems, read_vit_shape
from stratlab_spec.registry import DECODER_SIZES, SIZES, VIT_SIZES
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.fields import TEXT_MODELS, VIT_MODELS, Settings
from tests.codes import find_codes
from trainer.models import build_model
from trainer.models.decoder import describe
from trainer.models.decoder_build import build_decoder

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


PARAMETERS = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b": 7_248_023_552,
    "gemma-2-2b": 2_614_341_888,
    "gemma-3-4b": 3_880_263_168,
    "phi-3-mini": 3_821_079_552,
    "olmo-2-7b": 7_298_617_344,
    "gpt2": 124_439_808,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "gpt-oss-20b": 20_914_757_184,
}


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_published_numbers_of_parameters(name, parameters):
    """Counted without torch, and in the class that transformers builds."""
    assert count_parameters(SHAPES[name]) == parameters
    decoder = build_decoder(settings(model=name), empty=True)
    assert {n: tuple(p.shape) for n, p in decoder.named_parameters()} == parameter_shapes(SHAPES[name])


def test_every_text_model_has_a_shape_and_each_but_the_tiny_ones_an_address():
    assert set(SHAPES) == set(TEXT_MODELS)
    assert {shape.family for shape in SHAPES.values()} == set(FAMILIES)
    assert set(SHAPES) - set(TEXT_HUB_IDS) == {"qwen_tiny", "qwen_moe_tiny"}


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


def test_every_part_that_is_not_built_is_named_at_once():
    wrong = {
        "vocab_size": (None, "SL-decoder-json-incomplete"),
        "num_local_experts": (None, "SL-decoder-json-incomplete"),
        "rope_parameters": ({"rope_type": "longrope"}, "SL-decoder-rope"),
        "layer_types": (["linear_attention"], "SL-decoder-layer-types"),
        "decoder_sparse_step": (2, "SL-decoder-sparse-step"),
        "use_bidirectional_attention": (True, "SL-decoder-bidirectional"),
        "is_encoder_decoder": (True, "SL-decoder-encoder"),
    }
    content = QWEN_MOE | {name: value for name, (value, _) in wrong.items()}
    assert refused(content) == [code for _, code in wrong.values()]
    assert refused({}) == ["SL-decoder-family"]


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"model_type": 8}, "family"),
        ({"num_hidden_layers": "8"}, "number"),
        ({"num_hidden_layers": 10_000}, "number"),
        ({"hidden_size": 1.5}, "number"),
        ({"num_attention_heads": True}, "number"),
        ({"num_key_value_heads": -1}, "number"),
        ({"head_dim": 0}, "number"),
        ({"vocab_size": float("nan")}, "number"),
        ({"sliding_window": "x"}, "number"),
        ({"rope_parameters": None, "rope_scaling": "x"}, "type"),
        ({"layer_types": 3}, "type"),
        ({"tie_word_embeddings": "yes"}, "type"),
        ({"layer_types": [[]]}, "layers"),
        ({"layer_types": ["full_attention"]}, "layers-number"),
        ({"num_key_value_heads": 5}, "kv-heads"),
        ({"head_dim": 33}, "head-width"),
        ({"num_experts_per_tok": 129}, "experts"),
        ({"model_type": "mixtral", "head_dim": None, "hidden_size": 2050}, "hidden"),
    ],
)
def test_values_that_no_decoder_can_have_are_named(values, code):
    assert refused(QWEN_MOE | values) == [f"SL-decoder-json-{code}"]
    assert shape_of_json(QWEN_MOE | {"num_key_value_heads": None, "layer_types": None}, "x").kv_heads == 32


def test_a_name_wins_over_its_other_spellings():
    assert shape_of_json(QWEN | {"n_layer": 99}, "x").layers == 36


GEMMA3 = {"model_type": "gemma3_text", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 7}


@pytest.mark.parametrize(
    ("content", "windows"),
    [
        (
            QWEN | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 34},
            (0,) * 34 + (8, 8),
        ),
        (QWEN | {"sliding_window": 8}, ()),  # switched off
        (
            GEMMA3
            | {
                "model_type": "mistral",
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "sliding_window": 8,
            },
            (8,) * 7,
        ),
        (GEMMA3, (4096,) * 5 + (0, 4096)),
        ({"model_type": "gemma3", "vision_config": {}, "text_config": GEMMA3}, (4096,) * 5 + (0, 4096)),
        (
            GEMMA3 | {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]},
            (0, 4096),
        ),
    ],
)
def test_which_layers_have_a_window_however_it_is_said(content, windows):
    assert shape_of_json({"vocab_size": 9, **content}, "x").windows == windows


def test_a_window_saves_operations():
    """Of 7 layers 6 look at 16 of 64 tokens; pairs of a row by hand: 64 * 64 / 2 in one, 16 * 16 / 2 + 48 * 16."""
    shape = shape_of_json(GEMMA3 | {"sliding_window": 16, "vocab_size": 10}, "x")
    whole = dataclasses.replace(shape, windows=())
    with_window, without = (count_flops_per_token(s, 64, causal=True) for s in (shape, whole))
    pairs = 64 * 64 / 2 - (16 * 16 / 2 + 48 * 16)
    assert without - with_window == pytest.approx(12 * shape.queries * 6 * pairs / 64)


def test_rules_between_model_and_settings(tmp_path):
    found = decoder_problems(
        settings(seq_len=8192, init="pretrained", lora_rank=2, lora_targets="q_proj,lm_head")
    )
    assert find_codes(found) == ["SL-seq-len-above-model", "SL-weights-unpublished", "SL-lora-lm-head"]
    assert "qwen2.5-3b" in found[1]
    with pytest.raises(DataMissing) as caught:
        read_shape(settings(model_path=str(tmp_path)))
    assert find_codes(caught.value) == ["SL-decoder-json-unreadable"]
    for data in (
        b"",
        b"[]",
        b'{"model_type": ',
        bytes(range(256)),
        json.dumps(QWEN).encode("utf16"),
        b"[" * 100_000,
    ):
        (tmp_path / "config.json").write_bytes(data)
        assert find_codes(model_problems(settings(model_path=str(tmp_path)))) == ["SL-decoder-json-invalid"]
    (tmp_path / "config.json").write_text(json.dumps(QWEN), encoding="utf-8-sig")
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


def test_layers_left_over_go_to_the_first_stages():
    assert [len(part) for part in split_layers(36, 5)] == [8, 7, 7, 7, 7]
    assert [i for part in split_layers(7, 3) for i in part] == list(range(7))
    assert split_layers(4, 1) == [range(4)]


VIT_OTHER = dict(zip(VIT_SIZES, (3, 96, 6, 200, 8), strict=True))
DECODER_OTHER = dict(zip(DECODER_SIZES, (3, 96, 8, 4, 80, 400), strict=True))


def sized(model: str, **values) -> Config:
    return Config(run="r", model=model, **values)


def test_every_size_is_one_of_a_kind_of_model_and_without_any_a_preset_stays_what_it_is():
    assert {*SIZES} == {name for name in Settings.model_fields if name.startswith("model_")} - {"model_path"}
    assert {name: read_vit_shape(sized(name)) for name in VIT_MODELS} == VIT
    assert {name: read_shape(sized(name)) for name in TEXT_MODELS} == SHAPES


def test_a_vision_transformer_of_other_sizes_is_what_was_asked_for():
    built = build_model(sized("vit_tiny", **VIT_OTHER), image_size=32, channels=3, num_labels=10, empty=True)
    of = built.hf.config
    found = (
        of.num_hidden_layers,
        of.hidden_size,
        of.num_attention_heads,
        of.intermediate_size,
        of.patch_size,
    )
    assert found == (3, 96, 6, 200, 8)
    # 2 L (T (4 D^2 + 2 D F) + 2 T^2 D) + 2 n D C p^2, by hand for 16 patches, times 3 for a training step
    forward = 3 * (2 * 17 * (4 * 96**2 + 2 * 96 * 200) + 4 * 17**2 * 96) + 2 * 16 * 96 * 3 * 64
    assert built.flops_per_sample == 3 * forward


@pytest.mark.parametrize("name", ["qwen_tiny", "qwen_moe_tiny"])
def test_a_decoder_of_other_sizes_is_what_was_asked_for(name):
    config = sized(name, **DECODER_OTHER)
    shape = read_shape(config)
    found = (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.vocab)
    assert found == (3, 96, 8, 4, 12, 400)
    assert (shape.expert_intermediate if shape.experts else shape.intermediate) == 80
    decoder = build_decoder(config, empty=True)
    assert sum(p.numel() for p in decoder.parameters()) == count_parameters(shape)
    assert shape_of_json(describe(shape).to_dict(), "x") == shape  # exported, it says its sizes itself


@pytest.mark.parametrize(
    ("model", "sizes", "codes", "told"),
    [
        ("vit_tiny", {"model_hidden": 66}, ["SL-hidden-heads"], " 64"),
        ("qwen_tiny", {"model_hidden": 68}, ["SL-hidden-heads"], " 64"),
        (
            "qwen_tiny",
            {"model_hidden": 62, "model_heads": 6, "model_kv_heads": 4},
            ["SL-hidden-heads", "SL-kv-heads"],
            "1, 2, 3, 6",
        ),
        ("qwen3-30b-a3b", {"model_hidden": 1000, "model_heads": 8}, [], ""),  # its heads keep their width
    ],
)
def test_sizes_that_do_not_fit_each_other(model, sizes, codes, told):
    found = model_problems(sized(model, **sizes))
    assert find_codes(found) == codes and told in " ".join(found)
    assert " 225 " in image_size_problem(sized("vit_base", model_patch=15), 224)
