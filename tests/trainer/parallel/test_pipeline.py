from __future__ import annotations

import copy

import torch

from tests.trainer.parallel.small import make_config, make_rows
from trainer.models.decoder import documents_of
from trainer.models.decoder_build import build_decoder
from trainer.parallel.pipeline import apply_stage, layers_of


def split(decoder, stages):
    parts = [copy.deepcopy(decoder) for _ in range(stages)]
    for index, part in enumerate(parts):
        apply_stage(part, index, stages)
    return parts


def test_stages_one_after_the_other_are_the_decoder_with_its_names():
    config = make_config(model="qwen_moe_tiny")
    decoder = build_decoder(config)
    parts = split(decoder, 3)
    assert [list(layers_of(part)) for part in parts] == [["0", "1"], ["2"], ["3"]]
    names = [name for part in parts for name, _ in part.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in decoder.named_parameters())
    inputs, _ = make_rows(config)
    passed, documents = inputs[:, 0], documents_of(inputs)
    for part in parts:
        passed = part(passed, positions=inputs[:, 1], documents=documents)
    torch.testing.assert_close(passed, decoder(inputs))


def test_gradient_checkpointing_belongs_to_the_copied_layers():
    decoder = build_decoder(make_config(activation_checkpointing="blocks"))
    (part,) = split(decoder, 1)
    layer = layers_of(part)["0"]
    assert layer.forward.args[0] is layer and layer.forward.args[1].__self__ is layer
