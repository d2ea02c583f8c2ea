"""Steps, evaluations, norms and checkpoints of a mesh; the table of meshes that read each other's: tests/parity_llm."""

import pytest

from tests.ranks import run_ranks
from tests.trainer.parallel.small import make_config

MESHES = {
    "pp2 interleaved": {"pp": 2, "pp_schedule": "interleaved1f1b"},
    "tp2+sp": {"tp": 2, "sequence_parallel": "on"},
}


@pytest.mark.parametrize("name", MESHES)
def test_steps_and_evaluations_in_any_order(name):
    config = make_config(label_smoothing=0.1, **MESHES[name])

    def run() -> None:
        import torch
        import torch.distributed as dist

        from tests.trainer.parallel import small
        from trainer.engine import as_sums
        from trainer.engines.torch_engine import build_optimizer

        dist.init_process_group("gloo")
        engine, alone = small.start(config), small.whole_decoder(config)
        optimizer = build_optimizer(config, alone.parameters())
        modes: set[bool] = set()
        for module in engine.module.modules():
            module.register_forward_pre_hook(lambda module, given: modes.add(module.training))

        def measure(inputs, labels):
            rows = zip(inputs.split(1), labels.split(1), strict=True)
            found = sum(engine.evaluate(*row) for row in rows)
            dist.all_reduce(found)
            return found

        for step in (1, 2):
            inputs, labels = small.make_rows(config, step)
            labels[-1] = -100  # a row that only fills up the batch
            with torch.no_grad():
                wanted = as_sums(*alone.eval()(inputs, labels))
            modes.clear()
            torch.testing.assert_close(measure(inputs, labels), wanted, atol=1e-4, rtol=1e-5)
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
            result = engine.train_step(small.share_of(config, 1, 0, step), 1e-3 * step)
            assert modes == {True}, "a step is training, also behind an evaluation"
            total = result.loss.clone()
            dist.all_reduce(total)
            torch.testing.assert_close(total, loss.detach(), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(result.grad_norm, norm, atol=1e-4, rtol=1e-4)
            assert result.samples == 4
        phases, held = engine._phases, engine.observed.bytes_held
        assert min(phases.forward.total_ns, phases.backward.total_ns, phases.optimizer.total_ns) > 0
        assert held["optimizer"] == 2 * held["parameters"] == 2 * held["gradients"]

    run_ranks(run, 2)


def test_stages_of_the_pipeline_are_added_up():
    def run() -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, distribute_tensor

        from trainer.engines.torch_engine import clip_gradients, whole_norm

        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "dp"))
        mine = [3.0, 4.0][dist.get_rank()]  # a number: a tensor would be the gradient's own storage
        gradient = distribute_tensor(torch.tensor(mine), mesh["dp"], [Replicate()], src_data_rank=None)
        norm = whole_norm([gradient], "cpu", mesh["pp"])
        assert norm.item() == 5.0
        clip_gradients([gradient], 10.0, norm)  # small enough already
        assert gradient.to_local().item() == mine
        clip_gradients([gradient], 2.5, norm)
        torch.testing.assert_close(gradient.to_local().item(), mine / 2, rtol=1e-5, atol=0)

    run_ranks(run, 2)
