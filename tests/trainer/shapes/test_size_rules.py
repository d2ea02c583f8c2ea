"""What the tools say of sizes that do not fit each other is what the trainer says."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from stratlab.tables.size_rules import find_size_refusal
from trainer.settings.config import Config
from trainer.settings.fields import TEXT_MODELS
from trainer.shapes.decoder_rules import size_problems
from trainer.shapes.model_shapes import VIT, read_vit_shape
from trainer.shapes.size_rules import SIZE_RULES, describe_for_tools
from trainer.shapes.sizes import vit_size_problems


def test_the_table_of_the_tools_is_current() -> None:
    assert Path("stratlab/tables/size_rules.json").read_text() == describe_for_tools(), "make schema"


def test_every_preset_with_sizes_is_in_it() -> None:
    assert set(SIZE_RULES) == {*VIT, *TEXT_MODELS}


@pytest.mark.parametrize("model", SIZE_RULES)
def test_the_tools_refuse_what_the_trainer_refuses_in_its_words(model: str) -> None:
    heads_of_keys = (0, 2, 3, 5) if model in TEXT_MODELS else (0,)
    for hidden, heads, kv_heads in product((0, 96, 1000, 2048), (0, 7, 16, 33), heads_of_keys):
        sizes = {"model_hidden": hidden, "model_heads": heads, "model_kv_heads": kv_heads}
        config = Config(strategy="ddp", run="x", model=model, dataset="synthetic").model_copy(update=sizes)
        if model in VIT:
            shape = read_vit_shape(config)
            assert shape
            problems = [*vit_size_problems(shape.hidden, shape.heads, config)]
        else:
            problems = size_problems(config)
        said = find_size_refusal({"model": model} | {name: str(size) for name, size in sizes.items()})
        told = "; ".join(problems)
        for name in sizes:
            told = told.replace(f"TRAINER_{name.upper()}", name)
        assert said == told, sizes
