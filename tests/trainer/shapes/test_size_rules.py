"""What the tools are told of sizes is what the trainer says."""

from __future__ import annotations

from pathlib import Path

from stratlab.tables.size_rules import find_size_refusal
from tests.codes import CODE
from trainer.settings.config import Config
from trainer.settings.fields import MODELS, TEXT_MODELS
from trainer.shapes import image_sizes, size_rules
from trainer.shapes.decoder_rules import size_problems
from trainer.shapes.model_shapes import VIT, default_image_size, read_vit_shape
from trainer.shapes.sizes import vit_size_problems


def test_the_tables_of_the_tools_are_current_and_whole() -> None:
    for room, name in ((size_rules, "size_rules"), (image_sizes, "image_sizes")):
        written = Path(f"stratlab/tables/{name}.json").read_text()
        assert written == room.describe_for_tools(), "make schema"
    assert set(size_rules.SIZE_RULES) == {*VIT, *TEXT_MODELS}
    assert set(image_sizes.IMAGE_SIZES) == set(MODELS) - set(TEXT_MODELS)
    for model, size in image_sizes.IMAGE_SIZES.items():
        assert default_image_size(Config(run="x", model=model)) == size


def test_the_tools_refuse_what_the_trainer_refuses_in_its_words() -> None:
    cases = (("vit_tiny", (96, 1000), (7, 16), (0,)), ("qwen_tiny", (0, 96), (0, 7), (0, 3)))
    cases += (("qwen3-30b-a3b", (1000,), (7, 16), (5,)),)
    for model, hidden_sizes, heads_of, kv_heads_of in cases:
        for sizes in ((a, b, c) for a in hidden_sizes for b in heads_of for c in kv_heads_of):
            given = dict(zip(("model_hidden", "model_heads", "model_kv_heads"), sizes, strict=True))
            config = Config(run="x", model=model, dataset="synthetic").model_copy(update=given)
            shape = read_vit_shape(config)
            problems = (
                vit_size_problems(shape.hidden, shape.heads, config) if shape else size_problems(config)
            )
            told = "; ".join(problems)
            for name in given:
                told = told.replace(f"TRAINER_{name.upper()}", name)
            said = find_size_refusal({"model": model} | {name: str(size) for name, size in given.items()})
            assert (
                CODE.sub("", said).replace(" ;", ";").strip() == CODE.sub("", told).replace(" ;", ";").strip()
            )
