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

from dataclasses import dataclass

import torch

from trainer.settings.config import Config, ConfigError

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
                "TRAINER_PRECISION=fp16: needs a GPU, and this is a CPU; use fp32, bf16 or auto, which is fp32 here "
                "[SL-fp16-cpu]"
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
