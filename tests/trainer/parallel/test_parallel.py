"""Stages of a pipeline one after the other, and which blocks fully_shard gathers ahead; in one process."""

import copy
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.trainer.parallel.small import make_config, make_rows, share_of, start
from trainer.distributed.world import Precision
from trainer.models import weights
from trainer.models.decoder import documents_of
from trainer.models.decoder_build import build_decoder
from trainer.models.mixed_precision import apply_low_precision
from trainer.parallel import nd_engine
from trainer.parallel.fully_shard import _sharded_parameters, apply_prefetch, apply_sharding, apply_sync
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
    (part,) = split(build_decoder(make_config(activation_checkpointing="blocks")), 1)
    layer = layers_of(part)["0"]
    assert layer.forward.args[0] is layer and layer.forward.args[1].__self__ is layer


class Told:
    """What of fully_shard is asked for, under a name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.forward: list[str] | None = None
        self.backward: list[str] | None = None

    def set_modules_to_forward_prefetch(self, modules: list[Any]) -> None:
        self.forward = [module.name for module in modules]

    def set_modules_to_backward_prefetch(self, modules: list[Any]) -> None:
        self.backward = [module.name for module in modules]


def tell(ahead: int) -> list[Told]:
    """Four blocks; the third has experts, sharded on their own before it."""
    blocks: list[list[Any]] = [[Told("0")], [Told("1")], [Told("2 experts"), Told("2")], [Told("3")]]
    apply_prefetch(blocks, ahead)
    return [block[-1] for block in blocks]


def test_those_that_come_next_first() -> None:
    found = tell(2)
    assert [block.forward for block in found] == [["1", "2", "2 experts"], ["2", "2 experts", "3"], ["3"], []]
    assert [block.backward for block in found] == [[], ["0"], ["1", "0"], ["2", "2 experts", "1"]]


@pytest.mark.parametrize(("sharded", "setter"), [(True, "all_reduce"), (False, "gradient_sync")])
def test_accumulated_shards_wait_only_with_what_goes_to_replicas(sharded, setter):
    apply_sync(model := Mock(), sharded, completes_step=False)
    assert model.method_calls == [getattr(call, f"set_requires_{setter}")(False)]


@pytest.fixture
def alone(monkeypatch) -> Iterator[None]:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_nd_compiles_its_layers_and_judges_in_evaluation_mode(monkeypatch) -> None:
    compiled: list[int] = []
    monkeypatch.setattr(nd_engine, "apply_compile", lambda layers, backend: compiled.append(len(layers)))
    monkeypatch.setattr(weights, "RandomWeights", weights.RandomWeights)  # `start` sets others
    config, modes = make_config(compile=True), []
    engine = start(config)
    for module in engine.module.modules():
        module.register_forward_pre_hook(lambda module, given: modes.append(module.training))
    inputs, labels = make_rows(config)
    for training, step in (
        (False, lambda: engine.evaluate(inputs, labels)),
        (True, lambda: engine.train_step(share_of(config, 1, 0), 1e-3)),
    ):
        modes.clear()
        step()
        assert modes and {*modes} == {training}
    assert compiled == [4]


@pytest.mark.usefixtures("alone")
def test_what_enters_no_product_is_gathered_and_all_is_reduced_in_fp32() -> None:
    config = make_config()
    decoder = build_decoder(config)
    apply_low_precision(decoder, torch.bfloat16)
    apply_sharding(decoder, [], init_device_mesh("cpu", (1,)), config, Precision("bf16"))
    decoder(*make_rows(config))
    found = {p._param_fqn: (p.param_dtype, p.reduce_dtype) for p in _sharded_parameters(decoder)}
    assert {gathered for name, (gathered, _) in found.items() if "norm" in name} == {None}
    assert {gathered for name, (gathered, _) in found.items() if "q_proj.weight" in name} == {torch.bfloat16}
    assert {reduced for _, reduced in found.values()} == {torch.float32}
