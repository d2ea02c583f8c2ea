from __future__ import annotations

import pytest

from tests.ranks import run_ranks
from tests.trainer.parallel.small import make_config

MESHES = {
    "pp2": (2, {"pp": 2}),
    "pp2 interleaved": (2, {"pp": 2, "pp_schedule": "interleaved1f1b"}),
    "tp2+sp": (2, {"tp": 2, "sequence_parallel": "on"}),
    "cp2": (2, {"cp": 2, "packing": False}),
    "dp2.tp2.ep4": (4, {"dp_shard": 2, "tp": 2, "ep": 4, "model": "qwen_moe_tiny"}),
}


@pytest.mark.parametrize("name", MESHES)
def test_steps_and_evaluations_in_any_order(name):
    """Losses, norms and evaluations are those of one process, with an evaluation before the first step and after.

    A step finds every module in training mode, an evaluation none.
    """
    ranks, settings = MESHES[name]
    config = make_config(label_smoothing=0.1, **settings)

    def run() -> None:
        import torch
        import torch.distributed as dist

        from tests.trainer.parallel import small
        from trainer.engine import as_sums
        from trainer.engines.optimizer import build_optimizer
        from trainer.layout.axes import Axes

        dist.init_process_group("gloo")
        engine, alone = small.start(config), small.whole_decoder(config)
        optimizer = build_optimizer(config, alone.parameters())
        axes = Axes(**{axis: getattr(config, axis) or 1 for axis in ("dp_shard", "cp", "tp", "pp", "ep")})
        dp_rank = axes.dp_rank(dist.get_rank())
        modes: set[bool] = set()
        for module in engine.module.modules():
            module.register_forward_pre_hook(lambda module, given: modes.add(module.training))

        def measure(engine, inputs, labels):
            parts = (t.chunk(axes.dp)[dp_rank].split(1) for t in (inputs, labels))
            found = sum(engine.evaluate(*part) for part in zip(*parts, strict=True))
            dist.all_reduce(found)
            return found

        for step in (1, 2):
            inputs, labels = small.make_rows(config, step)
            labels[-1] = -100  # a row that only fills up the batch
            with torch.no_grad():
                wanted = as_sums(*alone.eval()(inputs, labels))
            modes.clear()
            found = measure(engine, inputs, labels)
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-5)
            assert modes == {False}, "an evaluation is no training"
            modes.clear()

            inputs, labels = small.make_rows(config, step)
            whole, _ = alone.train()(inputs, labels)
            loss = whole / small.count_labels(labels)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(alone.parameters(), config.clip_norm)
            optimizer.param_groups[0]["lr"] = 1e-3 * step
            optimizer.step()
            optimizer.zero_grad()
            result = engine.train_step(small.share_of(config, axes.dp, dp_rank, step), 1e-3 * step)
            assert modes == {True}, "a step is training, also behind an evaluation"
            total = result.loss.clone()
            dist.all_reduce(total)
            torch.testing.assert_close(total, loss.detach(), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(result.grad_norm, norm, atol=1e-4, rtol=1e-4)
            assert result.samples == 4
        phases = engine._phases
        assert min(phases.forward.total_ns, phases.backward.total_ns, phases.optimizer.total_ns) > 0
        assert set(engine.observed.bytes_held) == {"parameters", "gradients", "optimizer"}
        held = engine.observed.bytes_held
        assert held["optimizer"] == 2 * held["parameters"] == 2 * held["gradients"]
        measure(engine, inputs, labels)  # leaves parameters gathered
        state = engine.gather_state()
        if dist.get_rank() == 0:
            for key, value in alone.state_dict().items():
                torch.testing.assert_close(state[key], value, atol=2e-4, rtol=1e-4)

    run_ranks(run, ranks)
