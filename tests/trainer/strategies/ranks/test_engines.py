"""What tests/parity does not see of a strategy: optimizers, offloading, types, modes, fp16 with a scaled loss."""

import functools
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.ranks import run_ranks
from tests.trainer.strategies.small import (
    SmallNet,
    batch_of,
    largest_difference,
    make_config,
    start,
    steps,
    train,
)
from trainer.measuring.operators import WireCounter

SETTINGS = {"clip_norm": 0.5, "label_smoothing": 0.1}


def results(path: Path) -> tuple[list[tuple[float, float]], dict, dict, dict]:
    return tuple(torch.load(path, weights_only=True))


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """What one process does with some settings, once each."""

    @functools.cache
    def of(items: tuple) -> Path:
        out = tmp_path_factory.mktemp("single") / "single.pt"
        run_ranks(lambda: train(out, "single", **dict(items)), 1)
        return out

    return lambda **settings: of(tuple(sorted(settings.items())))


def assert_equal(out: Path, reference: Path) -> None:
    seen, initial, final, _ = results(out)
    seen_alone, initial_alone, final_alone, _ = results(reference)
    assert largest_difference(initial, initial_alone) == 0.0, "other initial weights"
    for (loss, norm), (loss_alone, norm_alone) in zip(seen, seen_alone, strict=True):
        assert loss == pytest.approx(loss_alone, abs=1e-5) and norm == pytest.approx(norm_alone, abs=1e-4)
    assert largest_difference(final, final_alone) < 1e-5


def test_momentum_and_an_odd_number_of_parameters_are_those_of_one_process(reference, tmp_path):
    moving = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}
    odd = {"classes": 9}
    assert sum(p.numel() for p in SmallNet(9).parameters()) % 2 == 1
    strategies = ("ddp", "fsdp", "zero1", "zero3")

    def each() -> None:
        for strategy in strategies:
            train(tmp_path / strategy, strategy, **moving | odd)

    run_ranks(each, 2)
    for strategy in strategies:
        assert_equal(tmp_path / strategy, reference(**moving | odd))
    still, moved = (results(reference(**moving | odd | more))[0][-1][0] for more in ({"momentum": 0.5}, {}))
    assert moved != pytest.approx(still, abs=1e-3), "or nothing was shown"


def test_offloading_changes_no_number(reference, tmp_path):
    cases = (("zero1", "optimizer"), ("zero3", "all"), ("fsdp", "all"))

    def each() -> None:
        for strategy, offload in cases:
            train(tmp_path / strategy, strategy, offload=offload, **SETTINGS)

    run_ranks(each, 2)
    for strategy, _ in cases:
        assert_equal(tmp_path / strategy, reference(**SETTINGS))


@pytest.mark.parametrize(
    ("strategy", "precision"), [("ddp", "bf16"), ("fsdp", "bf16"), ("zero2", "bf16_native")]
)
def test_what_is_gathered_in_bf16_is_reduced_in_fp32(strategy, precision):
    """Watched at c10d: DeepSpeed's autocast would reduce linear layers in bf16 by default."""

    def watched() -> None:
        config = make_config(strategy, 2, precision=precision)
        engine = start(config)
        steps(engine, config, 1, 1)
        with WireCounter() as wire:
            steps(engine, config, 2, 2)
        assert wire.dtypes["reductions"] == {"float32"}, wire.operations
        engine.close()

    run_ranks(watched, 2)


def test_bf16_native_is_the_strategys_own_recipe(tmp_path):
    def each() -> None:
        for strategy in ("zero1", "zero3"):
            train(tmp_path / strategy, strategy, precision="bf16_native")

    run_ranks(each, 2)
    for strategy in ("zero1", "zero3"):
        _, initial, final, dtypes = results(tmp_path / strategy)
        assert dtypes["parameters"] == ["bfloat16", "float32"] and dtypes["optimizer"] == ["float32"]
        weight = final["head.weight"]
        assert not torch.equal(weight, weight.bfloat16().float()), "the state is the fp32 copy"
        assert torch.equal(initial["head.weight"], initial["head.weight"].bfloat16().float())


def test_an_overflow_on_one_rank_skips_the_step_on_all_and_halves_the_scale():
    def run() -> None:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        for strategy in ("ddp", "fsdp", "zero2", "zero3"):
            config = make_config(strategy, 2, precision="fp16", clip_norm=0.5)
            engine = start(config)
            engine.loss_scale.scale = 1024.0
            exact = steps(start(make_config(strategy, 2, clip_norm=0.5)), config, 1, 2)
            for (_, norm), (_, unscaled) in zip(steps(engine, config, 1, 2), exact, strict=True):
                assert abs(norm - unscaled) < 2e-2 * unscaled
            before = engine.gather_state()
            batch = batch_of(3, config, rank, 2)
            if rank == 1:  # finite in, infinite gradients on this rank alone
                batch.micro[0][0].fill_(float("inf"))
            assert engine.train_step(batch, config.lr).skipped == 1 and engine.loss_scale.scale == 512.0
            after = engine.gather_state()
            assert all(torch.equal(before[name], after[name]) for name in before)
            assert steps(engine, config, 4, 4)[0][0] < 10 and engine.loss_scale.good_steps == 1
            moved = engine.gather_state()
            assert rank or any(not torch.equal(before[name], tensor) for name, tensor in moved.items())
            engine.close()

    run_ranks(run, 2)
