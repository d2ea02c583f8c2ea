"""DeepSpeed's engine behind the lab's contract: it owns backward and update, and reduces means instead of sums."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from trainer.checkpoint.staging import Staging
from trainer.data.batches import Batch
from trainer.engine import Snapshot, StepResult, add_up, as_sums, build_result
from trainer.engines import deepspeed_state
from trainer.engines.deepspeed_snapshot import take_snapshot
from trainer.engines.flops_profile import profile_flops
from trainer.hangs.pulse import STEP
from trainer.measuring.deepspeed_shards import list_shards
from trainer.measuring.observation import Observed, state_tensors
from trainer.measuring.phases import Phases
from trainer.models.loss_scale import LossScale
from trainer.run import Run


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
