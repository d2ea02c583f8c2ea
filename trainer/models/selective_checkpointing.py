"""Selective activation checkpointing, as torch's, except for what a strategy does inside a block.

torch keeps results of a block by their operator and its number of calls in the forward pass, and finds them by the same
number when it computes the block again. DeepSpeed's stage 3 gathers and releases weights by hooks of modules inside the
block, with other calls each time. `hide` runs such a hook unseen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import create_selective_checkpoint_contexts

_thread = threading.local()
"""`is_hidden`, in each thread: autograd computes blocks again in threads of its own."""


class _Unhidden(TorchDispatchMode):
    """One of torch's two modes, of which it calls everything that is not hidden."""

    def __init__(self, mode: TorchDispatchMode) -> None:
        super().__init__()
        self._mode = mode

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(_thread, "is_hidden", False):
            return func(*args, **(kwargs or {}))
        return self._mode.__torch_dispatch__(func, types, args, kwargs)


def create_contexts(kept: Sequence[Any]) -> tuple[TorchDispatchMode, TorchDispatchMode]:
    """Return the contexts of a block's forward pass and of its recomputation, which keep these operators' results."""
    forward, again = create_selective_checkpoint_contexts(list(kept))
    return _Unhidden(forward), _Unhidden(again)


def hide(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose operators selective checkpointing neither keeps nor counts."""

    def hidden(*args: Any, **kwargs: Any) -> Any:
        before, _thread.is_hidden = getattr(_thread, "is_hidden", False), True
        try:
            return hook(*args, **kwargs)
        finally:
            _thread.is_hidden = before

    return hidden
