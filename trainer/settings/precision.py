"""Which element types a run computes in, resolved for the device it is on.

| precision   | strategies    | products, stream | norms | weights, state | gathered            | reduced      |
|-------------|---------------|------------------|-------|----------------|---------------------|--------------|
| fp32        | all           | fp32             | fp32  | fp32           | fp32                | fp32         |
| bf16        | all           | bf16             | fp32  | fp32           | products' bf16 (*)  | fp32         |
| fp16        | all, GPU only | fp16             | fp32  | fp32           | products' fp16 (*)  | fp32, scaled |
| bf16_native | zero*, zeropp | bf16             | bf16  | bf16 and fp32  | bf16                | fp32         |

(*) Weights that enter products are gathered in their type, all others in fp32.

How a model computes in 16 bits: trainer/models/low_precision.py. The exception: zero1 and zero2 hold all parameters in
fp32 on every rank, and gather them in fp32 after the update (DeepSpeed gathers in the type that it holds).

bf16_native is DeepSpeed's own recipe (its section `bf16`). Its fp32 copy is made from parameters that are bf16
already: these runs start from rounded weights, and their buffers (running statistics) stay bf16. Elsewhere it would be
another name for bf16.

Reduced in fp32 unless the setting reduce_dtype says bf16.

fp32 is all of fp32: TF32 is off, also in cuDNN, where torch has it on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from trainer.settings.config import Config, ConfigError, NotFinite

REDUCED = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Of the setting reduce_dtype."""


@dataclass(frozen=True)
class Precision:
    """A resolved precision: fp32, bf16, bf16_native or fp16."""

    name: str

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """What autocast computes in, or None where there is no autocast."""
        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.name)

    @property
    def products_dtype(self) -> torch.dtype:
        """What products are computed in."""
        return torch.bfloat16 if self.name == "bf16_native" else self.autocast_dtype or torch.float32

    @property
    def teacher_dtype(self) -> torch.dtype | None:
        """Of the products of a network that is not trained, and of their weights; None = fp32."""
        return None if self.products_dtype == torch.float32 else self.products_dtype

    def cast_input(self, given: torch.Tensor) -> torch.Tensor:
        """A model's input in the element type of its parameters; token ids stay whole numbers."""
        return given.bfloat16() if self.name == "bf16_native" and given.is_floating_point() else given

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
    return Precision(name)


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

    It has a floor, as DeepSpeed's (min_loss_scale 1) and unlike torch's: from 65536 the 17th step in a row that is
    skipped ends the run, which would skip all others as well.

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
    FLOOR = 1.0
    """A lower scale would make gradients smaller than they are."""

    def __post_init__(self) -> None:
        if not self.enabled:
            self.scale = 1.0

    def update(self, skipped: bool) -> None:
        """After a step: halve after a skipped one, double after 2000 good ones.

        Raises:
            NotFinite: a step was skipped at the lowest scale.
        """
        if not self.enabled:
            return
        if skipped and self.scale <= self.FLOOR:
            raise NotFinite(
                f"gradients in fp16 are not finite at a loss scale of {self.FLOOR:g} either, the lowest: the model has "
                "diverged, or needs a wider range; lower TRAINER_LR, or take TRAINER_PRECISION=bf16 or fp32"
            )
        if skipped:
            self.scale, self.good_steps = self.scale * self.BACKOFF, 0
        elif self.good_steps + 1 == self.INTERVAL:
            self.scale, self.good_steps = self.scale * self.GROWTH, 0
        else:
            self.good_steps += 1

    def take_out(self, gradients: list[torch.Tensor], norm: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """Takes the scale out of gradients, in place, and of their norm, and adapts to it; (norm, whether the update
        must be left out). The host waits for the norm; without a scale nothing happens.

        Args:
            gradients: this rank's parts.
            norm: of the whole scaled gradient, the same on every rank.
        """
        if not self.enabled:
            return norm, False
        norm = norm / self.scale
        torch._foreach_mul_(gradients, 1.0 / self.scale)
        skip = self.must_skip(float(norm))
        self.update(skip)
        return norm, skip

    def must_skip(self, norm: float) -> bool:
        """Whether an update with gradients of this norm must be left out."""
        return self.enabled and not math.isfinite(norm)

    def state(self) -> torch.Tensor:
        """What a checkpoint keeps: (scale, good steps) as float64."""
        return torch.tensor([self.scale, self.good_steps], dtype=torch.float64)

    def load(self, state: torch.Tensor) -> None:
        """The counterpart of `state`."""
        self.scale, self.good_steps = float(state[0]), int(state[1])
