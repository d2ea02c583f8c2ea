"""torch.compile block by block: the same gradients, before sharding. `aot_eager` compiles without code generation."""

from __future__ import annotations

from tests.ranks import run_ranks


def test_compiled_blocks_have_the_same_gradients():
    def run() -> None:
        import torch._dynamo.utils
        import torch.distributed as dist

        from tests.trainer.strategies.small import largest_difference, make_config, start, steps

        dist.init_process_group("gloo")
        for strategy in ("ddp", "zero2"):
            found = []
            for compiled in (False, True):
                # sgd: a step of its size follows the gradient
                config = make_config(strategy, 2, optimizer="sgd", lr=0.1, compile=compiled)
                engine = start(config)
                before = torch._dynamo.utils.counters["stats"]["calls_captured"]
                seen = steps(engine, config, 1, 2)
                captured = torch._dynamo.utils.counters["stats"]["calls_captured"] > before
                assert captured == compiled
                found.append((seen, engine.gather_state()))
                engine.close()
                torch._dynamo.reset()
            (plain, state), (other, other_state) = found
            for (loss, norm), (loss_compiled, norm_compiled) in zip(plain, other, strict=True):
                assert abs(loss - loss_compiled) < 1e-5 and abs(norm - norm_compiled) < 1e-4
            assert not state or largest_difference(state, other_state) < 1e-6

    run_ranks(run, 2, timeout_s=240)
