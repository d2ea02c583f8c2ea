"""What code that reads a value gets where there are no values: the answer of an ordinary step."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class OrdinaryValues(TorchDispatchMode):
    """Answers for fake tensors alone: a mesh reads its ranks from real ones.

    A floating-point number is 1 (a norm, a loss that is finite), a flag false, a count 0.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = args[0] if args else None
        if isinstance(given, FakeTensor) and func is aten._local_scalar_dense.default:
            if given.dtype is torch.bool:
                return False
            return 1.0 if given.is_floating_point() else 0
        return func(*args, **(kwargs or {}))
