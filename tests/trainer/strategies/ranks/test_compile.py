"""torch.compile block by block: the same gradients, before sharding. `aot_eager` compiles without code generation."""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks


@pytest.mark.parametrize(("strategy", "world_size"), [("single", 1), ("ddp", 2), ("fsdp", 2), ("zero2", 2)])
def test_compiled_blocks_have_the_same_gradients(strategy, world_size):
    def run() -> None:
        import torch._dynamo.utils
        import torch.distributed as dist

        from tests.trainer.strategies.small import largest_difference, make_config, start, steps

        dist.init_process_group("gloo")
        found = []
        for compiled in (False, True):
            # sgd: a step of its size follows the gradient
            config = make_config(strategy, world_size, optimizer="sgd", lr=0.1, compile=compiled)
            engine = start(config)
            before = torch._dynamo.utils.counters["stats"]["calls_captured"]
            seen = steps(engine, config, 1, 2)
            captured = torch._dynamo.utils.counters["stats"]["calls_captured"] > before
            assert captured == compiled
            found.append((seen, engine.gather_state()))
            engine.close()
        (plain, state), (other, other_state) = found
        assert all(
            abs(a[0] - b[0]) < 1e-5 and abs(a[1] - b[1]) < 1e-4 for a, b in zip(plain, other, strict=True)
        )
        assert not state or largest_difference(state, other_state) < 1e-6

    run_ranks(run, world_size, timeout_s=240)
