"""Two steps of a run's own engine, on nothing, and what they held."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trainer import strategies
from trainer.counting.answers import OrdinaryValues
from trainer.counting.causes import (
    attribute_gradients,
    attribute_optimizer,
    attribute_state,
    attribute_teacher,
    attributed,
)
from trainer.counting.cuda_rules import as_on_cuda
from trainer.counting.host_memory import move_to_host
from trainer.counting.inputs import Pictures, build_empty_model, build_empty_teacher, build_micro_batch
from trainer.counting.one_process import alone
from trainer.counting.result import Count
from trainer.counting.storages import StorageWatch
from trainer.counting.waits import WaitWatch
from trainer.data.batches import Batch
from trainer.layout.world import World
from trainer.measuring.phases import Phase, Phases
from trainer.models.decoder import restore_buffers
from trainer.models.teacher import Teacher, place_teacher
from trainer.run import build_run, resolve_placement
from trainer.settings.config import Config
from trainer.settings.precision import resolve_precision
from trainer.settings.strategy_table import STRATEGIES
from trainer.strategies.sharding import tie_weights

BLOCK_BYTES = 512
"""Of CUDA's caching allocator (c10/core/AllocatorConfig.h, kMinBlockSize): every size is rounded up to whole blocks."""
STEPS = 2
"""The first one makes the optimizer's state, so the second one is counted, and each further one of another batch."""

Say = Callable[[str], None]


class _WatchedPhase(Phase):
    """Tells the watch where the step is; phases may lie in each other."""

    __slots__ = ("_before", "_leave", "_watch")

    def __init__(self, label: str, watch: StorageWatch, leave: Callable[[str], None]) -> None:
        super().__init__(label)
        self._watch, self._leave = watch, leave
        self._before: list[str] = []

    def __enter__(self) -> None:
        self._before.append(self._watch.phase)
        self._watch.begin(self.label)

    def __exit__(self, *_: Any) -> None:
        self._leave(self.label)
        self._watch.begin(self._before.pop())


class _WatchedPhases(Phases):
    def __init__(self, watch: StorageWatch, leave: Callable[[str], None]) -> None:
        super().__init__("cpu")
        for name in ("data", "forward", "backward", "optimizer"):
            setattr(self, name, _WatchedPhase(name, watch, leave))


def count(config: Config, ranks: int, rank: int, pictures: Pictures, **more: Any) -> Count:
    """As `count_batches`, of one run."""
    (found,) = count_batches([config], ranks, rank, pictures, **more)
    return found


def count_batches(
    configs: Sequence[Config],
    ranks: int,
    rank: int,
    pictures: Pictures,
    *,
    per_node: int = 0,
    cuda: bool = True,
    block_bytes: int = BLOCK_BYTES,
    begin: Say = lambda text: None,
    say: Say = lambda text: None,
) -> list[Count]:
    """What rank `rank` of `ranks` holds in a step of each of these runs, behind a first one.

    They share one engine, for what it keeps from step to step does not know the batch. (A pipeline's stages do: they
    take the shapes of their first micro-batch.)

    Args:
        configs: equal but for micro_batch_size, and global_batch_size so that the micro-batches are as many.
        per_node: ranks that share a node; 0 = all.
        cuda: with CUDA's autocast and attention; else a CPU's, to compare with one.
        begin: hears what begins: building the model, wrapping it, each step.
        say: hears how far it is, at each phase.

    Raises:
        ConfigError: settings that cannot run (trainer/counting/rules.py).
        DataMissing: a model whose shape is not to be had.
    """
    began = time.perf_counter()
    per_node = per_node or ranks
    configs = [as_counted(config) for config in configs]
    config, found = configs[0], list[Count]()
    world = _on_cpu(ranks, rank, per_node)
    placement = resolve_placement(config, world)
    micro_batches = config.global_batch_size // (config.micro_batch_size * placement.axes.dp)
    assert all(
        each.global_batch_size // (each.micro_batch_size * placement.axes.dp) == micro_batches
        for each in configs
    )
    watch, place = StorageWatch(block_bytes), ["building"]
    waits = WaitWatch()
    engines: list[Any] = []

    def leave(phase: str) -> None:
        if phase == "backward" and engines:
            attribute_gradients(watch, engines[0])
            move_to_host(watch, engines[0], config.offload)
        say(f"{place[-1]}: {phase}, {watch.operators:,} operators")

    with ExitStack() as stack:
        stack.enter_context(alone(config, ranks, rank, per_node))
        stack.enter_context(attributed(watch, config.strategy))
        precision = resolve_precision(config, "cuda")
        run = build_run(config, world, placement, precision, config.global_batch_size)
        begin("building the model")
        model = build_empty_model(config, pictures)
        teacher = build_empty_teacher(config, pictures) if placement.axes.computes_loss(rank) else None
        if STRATEGIES[config.strategy].deepspeed_stage == 3 and config.precision == "bf16_native":
            model.to(
                torch.bfloat16
            )  # as DeepSpeed's path does next, where fake parameters cannot be swapped any more
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(OrdinaryValues())
        _fill(model, config)
        if teacher is not None:
            _allocate(teacher)
            placed = place_teacher(teacher, "cpu", precision.teacher_dtype)
            model.teacher = Teacher(placed, config.distil_temperature, config.distil_weight)
        if cuda:
            stack.enter_context(as_on_cuda(watch))
        stack.enter_context(watch)
        begin(f"building the engine of {config.strategy}")
        engine = strategies.build_engine(run, model, _WatchedPhases(watch, leave))
        if model.teacher:
            attribute_teacher(watch, model.teacher)
        del model, teacher
        engines.append(engine)
        attribute_state(watch, engine)
        move_to_host(watch, engine, config.offload)
        steps = [config] * (STEPS - 1) + configs
        for number, config in enumerate(steps, 1):
            place.append(f"step {number} of {len(steps)}")
            begin(place[-1])
            watch.collectives.clear()
            mark = len(watch.timeline.events)
            watch.begin("data")
            micro = [build_micro_batch(config, pictures) for _ in range(micro_batches)]
            watch.begin("between")
            batch = Batch(micro, config.global_batch_size, config.global_batch_size)
            waits.found.clear()
            with waits:
                engine.train_step(batch, config.lr)
            del micro, batch
            attribute_optimizer(watch, engine)
            move_to_host(watch, engine, config.offload)
            if number >= STEPS:
                found.append(
                    Count(
                        config=config,
                        ranks=ranks,
                        rank=rank,
                        per_node=per_node,
                        axes=placement.axes,
                        micro_batches=micro_batches,
                        cuda=cuda,
                        block_bytes=block_bytes,
                        peak=watch.timeline.peak(mark),
                        between=watch.timeline.moment(mark),
                        gathered=watch.timeline.peak(mark, "gathered"),
                        windows=watch.timeline.windows(mark),
                        host=watch.timeline.host_peak(mark),
                        collectives=dict(watch.collectives),
                        waits=dict(waits.found),
                        operators=watch.operators,
                        seconds=time.perf_counter() - began,
                    )
                )
        engine.close()
        engines.clear()
        del engine
    gc.collect()  # engines refer to themselves; the next count of this process should not carry this one along
    return found


def _on_cpu(ranks: int, rank: int, per_node: int) -> World:
    """The world of this rank, whose tensors are on no device."""
    return World(
        rank=rank,
        local_rank=rank % per_node,
        size=ranks,
        local_size=per_node,
        device_type="cpu",
        device="cpu",
        device_name="",
        host="",
    )


def as_counted(config: Config) -> Config:
    """`auto` as what it is on a GPU of today, and no weights to be read: they make no difference to memory."""
    precision = "bf16" if config.precision == "auto" else config.precision
    return config.model_copy(update={"precision": precision, "init": "scratch"})


def _fill(model: nn.Module, config: Config) -> None:
    """Gives the model (fake) memory where the strategy wants a whole one. It cannot be built in memory: the image
    models' initialisation draws numbers until they fit, which looks at values."""
    if STRATEGIES[config.strategy].builds_empty == "nobody":
        _allocate(model)


def _allocate(model: nn.Module) -> None:
    model.to_empty(device="cpu")
    tie_weights(model)
    restore_buffers(model, "cpu")
