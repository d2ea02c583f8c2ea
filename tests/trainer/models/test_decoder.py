from __future__ import annotations

import inspect
from math import prod
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.trainer.models.small_decoder import (
    FAMILIES,
    SEQ,
    build,
    document,
    gradients,
    largest_relative,
    loss_of,
    moved,
    row_of,
    settings,
)
from trainer.engines.compilation import apply_compile
from trainer.models.decoder import describe
from trainer.models.decoder_build import build_decoder
from trainer.models.token_loss import CHUNK_TOKENS
from trainer.settings.config import Config, ConfigError
from trainer.shapes import decoder_shapes
from trainer.shapes.decoder_json import shape_of_json
from trainer.shapes.decoder_shapes import (
    SHAPES,
    count_flops_per_token,
    count_matmul_parameters,
    count_parameters,
    weight_shapes,
)


def resident_mib() -> float:
    """Memory that this process really holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("lora_rank", [0, 8])
def test_names_and_shapes_are_those_of_the_real_module(name, lora_rank):
    config = settings(name, lora_rank=lora_rank)
    decoder = build_decoder(config, empty=True)
    real = {n: tuple(p.shape) for n, p in decoder.named_parameters()}
    assert real == weight_shapes(SHAPES[name], config)
    base = sum(p.numel() for n, p in decoder.named_parameters() if ".lora_" not in n)
    assert base == count_parameters(SHAPES[name])
    assert len(decoder.blocks()) == SHAPES[name].layers


def test_an_empty_model_takes_no_memory():
    build(empty=True)  # imports
    before = resident_mib()
    decoder = build("qwen2.5-3b", empty=True)
    assert resident_mib() - before < 50  # the weights would be 11772
    assert all(tensor.is_meta for tensor in (*decoder.parameters(), *decoder.buffers()))


@pytest.mark.parametrize("name", SHAPES)
def test_its_configuration_gives_its_shape_back(name):
    assert shape_of_json(describe(SHAPES[name]).to_dict(), "x") == SHAPES[name]


# words of a tokenizer, initial weights, and where it was written
INERT = {"bos_token_id", "eos_token_id", "initializer_range", "transformers_version"}
# held to the shape by trainer/shapes/decoder_json.py, whose check reads the configuration that is built
READ_BACK = {"hidden_act", "attention_bias", "decoder_sparse_step", "mlp_only_layers", "layer_types"}


@pytest.mark.parametrize("family", decoder_shapes.FAMILIES)
def test_no_default_of_a_family_goes_in_unseen(family, monkeypatch):
    """What its configuration takes is given, or known to change nothing; what it does not take is not given."""
    import transformers

    name = decoder_shapes.FAMILIES[family].configuration
    known = set(inspect.signature(getattr(transformers, name)).parameters)
    shared = set(inspect.signature(transformers.PretrainedConfig).parameters)
    given: dict[str, object] = {}
    monkeypatch.setattr(transformers, name, lambda **arguments: given.update(arguments))
    describe(next(shape for shape in SHAPES.values() if shape.family == family))
    unseen = known - shared - set(given) - INERT - READ_BACK - set(decoder_shapes.FAMILIES[family].inert)
    assert not unseen, (
        f"{name} has {sorted(unseen)}: its row in FAMILIES must switch it off, or call it inert"
    )
    # head_dim: Qwen2's modules read it where it is there
    assert set(given) - known - shared <= {"head_dim", "attn_implementation"}, f"{name} does not know it"


INERT_OF_EACH = [(family, name) for family, row in decoder_shapes.FAMILIES.items() for name in row.inert]


@pytest.mark.parametrize("family, argument", INERT_OF_EACH)
def test_what_a_family_calls_inert_changes_no_logit(family, argument):
    import transformers

    shape = next(shape for shape in SHAPES.values() if shape.family == family and shape.layers == 4)
    logits = []
    for change in (False, True):
        configuration = describe(shape)
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
    if isinstance(value, float):
        return value + 0.5
    return 1


SPARSE = {
    *(
        "model_type",
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    ),
    *("intermediate_size", "vocab_size", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size"),
}


@pytest.mark.parametrize("family", decoder_shapes.FAMILIES)
def test_what_a_config_json_does_not_say_is_what_transformers_takes(family):
    import transformers

    shape = next(shape for shape in SHAPES.values() if shape.family == family and shape.layers == 4)
    said = describe(shape).to_dict()
    sparse = {name: said[name] for name in SPARSE & said.keys()}
    whole = getattr(transformers, decoder_shapes.FAMILIES[family].configuration)(**sparse).to_dict()
    # a window is refused only where it is said
    whole |= {"sliding_window": None, "layer_types": None, "use_sliding_window": False}
    assert shape_of_json(sparse, "x") == shape_of_json(whole, "x"), f"FAMILIES[{family!r}].unsaid"


@pytest.mark.parametrize("family", decoder_shapes.FAMILIES)
def test_a_tokenizer_s_words_are_no_part_of_the_shape(family):
    """As a published config.json has them, and our own export with a tokenizer."""
    shape = next(shape for shape in SHAPES.values() if shape.family == family)
    content = describe(shape).to_dict()
    words = {"pad_token_id": 3, "bos_token_id": 1, "eos_token_id": [2, 3]}
    assert shape_of_json(content | words, "x") == shape


@pytest.mark.parametrize("name", ["qwen_tiny", "qwen2.5-3b"])
def test_operations_are_those_that_torch_counts(name):
    """On the meta device, with the kernel that computes the whole square of the attention."""
    decoder, shape = build(name, empty=True, packing=False, seq_len=64).eval(), SHAPES[name]
    inputs = torch.zeros(1, 2, 64, dtype=torch.int64, device="meta")
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        decoder(inputs)
    rotary = 2 * 64 * shape.head_dim // 2  # positions times frequencies, one small product
    counted = counter.get_total_flops()
    forward = count_flops_per_token(shape, 64, causal=False) / 3 * 64
    assert counted - forward in (0, rotary)


def test_operations_of_experts_are_those_that_torch_counts():
    decoder, shape = moved(build("qwen_moe_tiny", packing=False)).eval(), SHAPES["qwen_moe_tiny"]
    inputs, _ = row_of([document(SEQ, 1)])
    grouped = {torch.ops.aten._grouped_mm: lambda rows, weights, *_, **__: 2 * prod(rows) * weights[-1]}
    counting = FlopCounterMode(display=False, custom_mapping=grouped)  # torch has no rule for it
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counting as counter:
        decoder(inputs)
    rotary = 2 * SEQ * shape.head_dim // 2
    forward = count_flops_per_token(shape, SEQ, causal=False) / 3 * SEQ
    assert counter.get_total_flops() - forward in (0, rotary)


def test_costs_of_a_row():
    plain, adapted = (build("qwen2.5-3b", empty=True, seq_len=2048, lora_rank=r) for r in (0, 16))
    shape = SHAPES["qwen2.5-3b"]
    assert plain.flops_per_sample == 2048 * count_flops_per_token(shape, 2048, causal=True)
    assert plain.flops_per_token_literature == count_flops_per_token(shape, 2048, causal=False)
    assert adapted.flops_per_sample == 2048 * count_flops_per_token(shape, 2048, causal=True, lora=True)
    difference = plain.flops_per_token_literature - adapted.flops_per_token_literature
    assert difference == 2 * count_matmul_parameters(shape)


@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_recomputed_blocks_give_the_same_gradients(model, lora_rank):
    plain, recomputed = (
        build(model, activation_checkpointing=kind, lora_rank=lora_rank) for kind in ("none", "blocks")
    )
    compare_gradients(moved(plain), moved(recomputed))


def test_compiled_blocks_give_the_same_gradients():
    """Dense only: which experts get tokens is not for the compiler."""
    plain, compiled = build(), build(activation_checkpointing="blocks")
    apply_compile(compiled.blocks(), backend="aot_eager")
    compare_gradients(moved(plain), moved(compiled))


def compare_gradients(plain, other):
    inputs, labels = row_of([document(length, length) for length in (5, 9, 7)])
    for decoder in (plain, other):
        loss_of(decoder, inputs, labels, 18).backward()
    assert len(gradients(plain)) == sum(p.requires_grad for p in plain.parameters())
    assert largest_relative(gradients(other), gradients(plain)) < 1e-6


def test_autocast_is_close_and_leaves_the_parameters():
    decoder, (inputs, _) = moved(build()), row_of([document(20, 1)])
    exact = decoder(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = decoder(inputs)
    assert rounded.dtype == torch.bfloat16
    assert 0 < (rounded - exact).norm() / exact.norm() < 0.03
    assert {p.dtype for p in decoder.parameters()} == {torch.float32}


def test_the_head_of_a_tied_model_is_the_embedding():
    decoder = build()
    assert decoder.hf.lm_head.weight is decoder.hf.model.embed_tokens.weight
    decoder.to("meta")
    assert decoder.hf.lm_head.weight is not decoder.hf.model.embed_tokens.weight  # why there is tie_weights
    decoder.tie_weights()
    assert decoder.hf.lm_head.weight is decoder.hf.model.embed_tokens.weight
    untied = build("qwen_moe_tiny")
    untied.tie_weights()
    assert untied.hf.lm_head.weight is not untied.hf.model.embed_tokens.weight


def test_wrong_settings_are_refused_before_anything_is_built():
    with pytest.raises(ConfigError) as caught:
        build(lora_rank=2, lora_targets="lm_head", seq_len=8192)
    assert len(caught.value.problems) == 2
    with pytest.raises(ConfigError, match="no linear .* called so, expected some of down_proj"):
        build(lora_rank=2, lora_targets="qkv")
    with pytest.raises(ConfigError, match="'gate_proj'"):  # experts are one tensor, and no linear layers
        build("qwen_moe_tiny", lora_rank=2, lora_targets="gate_proj")


def test_its_loss_has_the_chunks_of_the_setting():
    values = {"model": "qwen_tiny", "dataset": "arithmetic", "seq_len": 16}
    for given, wanted in (({}, CHUNK_TOKENS), ({"loss_chunk_tokens": 512}, 512)):
        decoder = build_decoder(Config(run="r", **values, **given), empty=True)
        assert decoder.loss.chunk_tokens == wanted
