"""What DeepSpeed's checkpoint files hold: tensors, plain values and two of its classes, whatever Python writes them.

DeepSpeed also puts its ZeroStageEnum there. An enum is no plain value: Python 3.11.2 pickles a member as a call of
`getattr`, 3.11.7 and 3.12 as a call of its class, and `weights_only` refuses the first. So enums are written as their
values, and both forms of this one are still read from older checkpoints (trainer/checkpoint/plain_files.py).
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
import torch

LEAVES = (type(None), bool, int, float, complex, str, bytes, set, torch.dtype, torch.device, torch.Size)


def as_plain(
    value: Any, where: str = "state", tensor: Callable[[torch.Tensor], torch.Tensor] = lambda held: held
) -> Any:
    """The same state with values in place of enums and of NumPy's scalars.

    Args:
        tensor: what becomes of each tensor, in an order that is the same for equal states; left out, they are shared.

    Raises:
        AssertionError: something that `refuse_code` would not let through when the run goes on, named by its place.
    """
    kind = type(value)
    if isinstance(value, Enum):
        return as_plain(value.value, where, tensor)
    if isinstance(value, np.generic):
        return value.item()
    if kind in (dict, OrderedDict):
        items = (
            (as_plain(k, f"{where}, a key"), as_plain(v, f"{where}[{k!r}]", tensor)) for k, v in value.items()
        )
        return _with_attributes(kind(items), value)
    if kind in (list, tuple):
        return kind(as_plain(held, f"{where}[{i}]", tensor) for i, held in enumerate(value))
    if kind in known_classes():
        as_plain(vars(value), f"{where} ({kind.__name__})")
        return copy.copy(value)  # it holds numbers that go on changing
    if kind in (torch.Tensor, torch.nn.Parameter):
        return tensor(value)
    readable = kind in LEAVES
    assert readable, f"{where} is a {kind.__module__}.{kind.__name__}: a checkpoint with it could not be read"
    return value


def _with_attributes(copy: Any, original: Any) -> Any:
    """A module's state_dict carries the versions of its modules as an attribute."""
    if attributes := getattr(original, "__dict__", None):
        vars(copy).update(as_plain(attributes, "attributes"))
    return copy


def known_classes() -> tuple[type, ...]:
    """DeepSpeed's own, which it needs back as they were; they hold numbers."""
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.utils.tensor_fragment import fragment_address

    return LossScaler, fragment_address
