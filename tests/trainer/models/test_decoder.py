from __future__ import annotations

import inspect
import sys
from math import prod

import pytest
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from stratlab_spec.models import decoder as decoder_shapes
from stratlab_spec.models.decoder import SHAPES, count_flops_per_token, count_parameters, weight_shapes
from stratlab_spec.models.decoder_config import shape_of_json
from tests.trainer.models.small_decoder import (
    SEQ,
    build,
    document,
    moved,
    row_of,
    settings,
)
from trainer.models.chunked_cross_entropy import CHUNK_TOKENS
from trainer.models.decoder import describe
from trainer.models.decoder_build import KEPT, build_decoder


def small_of(family: str):
    return next(shape for shape in SHAPES.values() if shape.family == family and shape.layers == 4)


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


# words of a tokenizer, initial weights, and where it was written
INERT = {"bos_token_id", "eos_token_id", "initializer_range", "transformers_version"}
# held to the shape by stratlab_spec/models/decoder_config.py, whose check reads the configuration that is built
READ_BACK = {"hidden_act", "attention_bias", "decoder_sparse_step", "mlp_only_layers", "layer_types"}


@pytest.mark.parametrize("family", decoder_shapes.FAMILIES)
def test_no_default_of_a_family_goes_in_unseen(family, monkeypatch):
    transformers = sys.modules["transformers"]  # which is not always what was imported first
    row = decoder_shapes.FAMILIES[family]
    known = set(inspect.signature(getattr(transformers, row.configuration)).parameters)
    shared = set(inspect.signature(transformers.PretrainedConfig).parameters)
    given: dict[str, object] = {}
    monkeypatch.setattr(transformers, row.configuration, lambda **arguments: given.update(arguments))
    describe(small_of(family))
    unseen = known - shared - set(given) - INERT - READ_BACK - set(row.inert)
    assert not unseen, f"{sorted(unseen)}: the row in FAMILIES must switch it off, or call it inert"
    # head_dim: Qwen2's modules read it where it is there
    assert set(given) - known - shared <= {"head_dim", "attn_implementation"}


@pytest.mark.parametrize("family", decoder_shapes.FAMILIES)
def test_what_a_family_calls_inert_changes_no_logit(family):
    for argument in decoder_shapes.FAMILIES[family].inert:
        logits = []
        for change in (False, True):
            configuration = describe(small_of(family))
            if change:
                given = getattr(configuration, argument)
                arguments = {**configuration.to_dict(), argument: another(given)}
                configuration = type(configuration)(**arguments)
                assert getattr(configuration, argument) != given, "the same again"
            configuration._attn_implementation = "eager"
            torch.manual_seed(0)
            model = getattr(transformers, decoder_shapes.FAMILIES[family].model)(configuration)
            drawn = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(torch.randn(parameter.shape, generator=drawn) / 8)
                logits.append(model(input_ids=torch.arange(24)[None]).logits)
        assert torch.equal(*logits), f"{argument} is not inert: FAMILIES[{family!r}] must switch it off"


def another(value):
    """Of the same kind: 28 -> 1, 0.1 -> 0.6, [1, 1, 0] -> [0, 0, 1]."""
    if isinstance(value, (list, tuple)):
        return [another(each) for each in value]
    if isinstance(value, bool) or value in (0, 1):
        return type(value)(not value)
    return value + 0.5 if isinstance(value, float) else 1


SPARSE = {
    *("model_type", "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "intermediate_size", "vocab_size", "num_local_experts", "num_experts_per_tok"),
    "moe_intermediate_size",
}


@pytest.mark.parametrize("family", decoder_shapes.FAMILIES)
def test_what_a_config_json_does_not_say_is_what_transformers_takes(family):
    said = describe(small_of(family)).to_dict()
    sparse = {name: said[name] for name in SPARSE & said.keys()}
    whole = getattr(transformers, decoder_shapes.FAMILIES[family].configuration)(**sparse).to_dict()
    # a window is refused only where it is said
    whole |= {"sliding_window": None, "layer_types": None, "use_sliding_window": False}
    assert shape_of_json(sparse, "x") == shape_of_json(whole, "x"), f"FAMILIES[{family!r}].unsaid"


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
