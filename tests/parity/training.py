"""One rank that trains cases and keeps what is compared: losses, gradient norms, first-step gradients."""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests.parity import teachers
from tests.parity.cases import GLOBAL_BATCH, Case, processes_per_node

STEPS = {"sgd": 2, "adamw": 6}
"""Rounding errors in the state of Adam take some steps to show."""
IMAGE_SIZE = 16
RATE, LATER_RATE = 0.5, 1 / 32
"""Of SGD's first step, large so that the gradient can be read off the weights, and of the steps after it."""


@dataclass(frozen=True)
class Training:
    """One case to train, sound or with a fault; what is found goes to `<name>.pt`."""

    name: str
    case: Case
    plant: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def world_size(self) -> int:
        return self.case.world_size


def train(trainings: Sequence[Training], out: Path) -> None:
    """One after the other in one process group; rank 0 writes."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for training in trainings:
        case = training.case
        local_size = str(processes_per_node(case.strategy, case.world_size))
        with mock.patch.dict(os.environ, LOCAL_WORLD_SIZE=local_size), _few_layers(), training.plant():
            found = _train(case)
        if dist.get_rank() == 0:
            torch.save(found, out / f"{training.name}.pt")
        dist.barrier()


def _few_layers() -> AbstractContextManager[Any]:
    """Two: what happens between layers happens, and what a layer costs the host is paid half as often."""
    from stratlab_spec.models.model_specs import VIT

    return mock.patch.dict(VIT, vit_tiny=dataclasses.replace(VIT["vit_tiny"], layers=2))


@functools.cache
def _open_digits() -> Any:
    """The same for every case: read once per rank."""
    from stratlab_spec.settings.config import Config
    from trainer.data import open_data

    return open_data(Config(run="parity", dataset="digits"), IMAGE_SIZE)


def _train(case: Case) -> dict[str, Any]:
    """Losses, norms, and {parameter: gradient} of the first step, on rank 0.

    The gradient is what the first step of SGD takes away from the weights, divided by the rate: so it is the one that
    was applied, whoever owns it. After a step of Adam it cannot be told any more; there it stays empty. `resolution` is
    how finely it can be read there: the distance to the next weight that fp32 can hold, divided by the rate.
    """
    import torch
    import torch.distributed as dist

    engine, next_batch, config = _build(case)
    is_sgd = config.optimizer == "sgd"
    before = {name: value.clone() for name, value in engine.gather_state().items()} if is_sgd else {}
    losses, norms, gradients, resolution = [], [], {}, {}
    for step in range(1, STEPS[config.optimizer] + 1):
        lr = LATER_RATE if is_sgd and step > 1 else config.lr
        result = engine.train_step(next_batch(step), lr)
        assert result.samples == GLOBAL_BATCH and result.skipped == 0
        loss = result.loss.clone()
        dist.all_reduce(loss)
        losses.append(float(loss))
        norms.append(float(result.grad_norm))
        if step == 1 and is_sgd:
            after = engine.gather_state()
            gradients = {n: (before[n] - after[n]) / lr for n in after if after[n].is_floating_point()}
            larger = {n: torch.maximum(before[n].float().abs(), after[n].float().abs()) for n in gradients}
            resolution = {n: (torch.nextafter(w, w + 1) - w) / lr for n, w in larger.items()}
    engine.close()
    return {"losses": losses, "norms": norms, "gradients": gradients, "resolution": resolution}


def _build(case: Case) -> tuple[Any, Callable[[int], Any], Any]:
    from stratlab_spec.settings.config import Config
    from tests.quantizer_stand_in import load_stand_in
    from tests.trainer.runs import run_of
    from trainer.data.batches import SampleOrder, Share, build_batch
    from trainer.measuring.phases import Phases
    from trainer.models import build_model
    from trainer.strategies import build_engine, builds_empty

    sizes = {"run": "parity", "image_size": IMAGE_SIZE, "global_batch_size": GLOBAL_BATCH}
    config = Config(**sizes | {"optimizer": "sgd", "lr": RATE, "weight_decay": 0.0} | case.settings())
    rank, local_size = int(os.environ["RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    run = run_of(config, per_node=local_size)
    data = _open_digits()
    model = build_model(
        config, image_size=IMAGE_SIZE, channels=1, num_labels=10, empty=builds_empty(config, rank)
    )
    model.teacher = teachers.build_teacher(config, IMAGE_SIZE, run.precision.teacher_dtype)
    stand_in = mock.patch("trainer.strategies.zero.load_quantizer", load_stand_in)  # no CPU has the kernel
    with stand_in, _forced_gathers(case.strategy) if case.force_gathers else nullcontext():
        engine = build_engine(run, model, Phases("cpu"))
    order = SampleOrder(config.seed, len(data.train))
    share = Share(rank, run.axes.dp)

    def next_batch(step: int) -> Any:
        return build_batch(data.train, order, step, config, share, "cpu")

    return engine, next_batch, config


def _forced_gathers(strategy: str) -> AbstractContextManager:
    """Without it DeepSpeed keeps every parameter of a small model, and its stage 3 gathers nothing."""
    from trainer.engines.deepspeed_config import FORCED_GATHERS, ZERO

    return mock.patch.dict(ZERO, {strategy: ZERO[strategy] | FORCED_GATHERS})
