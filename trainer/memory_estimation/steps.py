"""Run two steps of a run's own engine on fake tensors, and count the memory that they held.

    settings ─▶ model, batch without data ─▶ engine ─▶ step 1 makes the optimizer's state ─▶ step 2 is counted

Code that reads a value gets the value of an ordinary step. Tensors that a strategy keeps in host memory (`offload`)
are recognized by their place in the engine, because a count has no device.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from stratlab_spec.models.model_specs import default_image_size
from stratlab_spec.models.pictures import MIXED, Pictures
from stratlab_spec.models.teacher import teacher_config
from stratlab_spec.plan import resolve_plan
from stratlab_spec.settings.config import Config
from stratlab_spec.strategies import STRATEGIES
from trainer import strategies
from trainer.data.batches import Batch
from trainer.distributed.world import World, resolve_precision
from trainer.measuring.phases import Phase, Phases
from trainer.memory_estimation.causes import (
    attribute_gradients,
    attribute_optimizer,
    attribute_state,
    attribute_teacher,
    attributed,
    list_masters,
    list_states,
    optimizer_of_deepspeed,
)
from trainer.memory_estimation.fake_cluster import alone, as_on_cuda
from trainer.memory_estimation.storages import StorageWatch, WaitWatch
from trainer.memory_estimation.timeline import Count
from trainer.models import build_model
from trainer.models.decoder import restore_buffers
from trainer.models.decoder_build import build_decoder
from trainer.models.model_with_loss import Learner
from trainer.models.teacher import Teacher, place_teacher
from trainer.run import build_run
from trainer.strategies.fsdp import tie_weights

aten = torch.ops.aten


class OrdinaryValues(TorchDispatchMode):
    """Answer reads of fake tensors only: a mesh reads its ranks from real ones.

    A floating-point number is 1 (a norm, a loss that is finite), a flag false, a count 0.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = args[0] if args else None
        if isinstance(given, FakeTensor) and func is aten._local_scalar_dense.default:
            if given.dtype is torch.bool:
                return False
            return 1.0 if given.is_floating_point() else 0
        return func(*args, **(kwargs or {}))


def build_empty_model(config: Config, pictures: Pictures) -> Learner:
    """Return the run's model on the meta device.

    Raises:
        ConfigError, DataMissing: a model that cannot be built, or whose shape is not available.
    """
    if config.is_text:
        return build_decoder(config, empty=True)
    edge = config.image_size or default_image_size(config)
    return build_model(
        config, image_size=edge, channels=pictures.channels, num_labels=pictures.labels, empty=True
    )


def build_micro_batch(config: Config, pictures: Pictures) -> tuple[Tensor, Tensor]:
    """Return (inputs, labels) as the run's data gives them, m rows: images float [m, channel, edge, edge] with int64
    [m] or float [m, class], text int64 [m, 2, token] with int64 [m, token].
    """
    m = config.micro_batch_size
    if config.is_text:
        inputs = torch.zeros((m, 2, config.seq_len), dtype=torch.int64)
        return inputs, torch.zeros((m, config.seq_len), dtype=torch.int64)
    edge = config.image_size or default_image_size(config)
    images = torch.zeros((m, pictures.channels, edge, edge))
    if config.augment in MIXED:
        return images, torch.zeros((m, pictures.labels))
    return images, torch.zeros(m, dtype=torch.int64)


OF_DEEPSPEED = (
    *("param_buffer_of_bit16_for_cpu_offload_groups", "temp_grad_buffer_for_cpu_offload"),
    *("accumulated_grads_in_cpu", "grad_partitions_flat_buffer"),
)
"""Attributes of DeepSpeed's optimizers, of stages 1 and 2 and of stage 3, with tensors on its `self.device`: the
host's with offload_optimizer (stage_1_and_2.py, stage3.py, 0.19.8)."""


def move_to_host(watch: StorageWatch, engine: Any, offload: str) -> None:
    """Mark the current storages that are in host memory; do nothing without offload."""
    if offload == "none":
        return
    for tensor in (*list_states(engine), *_list_kept(engine, offload)):
        watch.move_to_host(tensor)


def _list_kept(engine: Any, offload: str) -> Iterator[Any]:
    parameters = list(engine.module.parameters())
    optimizer = optimizer_of_deepspeed(engine)
    if optimizer is None:  # fully_shard's shards, and gradients that are reduced into shards
        yield from parameters
        yield from (parameter.grad for parameter in parameters)
        return
    for master in list_masters(engine):
        yield from (master, master.grad)
    yield from tree_iter([getattr(optimizer, name, None) for name in OF_DEEPSPEED])
    if offload == "all":  # small ones stay on the device (`persistent_elements`)
        yield from (getattr(p, "ds_tensor", None) for p in parameters if not getattr(p, "ds_persist", False))
        yield from (getattr(p, "ds_secondary_tensor", None) for p in parameters)  # hpZ's shards


BLOCK_BYTES = 512
"""Of CUDA's caching allocator (c10/core/AllocatorConfig.h, kMinBlockSize): every size is rounded up to whole blocks."""
STEPS = 2
"""The first one makes the optimizer's state, so the second one is counted, and each further one of another batch."""

Say = Callable[[str], None]


class _WatchedPhase(Phase):
    """Report the current phase to the watch; phases may be nested."""

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
    """Do the same as `count_batches` for one run."""
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
    watch: StorageWatch | None = None,
    begin: Say = lambda text: None,
    say: Say = lambda text: None,
) -> list[Count]:
    """Count the memory of rank `rank` of `ranks` in a step of each of these runs, after a first step.

    The runs share one engine, because its state between steps does not depend on the batch. (A pipeline's stages do:
    they take the shapes of their first micro-batch.) `say` is called with the progress, at each phase.

    Args:
        configs: equal except for micro_batch_size, and for global_batch_size so that the number of micro-batches is
            equal.
        per_node: ranks that share a node; 0 = all.
        cuda: with CUDA's autocast and attention; else a CPU's, to compare with one.
        begin: called at each beginning: building the model, wrapping it, each step.

    Raises:
        ConfigError: settings that cannot run (trainer/memory_estimation/rules.py).
        DataMissing: a model whose shape is not available.
    """
    began = time.perf_counter()
    per_node = per_node or ranks
    configs = [as_counted(config) for config in configs]
    config, found = configs[0], list[Count]()
    world = World(rank, rank % per_node, ranks, per_node, "cpu", "cpu", device_name="", host="")
    plans = [resolve_plan(each, ranks, per_node, each.global_batch_size) for each in configs]
    plan = plans[0]
    (micro_batches,) = {each.micro_batches for each in plans}
    watch, waits = watch or StorageWatch(block_bytes), WaitWatch()
    engine: Any = None
    place = "building"

    def leave(phase: str) -> None:
        if phase == "backward" and engine is not None:
            attribute_gradients(watch, engine)
            move_to_host(watch, engine, config.offload)
        say(f"{place}: {phase}, {watch.operators:,} operators")

    with ExitStack() as stack:
        stack.enter_context(alone(config, ranks, rank, per_node))
        stack.enter_context(attributed(watch, config.strategy))
        precision = resolve_precision(config, "cuda")
        run = build_run(config, world, plan, precision)
        begin("building the model")
        model = build_empty_model(config, pictures)
        teacher = None
        if config.teacher and plan.axes.computes_loss(rank):
            edge = 0 if config.is_text else config.image_size or default_image_size(config)
            # its weights do not affect memory
            asked = teacher_config(config).model_copy(update={"image_size": edge, "init": "scratch"})
            teacher = build_empty_model(asked, pictures)
        if STRATEGIES[config.strategy].deepspeed_stage == 3 and config.precision == "bf16_native":
            # as DeepSpeed's path does next, where fake parameters cannot be swapped any more
            model.to(torch.bfloat16)
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(OrdinaryValues())
        # a whole model cannot be built in memory: the image models' initialisation draws numbers until they fit
        if STRATEGIES[config.strategy].builds_empty == "nobody":
            _allocate(model)
        if teacher is not None:
            _allocate(teacher)
            placed = place_teacher(teacher, "cpu", precision.teacher_dtype)
            model.teacher = Teacher(placed, config.distill_temperature, config.distill_alpha)
        if cuda:
            stack.enter_context(as_on_cuda(watch))
        stack.enter_context(watch)
        begin(f"building the engine of {config.strategy}")
        engine = strategies.build_engine(run, model, _WatchedPhases(watch, leave))
        if model.teacher:
            attribute_teacher(watch, model.teacher)
        del model, teacher
        attribute_state(watch, engine)
        move_to_host(watch, engine, config.offload)
        watch.observe(engine)
        steps = [config] * (STEPS - 1) + configs
        for number, config in enumerate(steps, 1):
            place = f"step {number} of {len(steps)}"
            begin(place)
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
                        axes=plan.axes,
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
        engine = None
    gc.collect()  # engines refer to themselves; otherwise the next count of this process would include this engine
    return found


def as_counted(config: Config) -> Config:
    """Return the settings with `auto` resolved as on a current GPU, and without reading weights, which do not affect
    memory.
    """
    precision = "bf16" if config.precision == "auto" else config.precision
    return config.model_copy(update={"precision": precision, "init": "scratch"})


def _allocate(model: nn.Module) -> None:
    """Give the model (fake) memory."""
    model.to_empty(device="cpu")
    tie_weights(model)
    restore_buffers(model, "cpu")
