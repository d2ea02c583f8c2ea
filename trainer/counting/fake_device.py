"""A fake tensor's device, without asking all modes for it: two of three calls of a step of ZeRO-3 (torch 2.13)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def asks_for_device(func: Any, args: Any) -> bool:
    """Whether a mode is called for no operator but for `device` of a fake tensor, `args[0]`."""
    return (
        func is torch.ops.prim.device.default
        and isinstance(args[0], FakeTensor)
        and not args[0].fake_mode.in_kernel_invocation  # torch answers "meta" then
    )


def is_on_meta(tensor: Tensor) -> bool:
    """Whether a tensor is on the meta device: one without memory of any kind."""
    device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
    return device.type == "meta"
