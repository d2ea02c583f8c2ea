"""Models by size: a preset's architecture with other sizes, everywhere that shapes are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.data.exported import evaluated
from trainer.layout.command import main as show_layout
from trainer.layout.resolve import layout_problems
from trainer.models import build_model
from trainer.models.decoder import describe
from trainer.models.decoder_build import build_decoder
from trainer.settings.config import Config, ConfigError
from trainer.settings.fields import TEXT_MODELS, VIT_MODELS, Settings
from trainer.settings.size_table import DECODER_SIZES, SIZES, VIT_SIZES
from trainer.shapes.decoder_json import read_shape, shape_of_json
from trainer.shapes.decoder_rules import decoder_problems
from trainer.shapes.decoder_shapes import SHAPES, count_parameters
from trainer.shapes.model_shapes import VIT, image_size_problem, model_problems, read_vit_shape
from trainer.shapes.sizes import resize_decoder

VIT_OTHER = {
    "model_layers": 3,
    "model_hidden": 96,
    "model_heads": 6,
    "model_intermediate": 200,
    "model_patch": 8,
}
DECODER_OTHER = {
    "model_layers": 3,
    "model_hidden": 96,
    "model_heads": 8,
    "model_kv_heads": 4,
    "model_intermediate": 80,
    "model_vocab": 400,
}


def settings(model: str, **values) -> Config:
    return Config(run="r", model=model, **values)


def refused(**values) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Config.from_env(
            {f"TRAINER_{name.upper()}": str(value) for name, value in {"run": "r", **values}.items()}
        )
    return "\n".join(caught.value.problems).splitlines()


def test_every_size_is_one_of_a_kind_of_model_and_none_is_forgotten():
    assert set(SIZES) == {*VIT_OTHER, *DECODER_OTHER} == {*VIT_SIZES, *DECODER_SIZES}
    assert {*SIZES} == {name for name in Settings.model_fields if name.startswith("model_")} - {"model_path"}
    assert set(VIT) == set(VIT_MODELS) and set(SHAPES) == set(TEXT_MODELS)


@pytest.mark.parametrize("name", VIT_MODELS)
def test_without_sizes_a_preset_stays_what_it_is(name):
    assert read_vit_shape(settings(name)) == VIT[name]


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_without_sizes_a_decoder_stays_what_it_is(name):
    assert read_shape(settings(name)) == SHAPES[name]


@pytest.mark.parametrize("setting", VIT_SIZES)
def test_each_size_changes_the_vision_transformer_that_is_built(setting):
    def build(**sizes):
        config = settings("vit_tiny", **sizes)
        return build_model(config, image_size=32, channels=3, num_labels=10, empty=True)

    plain, other = build(), build(**{setting: VIT_OTHER[setting] if setting != "model_heads" else 2})
    if setting == "model_heads":  # as many parameters, as many operations
        assert other.hf.config.num_attention_heads == 2
        return
    assert sum(p.numel() for p in other.parameters()) != sum(p.numel() for p in plain.parameters())
    assert other.flops_per_sample != plain.flops_per_sample


def test_a_vision_transformer_of_other_sizes_is_what_was_asked_for():
    built = build_model(settings("vit_tiny", **VIT_OTHER), image_size=32, channels=3, num_labels=10)
    of = built.hf.config
    found = (
        *(of.num_hidden_layers, of.hidden_size, of.num_attention_heads, of.intermediate_size, of.patch_size),
    )
    assert found == (3, 96, 6, 200, 8)
    # 2 L (T (4 D^2 + 2 D F) + 2 T^2 D) + 2 n D C p^2, by hand for 16 patches, times 3 for a training step
    forward = 3 * (2 * 17 * (4 * 96**2 + 2 * 96 * 200) + 4 * 17**2 * 96) + 2 * 16 * 96 * 3 * 64
    assert built.flops_per_sample == 3 * forward


@pytest.mark.parametrize("name", ["qwen_tiny", "qwen_moe_tiny"])
def test_a_decoder_of_other_sizes_is_what_was_asked_for(name):
    config = settings(name, **DECODER_OTHER)
    shape = read_shape(config)
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.vocab) == (
        *(3, 96, 8, 4, 12, 400),
    )
    assert (shape.expert_intermediate if shape.experts else shape.intermediate) == 80
    decoder = build_decoder(config, empty=True)
    assert sum(p.numel() for p in decoder.parameters()) == count_parameters(shape)
    assert shape_of_json(describe(shape).to_dict(), "x") == shape  # exported, it says its sizes itself


def test_heads_that_are_not_hidden_over_heads_keep_their_width():
    given = settings("qwen3-30b-a3b", model_hidden=1000, model_heads=8)
    assert resize_decoder(SHAPES["qwen3-30b-a3b"], given).head_dim == 128
    assert decoder_problems(given) == []


def test_what_has_no_sizes_of_the_lab_refuses_them():
    presets = f"the presets with sizes are {', '.join((*VIT_MODELS, *TEXT_MODELS))}"
    for name in ("cnn", "resnet", "owner/name"):
        assert refused(model=name, model_layers=3) == [
            f"TRAINER_MODEL_LAYERS=3: {name} has sizes of its own; leave them out; {presets}"
        ]
    assert refused(model_path="/m", model_layers=3)[0].startswith(
        "TRAINER_MODEL_LAYERS=3: the model in TRAINER_MODEL_PATH has its own sizes; leave them out"
    )


def test_published_weights_and_sizes_of_another_kind_are_told_at_once():
    assert refused(model="vit_base", model_layers=3, model_vocab=400, init="pretrained") == [
        "TRAINER_MODEL_LAYERS=3, TRAINER_MODEL_VOCAB=400, TRAINER_INIT=pretrained: the published weights of "
        "vit_base have its sizes; take scratch",
        "TRAINER_MODEL_VOCAB: vit_base has no such size, expected some of TRAINER_MODEL_LAYERS, "
        "TRAINER_MODEL_HIDDEN, TRAINER_MODEL_HEADS, TRAINER_MODEL_INTERMEDIATE, TRAINER_MODEL_PATCH",
    ]
    assert "TRAINER_MODEL_PATCH: qwen_tiny has no such size" in refused(model="qwen_tiny", model_patch=4)[0]


def test_sizes_that_do_not_fit_each_other():
    assert model_problems(settings("vit_tiny", model_hidden=66)) == [
        "TRAINER_MODEL_HIDDEN=66: must be a multiple of heads=4, for example 64"
    ]
    assert model_problems(settings("qwen_tiny", model_hidden=62, model_heads=6, model_kv_heads=4)) == [
        "TRAINER_MODEL_HIDDEN=62: must be a multiple of 2 x heads=6 (rotary positions need an even width of each "
        "head), for example 60",
        "TRAINER_MODEL_KV_HEADS=4: must divide heads=6, expected one of 1, 2, 3, 6",
    ]
    assert model_problems(settings("qwen_tiny", model_hidden=68)) == [
        "TRAINER_MODEL_HIDDEN=68: must be a multiple of 2 x heads=4 (rotary positions need an even width of each "
        "head), for example 64"
    ]
    assert image_size_problem(settings("vit_base", model_patch=15), 224) == (
        "TRAINER_IMAGE_SIZE=224: vit_base needs a multiple of 15, for example 225"
    )


def test_a_layout_knows_the_sizes_and_tells_all_broken_rules_at_once(capsys):
    config = settings(
        "qwen_tiny",
        strategy="nd",
        layout="given",
        pp=4,
        tp=2,
        model_layers=3,
        model_hidden=70,
        model_heads=5,
        model_kv_heads=2,
    )
    said = "\n".join(layout_problems(config, 8, read_shape(config)))
    assert "TRAINER_MODEL_KV_HEADS=2: must divide heads=5, expected one of 1, 5" in said
    assert "TRAINER_TP=2: does not divide heads=5 of qwen_tiny" in said
    assert "TRAINER_PP=4: needs 4 layers, qwen_tiny has 3" in said
    assert decoder_problems(config) == []  # there alone, so that nothing is told twice
    assert show_layout(["--model", "qwen_tiny", "--processes", "2", "model_hidden=63"]) == 2
    assert "TRAINER_MODEL_HIDDEN=63: must be a multiple of 2 x heads=4" in capsys.readouterr().err
    assert (
        show_layout(["--model", "qwen_tiny", "--processes", "2", "model_layers=1", "model_vocab=10000"]) == 0
    )
    assert "0.00 billion" in capsys.readouterr().out


def test_exported_weights_say_their_sizes_themselves():
    judged = evaluated(settings("vit_tiny", **VIT_OTHER), Path("somewhere"))
    assert [getattr(judged, name) for name in SIZES] == [0] * len(SIZES)
