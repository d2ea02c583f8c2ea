"""fp16 with a scaled loss. Real runs need a GPU for it (resolve_precision); its course is tested on a CPU."""

from __future__ import annotations

from tests.ranks import run_ranks


def test_an_overflow_on_one_rank_skips_the_step_on_all_and_halves_the_scale():
    def run() -> None:
        import torch
        import torch.distributed as dist

        from tests.trainer.strategies.small import batch_of, make_config, start, steps

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
            result = engine.train_step(batch, config.lr)
            assert result.skipped == 1 and engine.loss_scale.scale == 512.0
            after = engine.gather_state()
            assert all(torch.equal(before[name], after[name]) for name in before)
            assert steps(engine, config, 4, 4)[0][0] < 10 and engine.loss_scale.good_steps == 1
            moved = engine.gather_state()
            assert rank or any(not torch.equal(before[name], tensor) for name, tensor in moved.items())
            engine.close()

    run_ranks(run, 2)
