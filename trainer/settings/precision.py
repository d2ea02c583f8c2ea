"""Which element types a run computes in, resolved for the device it is on.

| precision   | strategies     | forward, backward | parameters, optimizer state | gradients on the wire |
|-------------|----------------|-------------------|-----------------------------|-----------------------|
| fp32        | all            | fp32              | fp32                        | fp32                  |
| bf16        | all            | autocast bf16     | fp32                        | fp32                  |
| bf16_native | single, ddp    | autocast bf16     | fp32                        | fp32 (same as bf16)   |
| bf16_native | fsdp, hsdp, nd | all in bf16       | fp32, gathered as bf16      | fp32                  |
| bf16_native | zero*, zeropp  | all in bf16       | bf16 with an fp32 copy      | fp32                  |
| fp16        | all, GPU only  | autocast fp16     | fp32                        | fp32, scaled          |

fp32 is all of fp32: TF32 is off, also in cuDNN, where torch has it on.

DeepSpeed's own bf16 makes its fp32 copy from parameters that are bf16 already: these runs start from rounded weights,
and their buffers (running statistics) stay bf16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from trainer.settings.config import Config, ConfigError
from trainer.settings.strategy_table import STRATEGIES


@dataclass(frozen=True)
class Precision:
    """A resolved precision: fp32, bf16, bf16_native or fp16."""

    name: str
    own_recipe: bool = False
    """bf16_native on a strategy that has a recipe of its own; elsewhere bf16_native is bf16."""

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """What autocast computes in, or None where there is no autocast."""
        if self.name == "bf16_native":
            return None if self.own_recipe else torch.bfloat16
        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.name)

    def cast_input(self, given: torch.Tensor) -> torch.Tensor:
        """A model's input in the element type of its parameters; token ids stay whole numbers."""
        return given.bfloat16() if self.own_recipe and given.is_floating_point() else given

    @property
    def scales_loss(self) -> bool:
        """Whether gradients would underflow without a scaled loss."""
        return self.name == "fp16"


def resolve_precision(config: Config, device_type: str) -> Precision:
    """`auto` becomes bf16 where the device has it natively, else fp16 on a GPU; fp32 on a CPU.

    Raises:
        ConfigError: fp16 on a CPU.
    """
    name: str = config.precision
    if name == "auto" and device_type == "cpu":
        name = "fp32"
    elif name == "auto":
        name = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if name == "fp16" and device_type == "cpu":
        raise ConfigError(
            [
                "TRAINER_PRECISION=fp16: needs a GPU, and this is a CPU; use fp32, bf16 or auto, which is fp32 here"
            ]
        )
    return Precision(name, own_recipe=name == "bf16_native" and STRATEGIES[config.strategy].own_bf16_recipe)


def apply_whole_fp32() -> None:
    """Switches TF32 off in matrix products and convolutions, which are to keep the 23 bits that fp32 has.

    cuDNN has it on unless told otherwise (torch 2.13, `torch.backends.cudnn.allow_tf32`), and some images switch it on
    for cuBLAS too (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1).
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def uses_tf32() -> bool:
    """Whether any product of fp32 numbers may be computed with 10 bits."""
    return torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32


@dataclass
class LossScale:
    """Dynamic loss scaling with the rules and constants of torch.amp.GradScaler, from the global gradient norm.

    One object for every strategy: the norm is the same number on all ranks, so they skip and back off together.
    DeepSpeed's own scaler for autocast is not used: after a skipped step it never lowers its scale, and its norm
    stays scaled (deepspeed 0.19.8, stage_1_and_2.py and stage3.py, `torch_autocast_gradscaler`).
    """

    enabled: bool
    scale: float = field(default=2.0**16)
    good_steps: int = 0

    GROWTH = 2.0
    BACKOFF = 0.5
    INTERVAL = 2000

    def __post_init__(self) -> None:
        if not self.enabled:
            self.scale = 1.0

    def update(self, skipped: bool) -> None:
        """After a step: halve after a skipped one, double after 2000 good ones."""
        if not self.enabled:
            return
        if skipped:
            self.scale, self.good_steps = self.scale * self.BACKOFF, 0
        elif self.good_steps + 1 == self.INTERVAL:
            self.scale, self.good_steps = self.scale * self.GROWTH, 0
        else:
            self.good_steps += 1

    def must_skip(self, norm: float) -> bool:
        """Whether an update with gradients of this norm must be left out."""
        return self.enabled and not math.isfinite(norm)

    def state(self) -> torch.Tensor:
        """What a checkpoint keeps: (scale, good steps) as float64."""
        return torch.tensor([self.scale, self.good_steps], dtype=torch.float64)

    def load(self, state: torch.Tensor) -> None:
        """The counterpart of `state`."""
        self.scale, self.good_steps = float(state[0]), int(state[1])
