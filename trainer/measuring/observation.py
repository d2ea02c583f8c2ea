"""What a rank really holds: element types and bytes, counted by walking the tensors instead of believing a setting."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

GIB = 2**30
STATE = ("parameters", "gradients", "optimizer")


@dataclass
class Observed:
    """Bytes held by this rank and the element types met, per kind; gradients as they are before the update."""

    bytes_held: dict[str, int] = field(default_factory=dict)
    dtypes: dict[str, list[str]] = field(default_factory=dict)
    on_host: dict[str, int] = field(default_factory=dict)
    """Of `bytes_held`, those in the host's memory: all on a CPU, and what is offloaded."""
    _tensors: dict[str, list[weakref.ref[Tensor]]] = field(default_factory=dict)

    def add(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Counts the floating-point tensors of `kind` (those of STATE, and buckets), each storage once."""
        tensors = list(tensors)
        self._tensors[kind] = [weakref.ref(tensor) for tensor in tensors]
        storages: dict[int, int] = {}
        on_host: dict[int, int] = {}
        dtypes = set()
        for tensor in tensors:
            local = local_part(tensor)
            if not local.is_floating_point() or local.numel() == 0:
                continue
            dtypes.add(str(local.dtype).removeprefix("torch."))
            storage = local.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            if local.device.type == "cpu":
                on_host[storage.data_ptr()] = storage.nbytes()
        self.bytes_held[kind] = sum(storages.values())
        self.on_host[kind] = sum(on_host.values())
        self.dtypes[kind] = sorted(dtypes)

    def alive(self, kind: str) -> Iterator[Tensor]:
        """Those tensors of `kind` that are still there: nothing is kept alive from here."""
        for reference in self._tensors.get(kind, ()):
            if (tensor := reference()) is not None:
                yield tensor

    def memory_gib(self) -> dict[str, float]:
        """GiB per kind of `STATE`."""
        return {kind: self.bytes_held[kind] / GIB for kind in STATE if kind in self.bytes_held}


def local_part(tensor: Tensor) -> Tensor:
    """The shard that this rank holds of a distributed tensor, or the tensor itself."""
    local = getattr(tensor, "to_local", None)
    return local() if local else tensor


def state_tensors(optimizer: Any) -> list[Tensor]:
    """The tensors of an optimizer's state that grow with the model: the step counters are left out."""
    held = []
    for state in optimizer.state.values():
        held += [value for value in state.values() if torch.is_tensor(value) and value.dim() > 0]
    return held
