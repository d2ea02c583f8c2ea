"""Which element types a run computes in, resolved for the device it is on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.config import Config


@dataclass(frozen=True)
class Precision:
    """A resolved precision: fp32, bf16, bf16_native or fp16."""

    name: str

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """What autocast computes in, or None where there is no autocast."""
        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.name)


def resolve_precision(config: Config, device_type: str) -> Precision:
    """`auto` becomes bf16 where the device has it natively, else fp16 on a GPU; fp32 on a CPU."""
    if config.precision != "auto":
        return Precision(config.precision)
    if device_type == "cpu":
        return Precision("fp32")
    return Precision("bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16")
