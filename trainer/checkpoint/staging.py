"""Host memory that a state is copied into, so that training goes on while the copy is written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64


class Staging:
    """As much memory as the largest snapshot so far, taken once: memory that is new costs more than the copying.

    The copies of one snapshot are valid until the next one is taken.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._pinned = False

    @property
    def held_bytes(self) -> int:
        return self._memory.nbytes

    def copy(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copies on the CPU, each of which is all of its own storage; waits until they are there."""
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        ends = np.cumsum([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes], dtype=np.int64).tolist()
        starts = [0, *ends][: len(sizes)]
        on_device = any(tensor.is_cuda for tensor in tensors)
        if ends and ends[-1] > self._memory.nbytes:
            self._take(ends[-1], on_device)
        copies = []
        for tensor, start, size in zip(tensors, starts, sizes, strict=True):
            place = torch.from_numpy(self._memory[start : start + size])  # a storage of just these bytes
            copy = place.view(tensor.dtype).view(tensor.shape)
            copies.append(copy.copy_(tensor.detach(), non_blocking=True))
        if on_device:
            torch.cuda.current_stream().synchronize()
        return copies

    def _take(self, size: int, pinned: bool) -> None:
        """Pinned where it is asked for: registered with CUDA, for torch's pinned allocator takes powers of two."""
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._memory.ctypes.data)
        self._memory = np.empty(size, np.uint8)
        self._pinned = False
        if pinned:  # where the system refuses, copying is slower and nothing else
            refused = torch.cuda.cudart().cudaHostRegister(self._memory.ctypes.data, size, 0)
            self._pinned = int(refused) == 0
