"""Models by size: a preset's architecture with other sizes, everywhere that shapes are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab_spec.layout.mesh_rules import broken_rules
from stratlab_spec.memory.layout_report import main as show_layout
from stratlab_spec.models.decoder import SHAPES, count_parameters
from stratlab_spec.models.decoder_config import decoder_problems, read_shape, shape_of_json
from stratlab_spec.models.model_specs import VIT, image_size_problem, model_problems, read_vit_shape
from stratlab_spec.registry import DECODER_SIZES, SIZES, VIT_SIZES
from stratlab_spec.settings.config import Config
from stratlab_spec.settings.fields import TEXT_MODELS, VIT_MODELS, Settings
from tests.codes import find_codes
from trainer.data.image_checks import evaluated
from trainer.models import build_model
from trainer.models.decoder import describe
from trainer.models.decoder_build import build_decoder

VIT_OTHER = dict(zip(VIT_SIZES, (3, 96, 6, 200, 8), strict=True))
DECODER_OTHER = dict(zip(DECODER_SIZES, (3, 96, 8, 4, 80, 400), strict=True))


def settings(model: str, **values) -> Config:
    return Config(run="r", model=model, **values)


def test_every_size_is_one_of_a_kind_of_model_and_without_any_a_preset_stays_what_it_is():
    assert {*SIZES} == {name for name in Settings.model_fields if name.startswith("model_")} - {"model_path"}
    assert {name: read_vit_shape(settings(name)) for name in VIT_MODELS} == VIT
    assert {name: read_shape(settings(name)) for name in TEXT_MODELS} == SHAPES


def test_a_vision_transformer_of_other_sizes_is_what_was_asked_for():
    built = build_model(
        settings("vit_tiny", **VIT_OTHER), image_size=32, channels=3, num_labels=10, empty=True
    )
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
    config = settings(name, **DECODER_OTHER)
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
    found = model_problems(settings(model, **sizes))
    assert find_codes(found) == codes and told in " ".join(found)
    assert " 225 " in image_size_problem(settings("vit_base", model_patch=15), 224)


def test_a_layout_knows_the_sizes_and_tells_all_broken_rules_at_once(capsys):
    sizes = {"model_layers": 3, "model_hidden": 70, "model_heads": 5, "model_kv_heads": 2}
    config = settings("qwen_tiny", strategy="nd", layout="given", pp=4, tp=2, **sizes)
    said = "\n".join(broken_rules(config, 8))
    assert "SL-kv-heads" in find_codes(said) and "TRAINER_TP=2" in said and "TRAINER_PP=4" in said
    assert decoder_problems(config) == []  # there alone, so that nothing is told twice
    assert show_layout(["--model", "qwen_tiny", "--processes", "2", "model_hidden=63"]) == 2
    assert "SL-hidden-heads" in find_codes(capsys.readouterr().err)


def test_exported_weights_say_their_sizes_themselves():
    judged = evaluated(settings("vit_tiny", **VIT_OTHER), Path("somewhere"))
    assert [getattr(judged, name) for name in SIZES] == [0] * len(SIZES)
