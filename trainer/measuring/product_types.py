"""In which element types a step multiplies, seen by watching its operators instead of believing a setting.

Matrix products, grouped ones, convolutions and torch's attention, forward and backward. A type counts from one
multiplication in twenty on: rotary angles and routers are in fp32 by intent, and far below that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

LEAST_SHARE = 0.05
ATTENTION = tuple(packet for packet in flop_registry if "scaled_dot_product" in str(packet))


class ProductTypes(TorchDispatchMode):
    """Counts the products of the code under `with`."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: dict[str, float] = {}
        """Element type -> multiplications and additions."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled blocks stay compiled; what is multiplied inside them is not seen."""
        return True

    def dtypes(self) -> list[str]:
        """The types that count."""
        whole = sum(self.operations.values())
        return sorted(name for name, count in self.operations.items() if count >= LEAST_SHARE * whole > 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it takes itself apart first, and its parts come by here
        given = kwargs or {}
        result = func(*args, **given)
        packet = getattr(func, "_overloadpacket", None)
        if packet is torch.ops.aten._grouped_mm:
            self._add(args[0], 2.0 * args[0].numel() * args[1].shape[-1])
        elif packet in flop_registry:
            first = next(each for each in args if isinstance(each, Tensor))
            if packet in ATTENTION:
                args = _with_all_heads(args)
            self._add(first, flop_registry[packet](*args, **given, out_val=result))
        return result

    def _add(self, factor: Tensor, operations: float) -> None:
        name = str(factor.dtype).removeprefix("torch.")
        self.operations[name] = self.operations.get(name, 0.0) + operations


def _with_all_heads(args: Any) -> tuple[Any, ...]:
    """Keys and values as if each head had its own: torch 2.11 does not count what grouped heads multiply. Without data.

    Shapes [batch, heads, tokens, dim]; queries have most heads.
    """
    heads = max(each.shape[1] for each in args if isinstance(each, Tensor) and each.dim() == 4)
    return tuple(
        each.new_empty((each.shape[0], heads, *each.shape[2:]), device="meta")
        if isinstance(each, Tensor) and each.dim() == 4 and each.shape[1] != heads
        else each
        for each in args
    )
