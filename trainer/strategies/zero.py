"""zero2: DeepSpeed ZeRO stage 2. Gradients and optimizer state in shards, parameters whole on every rank.

Sharded: gradients and optimizer state, by equal parts of one flat vector.
Collectives per step: a reduce of each gradient bucket to its owner in every backward pass, one all-gather of the
updated parameters. 2 (n-1)/n of the parameters' bytes, as with ddp.

    dp_shard ─▶  ┌────────┐ ┌────────┐ ┌────────┐
                 │ P      │ │ P      │ │ P      │
                 │ G/3 O/3│ │ G/3 O/3│ │ G/3 O/3│
                 └────────┘ └────────┘ └────────┘
                      └─ reduce G to owners, all-gather P ─┘
"""

from __future__ import annotations

import functools
import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from trainer.config import Config
from trainer.data.batches import Batch
from trainer.engine import Engine, StepResult, sample_loss
from trainer.observation import Observed, state_tensors
from trainer.phases import Phases
from trainer.precision import Precision

# Every value that DeepSpeed would otherwise choose by itself (deepspeed 0.19.8).
ZERO: dict[str, dict[str, Any]] = {
    "zero2": {
        "stage": 2,
        "contiguous_gradients": True,
        "overlap_comm": False,
        "reduce_scatter": True,
        "allgather_partitions": True,
        "round_robin_gradients": False,
    },
}
BUCKET_ELEMENTS = 50_000_000


def deepspeed_config(
    config: Config, world_size: int, parameters: int, device_type: str, precision: Precision
) -> dict[str, Any]:
    """DeepSpeed's configuration with nothing left to its defaults.

    `gradient_clipping` matters most: left out it is 1.0 (deepspeed/runtime/constants.py, upstream #8068).
    An unknown key is ignored silently, so this dictionary is never merged with anything typed by a user.
    """
    bucket = min(BUCKET_ELEMENTS, parameters)
    betas = {"betas": [0.9, 0.999], "eps": 1e-8}
    adamw = {
        "lr": config.lr,
        "weight_decay": config.weight_decay,
        **betas,
        "torch_adam": device_type == "cpu",
    }
    sgd = {"lr": config.lr, "weight_decay": config.weight_decay, "momentum": 0.0}
    is_adamw = config.optimizer == "adamw"
    return {
        "train_batch_size": config.global_batch_size,
        "train_micro_batch_size_per_gpu": config.micro_batch_size,
        "gradient_accumulation_steps": config.global_batch_size // (config.micro_batch_size * world_size),
        "gradient_clipping": config.clip_norm,
        "prescale_gradients": False,
        "gradient_predivide_factor": 1.0,
        "communication_data_type": "fp32",
        "steps_per_print": 2**31,
        "wall_clock_breakdown": False,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            **ZERO[config.strategy],
            "allgather_bucket_size": bucket,
            "reduce_bucket_size": bucket,
        },
        "optimizer": {"type": "AdamW" if is_adamw else "SGD", "params": adamw if is_adamw else sgd},
        # the one bf16 recipe that is the same on every strategy: parameters stay fp32
        "torch_autocast": {"enabled": precision.name == "bf16", "dtype": "bfloat16"},
        "fp16": {"enabled": False},
        "bf16": {"enabled": False},
    }


def build(config: Config, mesh: DeviceMesh, model: nn.Module, phases: Phases, precision: Precision) -> Engine:
    """The model under ZeRO over all processes; the axis is dp_shard."""
    device_type = mesh.device_type
    if device_type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed
    import deepspeed.ops

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if device_type == "cpu":
        # compiled at every first start and used for inference only; a stale lock in its cache hangs for ever
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    parameters = sum(p.numel() for p in model.parameters())
    settings = deepspeed_config(config, mesh["dp_shard"].size(), parameters, device_type, precision)
    whole = torch.distributed.new_group
    try:
        # the timeout given to the process group does not reach DeepSpeed's sub-groups (TorchBackend.new_group)
        timeout = timedelta(seconds=config.collective_timeout_s)
        torch.distributed.new_group = functools.partial(whole, timeout=timeout)
        deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
        trainable = [p for p in model.parameters() if p.requires_grad]
        engine, *_ = deepspeed.initialize(
            model=model.to(device_type), config=settings, model_parameters=trainable
        )
    finally:
        torch.distributed.new_group = whole
    return DeepSpeedEngine(engine, phases)


class DeepSpeedEngine:
    """DeepSpeed's engine behind the same contract; it owns backward and update."""

    def __init__(self, engine: Any, phases: Phases) -> None:
        self.observed = Observed()
        self.module = engine.module
        self._engine = engine
        self._phases = phases
        accumulation = engine.gradient_accumulation_steps()
        # its backward divides by the accumulation and its reduction by the world size: undo both
        self._loss_factor = accumulation * engine.dp_world_size

    def train_step(self, batch: Batch, lr: float) -> StepResult:
        engine, phases, last = self._engine, self._phases, len(batch.micro) - 1
        skipped_before = engine.skipped_steps
        total = None
        for i, (images, labels) in enumerate(batch.micro):
            with phases.forward:
                loss = sample_loss(engine(images), labels, batch.global_samples)
            with phases.backward:
                engine.backward(loss * self._loss_factor)
            total = loss.detach() if total is None else total + loss.detach()
            if i < last:
                engine.step()  # counts the micro-batch, updates nothing
        assert total is not None, "a batch without micro-batches"
        first = not self.observed.dtypes
        if first:
            self._observe_gradients()
        with phases.optimizer:
            for group in engine.optimizer.param_groups:
                group["lr"] = lr
            engine.step()
        if first:
            self.observed.add("optimizer", state_tensors(engine.optimizer.optimizer))
        skipped = engine.skipped_steps - skipped_before
        return StepResult(total, engine.get_global_grad_norm(), batch.global_samples, skipped)

    def _observe_gradients(self) -> None:
        optimizer, module = self._engine.optimizer, self._engine.module
        masters = list(optimizer.single_partition_of_fp32_groups)
        self.observed.add("parameters", [*module.parameters(), *masters])
        held = [p.grad for p in module.parameters() if p.grad is not None]
        for parts in optimizer.averaged_gradients.values():
            held += [part for part in parts or [] if part is not None]
        self.observed.add("gradients", held)

    def evaluate(self, images: Tensor) -> Tensor:
        self._engine.eval()
        with torch.no_grad():
            logits = self._engine(images)
        self._engine.train()
        return logits

    def save(self, folder: Path) -> None:
        raise NotImplementedError

    def load(self, folder: Path) -> None:
        raise NotImplementedError

    def gather_state(self) -> dict[str, Tensor]:
        raise NotImplementedError

    def close(self) -> None:
        self._engine.destroy()
