"""Steps, evaluations, norms and checkpoints of a mesh; the table of meshes that read each other's: tests/parity_llm."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.ranks import run_ranks
from tests.trainer.older_python import pickle_enums_by_name
from tests.trainer.parallel.small import make_config
from tests.trainer.saving import save_state

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


STEPS = 2


def test_what_the_images_python_has_saved_is_read(tmp_path):
    def save() -> None:
        import torch
        import torch.distributed as dist

        pickle_enums_by_name()
        dist.init_process_group("gloo")
        engine, train = _start(pp=2, seed=1)
        train(range(STEPS))
        save_state(engine, tmp_path)
        whole = engine.gather_state()
        held = {"weights": whole, "optimizer": _optimizer_state(engine)}
        torch.save(held | {"next": train(range(STEPS, STEPS + 2))}, tmp_path / f"rank_{dist.get_rank()}.pt")

    def load() -> None:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        engine, train = _start(dp_shard=2, seed=2)
        first, last = (torch.load(tmp_path / f"rank_{rank}.pt") for rank in (0, 1))
        for optimizer in engine.optimizers:
            for group in optimizer.param_groups:
                group["weight_decay"] = 0.5
        fresh = engine.gather_state()
        engine.load(tmp_path)
        groups = [group for optimizer in engine.optimizers for group in optimizer.param_groups]
        assert {group["weight_decay"] for group in groups} == {0.01}, "what it was saved with"
        whole = engine.gather_state()
        if dist.get_rank() == 0:
            weights = first["weights"]
            assert whole.keys() == weights.keys()
            assert all(torch.equal(whole[name], weights[name]) for name in whole)
            # else a load that does nothing would not be seen
            assert any(not torch.equal(fresh[name], weights[name]) for name in whole)
        saved = last["optimizer"] | first["optimizer"]
        held = _optimizer_state(engine)
        assert held and all(torch.equal(value, saved[key]) for key, value in held.items())
        assert train(range(STEPS, STEPS + 2)) == pytest.approx(first["next"], abs=1e-5)

    run_ranks(save, 2)
    assert b"getattr" in (tmp_path / ".metadata").read_bytes(), "torch's own file has an enum"
    run_ranks(load, 2)


def _start(**settings: Any) -> Any:
    """(engine, function that trains the steps it is given and returns their losses)."""
    import torch.distributed as dist

    from tests.trainer.parallel import small
    from tests.trainer.runs import run_of
    from trainer.measuring.phases import Phases
    from trainer.models.decoder_build import build_decoder
    from trainer.strategies import nd

    config = make_config(lr=1e-2, weight_decay=0.01, **settings)
    run = run_of(config)
    engine = nd.build(run, build_decoder(config, empty=True), Phases("cpu"))

    def train(steps: range) -> list[float]:
        losses = []
        for step in steps:
            batch = small.share_of(config, run.axes.dp, run.axes.dp_rank(int(os.environ["RANK"])), step)
            loss = engine.train_step(batch, config.lr).loss.detach().clone()
            dist.all_reduce(loss)
            losses.append(loss.item())
        return losses

    return engine, train


def _optimizer_state(engine: Any) -> dict[tuple[str, str], Any]:
    """Everything that this rank's optimizers hold, whole, by the names of the whole decoder."""
    import torch
    from torch.distributed.tensor import DTensor

    found = {}
    for stage in engine.stages:
        names = {p: name for name, p in stage.module.named_parameters()}
        for parameter, state in stage.optimizer.state.items():
            for key, value in state.items():
                whole = value.full_tensor() if isinstance(value, DTensor) else torch.as_tensor(value)
                found[names[parameter], key] = whole.clone()
    return found


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
