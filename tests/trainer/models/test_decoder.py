from math import prod

import pytest
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from stratlab_spec.models import decoder as decoder_shapes
from stratlab_spec.models.decoder import count_flops_per_token, count_parameters, weight_shapes
from stratlab_spec.models.decoder_config import SHAPES
from stratlab_spec.models.decoder_json import shape_of_json
from stratlab_spec.settings.config import ConfigError
from tests.codes import find_codes
from tests.trainer.models.small_decoder import (
    SEQ,
    build,
    document,
    moved,
    row_of,
    settings,
)
from trainer.models.chunked_cross_entropy import CHUNK_TOKENS
from trainer.models.decoder import Decoder, build_hugging_face, describe
from trainer.models.decoder_build import KEPT, build_decoder


@pytest.mark.parametrize(
    ("name", "lora_rank"), [("qwen_tiny", 8), ("qwen_moe_tiny", 8), ("qwen2.5-3b", 0), ("qwen3-30b-a3b", 0)]
)
def test_names_and_shapes_are_those_of_the_real_module(name, lora_rank):
    config, shape = settings(name, lora_rank=lora_rank), SHAPES[name]
    decoder = build_decoder(config, empty=True)
    assert {n: tuple(p.shape) for n, p in decoder.named_parameters()} == weight_shapes(shape, config)
    base = sum(p.numel() for n, p in decoder.named_parameters() if ".lora_" not in n)
    assert base == count_parameters(shape) and len(decoder.blocks()) == shape.layers
    # a tokenizer's words are no part of the shape
    words = {"pad_token_id": 3, "bos_token_id": 1, "eos_token_id": [2, 3]}
    assert shape_of_json(describe(shape).to_dict() | words, "x") == shape


SPARSE = {
    "num_key_value_heads": 2,
    "num_hidden_layers": 7,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
SPARSE |= {"vocab_size": 320, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


@pytest.mark.parametrize("family", decoder_shapes.FAMILIES)
def test_what_a_config_json_does_not_say_is_what_transformers_takes(family):
    """Also which layers have a window."""
    sparse = {name: size for name, size in SPARSE.items() if (family, name) != ("gpt2", "intermediate_size")}
    if family == "gpt2":  # has as many of both, and another name
        sparse["num_key_value_heads"] = 4
    whole = transformers.CONFIG_MAPPING[family](**sparse).to_dict()
    assert shape_of_json({"model_type": family, **sparse}, "x") == shape_of_json(whole, "x"), (
        f"FAMILIES[{family!r}].unsaid"
    )


def test_nothing_is_dropped_in_training_and_an_export_says_the_rates_again():
    content = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 30}
    found = describe(shape_of_json(content | {"attn_pdrop": 0.2}, "x"))
    assert (found.attn_pdrop, found.resid_pdrop, found.embd_pdrop) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("content", "codes"),
    [
        ({"model_type": "olmo3"}, []),
        ({"model_type": "cohere", "logit_scale": 0.25}, []),
        ({"model_type": "granite", "logits_scaling": 8.0}, []),
        ({"model_type": "deepseek_v3"}, []),
        ({"model_type": "opt"}, ["SL-decoder-logits"]),
        ({"model_type": "llama4_text"}, ["SL-decoder-layers"]),
        ({"model_type": "falcon"}, ["SL-decoder-build"]),
        ({"model_type": "mamba"}, ["SL-decoder-layers"]),
        ({"model_type": "bloom"}, ["SL-decoder-attention"]),
        ({"model_type": "phi"}, ["SL-decoder-head"]),
        ({"model_type": "t5"}, ["SL-decoder-class"]),
        ({"model_type": "nothing"}, ["SL-decoder-unknown"]),
    ],
)
def test_any_decoder_of_transformers_is_built_or_refused_by_name(content, codes):
    small = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 30}
    shape = shape_of_json({**small, "intermediate_size": 64, **content}, "x")
    with torch.device("meta"):
        if codes:
            with pytest.raises(ConfigError) as caught:
                build_hugging_face(shape)
            assert find_codes(caught.value) == codes
        else:
            assert Decoder(build_hugging_face(shape), shape, packed=True, seq_len=8).shape.counted


@pytest.mark.parametrize("name", ["qwen_tiny", "qwen_moe_tiny"])
def test_operations_are_those_that_torch_counts(name):
    decoder, shape = moved(build(name, packing=False)).eval(), SHAPES[name]
    inputs, _ = row_of([document(SEQ, 1)])
    grouped = {torch.ops.aten._grouped_mm: lambda rows, weights, *_, **__: 2 * prod(rows) * weights[-1]}
    counting = FlopCounterMode(display=False, custom_mapping=grouped)  # torch has no rule for it
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counting as counter:
        decoder(inputs)
    rotary = 2 * SEQ * shape.head_dim // 2  # positions times frequencies, one small product
    forward = count_flops_per_token(shape, SEQ, causal=False) / 3 * SEQ
    assert counter.get_total_flops() - forward in (0, rotary)
    assert decoder.forward_flops.weights == 2 * SEQ * decoder_shapes.count_matmul_parameters(shape)


def test_the_head_of_a_tied_model_is_the_embedding():
    decoder, untied = build(), build("qwen_moe_tiny")
    assert decoder.hf.lm_head.weight is decoder.hf.model.embed_tokens.weight
    decoder.to("meta")
    assert decoder.hf.lm_head.weight is not decoder.hf.model.embed_tokens.weight  # why there is tie_weights
    decoder.tie_weights()
    assert decoder.hf.lm_head.weight is decoder.hf.model.embed_tokens.weight
    untied.tie_weights()
    assert untied.hf.lm_head.weight is not untied.hf.model.embed_tokens.weight


def test_its_loss_has_the_chunks_of_the_setting():
    for given, wanted in (({}, CHUNK_TOKENS), ({"loss_chunk_tokens": 512}, 512)):
        assert build(empty=True, **given).loss.chunk_tokens == wanted


def test_selective_keeps_products_of_experts_and_the_attention_of_packed_rows():
    assert {"mm", "_grouped_mm", "_varlen_attn"} <= {
        operator._schema.name.partition("::")[2] for operator in KEPT
    }
