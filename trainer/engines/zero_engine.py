"""DeepSpeed's engine behind the lab's contract: it owns backward and update, and reduces means instead of sums.

DeepSpeed's flops profiler around one forward pass, on one rank.

Its own switch (flops_profiler.enabled) would time every phase of every micro-batch too, wait for the device each time
and print that to the end of the run (deepspeed 0.19.8: it turns wall_clock_breakdown on). So DeepSpeed is given the
section with the switch off, and its profiler is called here.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from trainer.checkpoint.state import Staging
from trainer.data.batches import Batch
from trainer.engine import Snapshot, StepResult, add_up, as_sums, build_result
from trainer.engines import deepspeed_checkpoint as deepspeed_state
from trainer.engines.deepspeed_checkpoint import take_snapshot
from trainer.hang_detection.heartbeat import STEP
from trainer.measuring.held_tensors import Observed, list_shards, state_tensors
from trainer.measuring.phases import Phases
from trainer.models.mixed_precision import LossScale
from trainer.run import Run

log = logging.getLogger("trainer")


@contextmanager
def profile_flops(engine: Any, step: int, path: Path) -> Iterator[None]:
    """Counts the operations of the forward pass inside, by module, into a text file. What goes wrong costs the file.

    Functions of torch are replaced meanwhile, and every module has hooks that wait for the device.

    Args:
        engine: DeepSpeed's, with its settings.
        step: told in the file.
    """
    from deepspeed.profiling.flops_profiler.profiler import FlopsProfiler

    profiler = FlopsProfiler(engine.module, engine, engine.flops_profiler_recompute_fwd_factor())
    profiler.start_profile()
    try:
        yield
        profiler.stop_profile()
        _write(_describe(profiler, engine, step), path)
    finally:
        profiler.end_profile()


def _describe(profiler: Any, engine: Any, step: int) -> str:
    """What it prints, "" where it cannot."""
    text = io.StringIO()
    try:
        with redirect_stdout(text):
            profiler.print_model_profile(
                step,
                engine.flops_profiler_module_depth(),
                engine.flops_profiler_top_modules(),
                engine.flops_profiler_detailed(),
            )
    except Exception as failure:  # its arithmetic, of somebody's model: a text less, and no step of training
        log.warning("DeepSpeed's flops profiler could not tell its counts: %r", failure)
        return ""
    return text.getvalue()


def _write(text: str, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        if text:
            temporary.write_text(text)
            os.replace(temporary, path)
    except OSError as failure:
        log.warning("%s is dropped, training goes on: %s", path.name, failure)


class DeepSpeedEngine:
    """ZeRO stage 1 to 3.

    Args:
        engine: of `deepspeed.initialize`.
        settings: what it was initialised with.
    """

    def __init__(self, run: Run, engine: Any, phases: Phases, settings: dict[str, Any]) -> None:
        self.observed = Observed()
        self.module = engine.module
        self.settings = settings
        self._engine = engine
        self._phases = phases
        self._precision = run.precision
        self._staging = Staging()
        self._pulse = run.pulse
        self._flops_file = run.folder.flops_profiler if run.config.flops_profiler and run.writes else None
        # its backward divides by the accumulation and its reduction by the world size: undo both
        self._loss_factor = engine.gradient_accumulation_steps() * engine.dp_world_size
        self.loss_scale = LossScale(run.precision.scales_loss)
        engine.optimizer.torch_autocast_gradscaler = None  # see LossScale

    def train_step(self, batch: Batch, lr: float) -> StepResult:
        engine, phases, last = self._engine, self._phases, len(batch.micro) - 1
        skipped_before = engine.skipped_steps
        if self.loss_scale.enabled:
            engine.optimizer.override_loss_scale(self.loss_scale.scale)
        total = counted = None
        for i, (inputs, labels) in enumerate(batch.micro):
            with phases.forward, self._count_flops():
                whole, measures = engine(self._precision.cast_input(inputs), labels)
                loss = whole / batch.global_labels
            with phases.backward:
                engine.backward(loss * self._loss_factor)
            total, counted = add_up(total, loss.detach()), add_up(counted, measures)
            if i < last:
                engine.step()  # counts the micro-batch, updates nothing
        assert total is not None, "a batch without micro-batches"
        first = "parameters" not in self.observed.dtypes
        if first:
            self._observe()
        with phases.optimizer:
            for group in engine.optimizer.param_groups:
                group["lr"] = lr
            engine.step()
        if first:
            self.observed.add("optimizer", state_tensors(engine.optimizer.optimizer))
        skipped = engine.skipped_steps - skipped_before
        self.loss_scale.update(bool(skipped))
        return build_result(batch, total, counted, engine.get_global_grad_norm(), skipped)

    def _count_flops(self) -> AbstractContextManager[None]:
        """Of the first micro-batch of the first step that the profiler sees; nothing otherwise."""
        if self._flops_file is None or not self._phases.step.recording:
            return nullcontext()
        path, self._flops_file = self._flops_file, None
        return profile_flops(self._engine, self._pulse.words[STEP], path)

    def _observe(self) -> None:
        """Parameters with their fp32 copies, and the gradients, between backward and update."""
        optimizer, parameters = self._engine.optimizer, list(self._engine.module.parameters())
        masters = getattr(optimizer, "fp32_partitioned_groups_flat", None)  # stage 3
        if masters is None:
            masters = optimizer.single_partition_of_fp32_groups
        self.observed.add("parameters", [*parameters, *list_shards(parameters), *masters])
        held = [p.grad for p in (*parameters, *masters) if p.grad is not None]
        for parts in optimizer.averaged_gradients.values():
            held += [part for part in parts or [] if part is not None]
        self.observed.add("gradients", held)
        filled = getattr(optimizer, "ipg_buckets", {}).values()
        made = [t for bucket in filled for t in tree_iter(vars(bucket)) if torch.is_tensor(t)]
        known = {
            tensor.untyped_storage().data_ptr() for tensor in held
        }  # a bucket may hold gradients for good
        if buckets := [t for t in made if t.untyped_storage().data_ptr() not in known]:
            self.observed.add("buckets", buckets)

    def evaluate(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self._engine.eval()
        with torch.no_grad():
            sums = as_sums(*self._engine(self._precision.cast_input(inputs), labels))
        self._engine.train()
        return sums

    def snapshot(self) -> Snapshot:
        return take_snapshot(self._staging, self._engine, self.loss_scale)

    def load(self, folder: Path) -> None:
        deepspeed_state.load(self._engine, self.loss_scale, folder)

    def gather_state(self) -> dict[str, Tensor]:
        return deepspeed_state.gather(self._engine)

    def close(self) -> None:
        self._engine.destroy()
