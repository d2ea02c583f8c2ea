"""Every strategy is one process, seen from the loss, the gradient norm and the parameters after 20 steps.

Losses alone are blind: an Adam step hides a gradient that is too large by a factor, so the norms are compared too, and
the parameters after SGD, whose steps follow the gradients' size. `test_a_planted_bug_is_caught` shows that it works.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from unittest import mock

import pytest

from tests.ranks import run_ranks
from trainer.config import Config

STEPS = 20
TOLERANCE = 1e-4
STRATEGIES = ("ddp", "fsdp", "zero2")
SIZES = {"global_batch_size": 24, "image_size": 16, "lr": 0.002}


def train(out: Path, **settings) -> None:
    """One rank: 20 steps on digits; rank 0 writes losses, norms and parameters."""
    import torch
    import torch.distributed as dist

    from trainer.data import open_data
    from trainer.data.batches import Share, build_batch
    from trainer.data.order import SampleOrder
    from trainer.mesh import build_mesh, resolve_axes
    from trainer.models import build_model
    from trainer.phases import Phases
    from trainer.precision import resolve_precision
    from trainer.strategies import build_engine

    torch.set_num_threads(1)
    config = Config(**{"run": "parity"} | SIZES | settings)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    axes = resolve_axes(config, world_size)
    data = open_data(config, config.image_size)
    model = build_model(config, image_size=16, channels=1, num_labels=10)
    engine = build_engine(
        config, build_mesh(axes, "cpu"), model, Phases("cpu"), resolve_precision(config, "cpu")
    )
    order = SampleOrder(config.seed, len(data.train))
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        batch = build_batch(
            data.train,
            order,
            step,
            config.global_batch_size,
            config.micro_batch_size,
            Share(rank, axes.dp),
            "cpu",
        )
        result = engine.train_step(batch, config.lr)
        loss = result.loss.clone()
        dist.all_reduce(loss)
        losses.append(float(loss))
        norms.append(float(result.grad_norm))
        assert result.samples == config.global_batch_size and result.skipped == 0
    whole = {}
    for name, parameter in model.named_parameters():
        full = getattr(parameter, "full_tensor", None)
        whole[name] = (full() if full else parameter).detach().float()
    if rank == 0:
        torch.save(whole, out / "parameters.pt")
        (out / "numbers.json").write_text(json.dumps({"losses": losses, "norms": norms}))
    dist.barrier()


def differences(a: Path, b: Path) -> dict[str, float]:
    """Largest absolute difference of losses, norms and parameters.

    k_proj.bias is left out: softmax does not see it, its gradient is rounding noise, and Adam makes steps of it.
    """
    import torch

    numbers = [json.loads((folder / "numbers.json").read_text()) for folder in (a, b)]
    found = {
        key: max(abs(x - y) for x, y in zip(numbers[0][key], numbers[1][key], strict=True))
        for key in ("losses", "norms")
    }
    left, right = (torch.load(folder / "parameters.pt", weights_only=True) for folder in (a, b))
    assert left.keys() == right.keys()
    kept = [name for name in left if "k_proj.bias" not in name and "key.bias" not in name]
    found["parameters"] = max(float((left[name] - right[name]).abs().max()) for name in kept)
    return found


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Results of one process for some settings, computed once each."""

    @functools.cache
    def of(items: tuple) -> Path:
        out = tmp_path_factory.mktemp("single")
        run_ranks(lambda: train(out, strategy="single", micro_batch_size=24, **dict(items)), 1)
        return out

    return lambda **settings: of(tuple(sorted(settings.items())))


CASES = {
    "plain": ({}, 12),
    "accumulated": ({}, 4),
    "clipped": ({"clip_norm": 0.5}, 12),
    "sgd": ({"optimizer": "sgd", "lr": 0.1}, 4),
    "cnn": ({"model": "cnn"}, 12),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_equals_one_process(strategy, case, reference, tmp_path):
    settings, micro = CASES[case]
    run_ranks(lambda: train(tmp_path, strategy=strategy, micro_batch_size=micro, **settings), 2)
    found = differences(reference(**settings), tmp_path)
    assert found == {key: pytest.approx(0, abs=TOLERANCE) for key in found}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_three_processes_equal_one(strategy, reference, tmp_path):
    run_ranks(lambda: train(tmp_path, strategy=strategy, micro_batch_size=8), 3)
    found = differences(reference(), tmp_path)
    assert found == {key: pytest.approx(0, abs=TOLERANCE) for key in found}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bf16_is_one_recipe(strategy, reference, tmp_path):
    run_ranks(lambda: train(tmp_path, strategy=strategy, micro_batch_size=12, precision="bf16"), 2)
    same = differences(reference(precision="bf16"), tmp_path)
    other = differences(reference(), tmp_path)
    assert same["losses"] < 5e-3 and other["losses"] > 1e-4


def _average_twice() -> mock._patch:
    import torch.distributed.fsdp as fsdp

    return mock.patch.object(fsdp.FSDPModule, "set_gradient_divide_factor", lambda *_: None)


def _default_clipping() -> mock._patch:
    from trainer.strategies import zero

    whole = zero.deepspeed_config

    def forgetful(*arguments) -> dict:
        return {k: v for k, v in whole(*arguments).items() if k != "gradient_clipping"}

    return mock.patch.object(zero, "deepspeed_config", forgetful)


def _forgotten_factor() -> mock._patch:
    from trainer.strategies import ddp

    whole = ddp.TorchEngine

    def forgetful(*arguments, **options):
        return whole(*arguments, **options | {"loss_factor": 1.0})

    return mock.patch.object(ddp, "TorchEngine", forgetful)


def _never_synchronised() -> mock._patch:
    from trainer.strategies import ddp

    whole = ddp.TorchEngine

    def deaf(*arguments, **options):
        sync = options.pop("apply_sync")
        return whole(*arguments, **options, apply_sync=lambda _: sync(False))

    return mock.patch.object(ddp, "TorchEngine", deaf)


def _order_by_rank() -> mock._patch:
    from trainer.data import order

    whole = order.SampleOrder.batch

    def shifted(self, step, size):
        return whole(self, step + int(os.environ["WORLD_SIZE"]), size)

    return mock.patch.object(order.SampleOrder, "batch", shifted)


BUGS = {
    "fsdp averages gradients that are means already": ("fsdp", _average_twice),
    "deepspeed clips by default": ("zero2", _default_clipping),
    "ddp averages gradients that are means already": ("ddp", _forgotten_factor),
    "ddp never synchronises": ("ddp", _never_synchronised),
    "the order of samples depends on the world size": ("ddp", _order_by_rank),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug, reference, tmp_path):
    strategy, plant = BUGS[bug]

    def with_bug() -> None:
        with plant():
            train(tmp_path, strategy=strategy, micro_batch_size=4)

    run_ranks(with_bug, 2)
    found = differences(reference(), tmp_path)
    assert max(found.values()) > 10 * TOLERANCE, found
