"""Each strategy trains like one process, with everything that bends the gradient: accumulation, clipping, smoothing."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

from tests.ranks import run_ranks
from tests.trainer.strategies.small import SmallNet, largest_difference, train

TORCH = ("ddp", "fsdp", "hsdp")
ZERO = ("zero1", "zero2", "zero3", "zeropp")
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


def assert_equal(out: Path, reference: Path, *, loss: float = 1e-5, parameters: float = 1e-5) -> None:
    seen, initial, final, _ = results(out)
    seen_alone, initial_alone, final_alone, _ = results(reference)
    assert largest_difference(initial, initial_alone) == 0.0, "other initial weights"
    for (a, norm), (b, norm_alone) in zip(seen, seen_alone, strict=True):
        assert a == pytest.approx(b, abs=loss) and norm == pytest.approx(norm_alone, abs=10 * loss)
    assert largest_difference(final, final_alone) < parameters


@pytest.mark.parametrize("strategy", TORCH + ZERO)
def test_a_strategy_equals_one_process(strategy, reference, tmp_path):
    run_ranks(lambda: train(tmp_path / "out", strategy, **SETTINGS), 2)
    assert_equal(tmp_path / "out", reference(**SETTINGS))


def test_momentum_equals_one_process(reference, tmp_path):
    """Nesterov's, with weight decay, which goes into the momentum too."""
    moving = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}

    def each() -> None:
        for strategy in TORCH + ZERO:
            train(tmp_path / strategy, strategy, **moving)

    run_ranks(each, 2)
    for strategy in TORCH + ZERO:
        assert_equal(tmp_path / strategy, reference(**moving))
    still = results(reference(**moving | {"momentum": 0.0, "nesterov": False}))[0]
    assert results(reference(**moving))[0][-1][0] != pytest.approx(still[-1][0], abs=1e-3), (
        "or nothing was shown"
    )


def test_replicas_of_shards_equal_one_process(reference, tmp_path):
    run_ranks(lambda: train(tmp_path / "out", "hsdp", dp_shard=2, dp_replicate=2, **SETTINGS), 4)
    assert_equal(tmp_path / "out", reference(**SETTINGS))


def test_an_odd_number_of_parameters_trains_under_every_strategy(reference, tmp_path):
    """All labels of the steps' batches are below 8; the ninth class is the odd one."""
    odd = 9
    assert sum(p.numel() for p in SmallNet(odd).parameters()) % 2 == 1

    def each() -> None:
        for strategy in TORCH + ZERO:
            train(tmp_path / strategy, strategy, classes=odd)

    run_ranks(each, 2)
    for strategy in TORCH + ZERO:
        assert_equal(tmp_path / strategy, reference(classes=odd))


@pytest.mark.parametrize("strategy", TORCH + ZERO)
def test_frozen_parameters_stay_and_the_rest_trains(strategy, reference, tmp_path):
    run_ranks(lambda: train(tmp_path / "out", strategy, frozen=True), 2)
    assert_equal(tmp_path / "out", reference(frozen=True))
    _, initial, final, _ = results(tmp_path / "out")
    moved = {name for name in initial if not torch.equal(initial[name], final[name])}
    assert moved == {name for name in initial if "down" in name or "head" in name}


@pytest.mark.parametrize(
    ("strategy", "offload"),
    [(s, "optimizer") for s in ("zero1", "zero2", "zero3")] + [(s, "all") for s in ("zero3", "fsdp", "hsdp")],
)
def test_offloading_changes_no_number(strategy, offload, reference, tmp_path):
    run_ranks(lambda: train(tmp_path / "out", strategy, offload=offload, **SETTINGS), 2)
    assert_equal(tmp_path / "out", reference(**SETTINGS))


@pytest.mark.parametrize("strategy", ["zero3", "zeropp"])
def test_forced_gathers_change_no_number(strategy, reference, tmp_path):
    def forced() -> None:
        from trainer.engines import deepspeed_config

        deepspeed_config.ZERO[strategy] |= deepspeed_config.FORCED_GATHERS
        train(tmp_path / "out", strategy, **SETTINGS)

    run_ranks(forced, 2)
    assert_equal(tmp_path / "out", reference(**SETTINGS))


def test_a_copy_per_node_equals_one_process(reference, tmp_path):
    """hpz with two nodes of two processes, by what the launcher says of this node."""

    def on_two_nodes() -> None:
        from trainer.engines import deepspeed_config

        deepspeed_config.ZERO["zeropp"] |= deepspeed_config.FORCED_GATHERS
        train(tmp_path / "out", "zeropp", **SETTINGS)

    run_ranks(on_two_nodes, 4, env={"LOCAL_WORLD_SIZE": "2"})
    assert_equal(tmp_path / "out", reference(**SETTINGS))


def test_forced_gathers_leave_no_parameter_whole_between_steps():
    def forced() -> None:
        from tests.trainer.strategies.small import make_config, start, steps
        from trainer.engines import deepspeed_config

        config = make_config("zero3", 2)
        counts = []
        for settings in ({}, deepspeed_config.FORCED_GATHERS):
            deepspeed_config.ZERO["zero3"] |= settings
            engine = start(config)
            steps(engine, config, 1, 1)
            assert settings.items() <= engine.settings["zero_optimization"].items()
            counts.append(sum(p.numel() > 0 for p in engine.module.parameters()))
            engine.close()
        assert counts[0] > 0 and counts[1] == 0, counts

    run_ranks(forced, 2)


@pytest.mark.parametrize("strategy", ("single", *TORCH, *ZERO))
def test_bf16_is_one_recipe_on_every_strategy(strategy, reference, tmp_path):
    run_ranks(lambda: train(tmp_path / "out", strategy, precision="bf16"), 1 if strategy == "single" else 2)
    seen, _, _, dtypes = results(tmp_path / "out")
    expected, plain = results(reference(precision="bf16"))[0], results(reference())[0]
    assert set(map(tuple, dtypes.values())) == {("float32",)}, dtypes
    assert all(a[0] == pytest.approx(b[0], abs=3e-3) for a, b in zip(seen, expected, strict=True))
    assert seen[0][0] != pytest.approx(plain[0][0], abs=1e-6)


@pytest.mark.parametrize("strategy", TORCH + ZERO)
def test_bf16_reduces_and_gathers_in_fp32(strategy):
    """What crosses the wire, watched at c10d: DeepSpeed's autocast would reduce linear layers in bf16 by default."""

    def watched() -> None:
        import torch

        from tests.trainer.strategies.small import make_config, start, steps
        from trainer.measuring import wire

        met: dict[str, set[torch.dtype]] = {}

        class Watch(wire.WireCounter):
            def _count(self, func, args, kwargs) -> None:
                kind = wire.KINDS.get(func._schema.name.split("::")[1])
                given = [part for part in (*args, *kwargs.values()) if isinstance(part, torch.Tensor | list)]
                large = {t.dtype for t in wire._tensors(given) if t.numel() > 64 and t.is_floating_point()}
                met.setdefault(str(kind), set()).update(large)

        config = make_config(strategy, 2, precision="bf16")
        engine = start(config)
        steps(engine, config, 1, 1)
        with Watch():
            steps(engine, config, 2, 2)
        seen = set().union(*met.values())
        assert seen == {torch.float32}, met

    run_ranks(watched, 2)


@pytest.mark.parametrize(
    ("strategy", "precision"),
    [
        *(("fsdp", "bf16"), ("hsdp", "bf16"), ("zero3", "bf16")),
        *((f"zero{stage}", "bf16_native") for stage in (1, 2, 3)),
    ],
)
def test_what_is_gathered_in_bf16_is_reduced_in_fp32(strategy, precision):

    def watched() -> None:
        from tests.trainer.strategies.small import make_config, start, steps
        from trainer.measuring.wire import WireCounter

        shape = {"dp_replicate": 2, "dp_shard": 2} if strategy == "hsdp" else {}
        config = make_config(strategy, 4 if shape else 2, precision=precision, **shape)
        engine = start(config)
        steps(engine, config, 1, 1)
        with WireCounter() as wire:
            steps(engine, config, 2, 2)
        assert wire.dtypes["reductions"] == {"float32"}, wire.operations
        engine.close()

    run_ranks(watched, 4 if strategy == "hsdp" else 2)


def test_ddp_hears_of_its_static_graph():
    def run() -> None:
        from tests.trainer.strategies.small import GLOBAL_BATCH, make_config, start

        for static in (False, True):
            engine = start(make_config("ddp", 1, static_graph=static, micro_batch_size=GLOBAL_BATCH))
            assert engine.module.static_graph is static

    run_ranks(run, 1)


def test_ddp_hears_of_its_buckets_and_fully_shard_of_what_to_gather_ahead():
    def run() -> None:
        from torch.distributed.fsdp import FSDPModule

        from tests.trainer.strategies.small import make_config, start

        for mib in (1, 7):
            assert start(make_config("ddp", 1, reduce_bucket_mib=mib)).module.bucket_bytes_cap == mib * 2**20
        for ahead in (1, 2):
            engine = start(make_config("fsdp", 1, prefetch_blocks=ahead))
            states = [m._get_fsdp_state() for m in engine.module.modules() if isinstance(m, FSDPModule)]
            # torch's own way, one ahead, is left alone
            told = [len(state._states_to_forward_prefetch) for state in states]
            assert max(told) == (0 if ahead == 1 else 2), told

    run_ranks(run, 1)


def test_every_engine_judges_in_evaluation_mode_and_goes_on_training_in_the_same_precision():
    def run() -> None:
        import torch

        from tests.trainer.strategies.small import Block, batch_of, make_config, start

        for strategy in ("single", "ddp", "fsdp", "zero2", "zero3"):
            config = make_config(strategy, 1, precision="bf16")
            engine = start(config)
            seen: set[tuple[bool, torch.dtype]] = set()

            def watch(module, given, answer, seen=seen) -> None:
                seen.add((module.training, answer.dtype))

            for module in engine.module.modules():
                if isinstance(module, Block):
                    module.up.register_forward_hook(watch)
            for step in (1, 2):
                batch = batch_of(step, config, 0, 1)
                engine.train_step(batch, config.lr)
                assert seen == {(True, torch.bfloat16)}, (strategy, seen)
                seen.clear()
                engine.evaluate(*batch.micro[0])
                assert seen == {(False, torch.bfloat16)}, (strategy, seen)
                seen.clear()
            engine.close()

    run_ranks(run, 1)


OWN_RECIPES = {
    "zero1": ["bfloat16", "float32"],
    "zero3": ["bfloat16", "float32"],
}


@pytest.mark.parametrize("strategy", OWN_RECIPES)
def test_bf16_native_is_the_strategys_own_recipe(strategy, reference, tmp_path):
    run_ranks(lambda: train(tmp_path / "out", strategy, precision="bf16_native"), 2)
    seen, initial, final, dtypes = results(tmp_path / "out")
    plain, initial_alone, _, _ = results(reference())
    assert dtypes["parameters"] == OWN_RECIPES[strategy] and dtypes["optimizer"] == ["float32"]
    weight = final["head.weight"]
    assert not torch.equal(weight, weight.bfloat16().float()), "the state is the fp32 copy"
    initial_alone = {name: tensor.bfloat16().float() for name, tensor in initial_alone.items()}
    assert largest_difference(initial, initial_alone) == 0.0
    assert all(a[0] == pytest.approx(b[0], abs=0.05) for a, b in zip(seen, plain, strict=True))
    assert seen[0][0] != pytest.approx(plain[0][0], abs=1e-6)


@pytest.mark.parametrize("strategy", ["zero1", "zero3"])
def test_no_timer_of_deepspeed_s_waits_for_the_device(strategy, tmp_path):
    """Seen in a trace of an H200: the host stood still before each forward pass and after each step."""

    def each() -> None:
        from unittest import mock

        from deepspeed.accelerator import get_accelerator

        asked: list[str] = []
        where = "deepspeed.utils.timer.get_accelerator"
        accelerator = mock.Mock(wraps=get_accelerator(), synchronize=lambda *given: asked.append("waited"))
        with mock.patch(where, lambda: accelerator):
            train(tmp_path / "out", strategy)
        assert asked == []

    run_ranks(each, 1)
