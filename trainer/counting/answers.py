"""What code that reads a value gets where there are no values: the answer of an ordinary step."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class OrdinaryValues(TorchDispatchMode):
    """Answers for fake tensors alone: a mesh reads its ranks from real ones.

    A floating-point number is 1 (a norm, a loss that is finite), a flag false. Tokens are spread evenly over the
    experts: counts read one by one are equal parts of what `bincount` counted last.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counted = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = args[0] if args else None
        if isinstance(given, FakeTensor):
            if func is aten._local_scalar_dense.default:
                return self._read(given)
            if func is aten.bincount.default:
                self._counted = given.numel()
                minlength = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
                return given.new_empty(minlength)
            if func is aten.repeat_interleave.Tensor:
                kwargs = {**kwargs, "output_size": self._counted}
        return func(*args, **kwargs)

    def _read(self, given: FakeTensor) -> Any:
        if given.dtype is torch.bool:
            return False
        if given.is_floating_point():
            return 1.0
        parts = given.untyped_storage().nbytes() // given.element_size()
        each, left = divmod(self._counted, parts)
        return each + int(given.storage_offset() < left)
