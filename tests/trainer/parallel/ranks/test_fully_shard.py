"""What fully_shard sends and keeps where products are in 16 bits."""

import pytest

from tests.ranks import run_ranks


@pytest.mark.parametrize("strategy", ["fsdp", "zero3"])
def test_weights_of_products_travel_in_16_bits_all_others_and_all_gradients_in_32(strategy):
    def run() -> None:
        import torch

        from tests.trainer.strategies.small import make_config, start, steps
        from trainer.engines.deepspeed_config import FORCED_GATHERS, ZERO
        from trainer.measuring.operators import WireCounter

        if strategy == "zero3":
            ZERO["zero3"].update(FORCED_GATHERS)
        sent, gathered = {}, {}
        for precision in ("fp32", "bf16", "fp16"):
            engine = start(make_config(strategy, 2, precision=precision))
            steps(engine, make_config(strategy, 2, precision=precision), 1, 1)
            with WireCounter() as wire:
                steps(engine, make_config(strategy, 2, precision=precision), 2, 2)
            assert wire.dtypes["reductions"] == {"float32"}
            gathered[precision] = wire.dtypes["gathers"]
            sent[precision] = {name: size for name, (_, size) in wire.operations.items()}
            assert all(p.dtype == torch.float32 for p in engine.module.parameters())
            engine.close()
        assert gathered == {
            "fp32": {"float32"}, "bf16": {"bfloat16", "float32"}, "fp16": {"float16", "float32"},
        }, "not the bytes that torch packs several types into"  # fmt: skip
        whole, half = sent["fp32"]["all_gather"], sent["bf16"]["all_gather"]
        vectors = 0.1  # their share of this network's bytes, at most
        assert whole / 2 < half < (0.5 + vectors / 2) * whole, sent
        for name in sent["fp32"].keys() - {"all_gather"}:
            assert sent["bf16"][name] == sent["fp32"][name], name

    run_ranks(run, 2)
