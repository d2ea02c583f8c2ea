"""Count the element types and bytes that a rank holds, by walking tensors instead of trusting settings.

`Observed` counts the engine's state: parameters, gradients, optimizer, buckets. `Census` counts the other tensors that
Python code keeps on a device between two steps, and classifies them by shape and numbers:

* shape of a weight, close to the weight's numbers: parameters
* shape of a weight, close to the numbers of its moments: optimizer
* shape of a weight, close to neither: gradients
* a row as wide as the number of classes or words: logits

An allocator knows the amount, but not the purpose. Memory that only C++ holds (saved by autograd, buckets) is not seen,
nor memory released before the step ended, and a copy in one contiguous piece cannot be classified.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor


def set_aside() -> None:
    """Exclude all current objects from Python's garbage collection; call it after the first step.

    The collector walks every object of the process each time it looks for reference cycles. A trainer's process has a
    million objects: the walk took a quarter of a second (AMD EPYC, 2 cores). Each rank walked at a different time, and
    the other ranks waited (torchtitan collects at fixed steps for this reason). Reference counting still frees objects.
    """
    gc.collect()
    gc.freeze()


def list_objects() -> list[Any]:
    """Return every object that the collector knows, including the excluded ones."""
    aside = gc.get_freeze_count() > 0
    gc.unfreeze()
    found = gc.get_objects()
    if aside:
        gc.freeze()
    return found


SHARDS = ("ds_tensor", "ds_secondary_tensor")
"""The rank's share, and with hpz the share of the copy inside its node (partition_parameters.py)."""


def list_shards(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return the tensors in which DeepSpeed's stage 3 keeps parameters; the parameters are empty while unused."""
    found = (getattr(parameter, name, None) for parameter in parameters for name in SHARDS)
    return [shard for shard in found if shard is not None]


GIB = 2**30
STATE = ("parameters", "gradients", "optimizer")


@dataclass
class Observed:
    """Bytes and element types that this rank holds, per kind; gradients are counted before the update."""

    bytes_held: dict[str, int] = field(default_factory=dict)
    dtypes: dict[str, list[str]] = field(default_factory=dict)
    on_host: dict[str, int] = field(default_factory=dict)
    """The part of `bytes_held` in host memory: everything on a CPU, else offloaded tensors."""
    _tensors: dict[str, list[weakref.ref[Tensor]]] = field(default_factory=dict)

    def add(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Count the floating-point tensors of `kind` (one of STATE, or buckets), each storage once."""
        tensors = list(tensors)
        self._tensors[kind] = [weakref.ref(tensor) for tensor in tensors]
        storages: dict[int, tuple[int, str]] = {}
        dtypes = set()
        for tensor in tensors:
            local = local_part(tensor)
            if not local.is_floating_point() or local.numel() == 0:
                continue
            dtypes.add(str(local.dtype).removeprefix("torch."))
            storage = local.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes(), local.device.type
        self.bytes_held[kind] = sum(size for size, _ in storages.values())
        self.on_host[kind] = sum(size for size, device in storages.values() if device == "cpu")
        self.dtypes[kind] = sorted(dtypes)

    def alive(self, kind: str) -> Iterator[Tensor]:
        """Yield the tensors of `kind` that still exist; this object does not keep them alive."""
        for reference in self._tensors.get(kind, ()):
            if (tensor := reference()) is not None:
                yield tensor

    def memory_gib(self) -> dict[str, float]:
        """Return GiB per kind of `STATE`."""
        return {kind: self.bytes_held[kind] / GIB for kind in STATE if kind in self.bytes_held}


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a distributed tensor, or the tensor itself."""
    local = getattr(tensor, "to_local", None)
    return local() if local else tensor


def state_tensors(optimizer: Any) -> list[Tensor]:
    """Return the tensors of an optimizer's state that grow with the model, without step counters."""
    held = []
    for state in optimizer.state.values():
        held += [value for value in state.values() if torch.is_tensor(value) and value.dim() > 0]
    return held


COPIED_STATE = ("parameters", "optimizer", "teacher")
"""Kinds of engine state that a tensor may be a copy of."""
SMALLEST_BYTES = 512
"""Smallest size of a classified piece of memory: one block of CUDA's allocator."""
COMPARED = 4096
"""Numbers to compare, from the start of a tensor; the comparison reads and allocates no more than this."""
ALIKE = 0.5
"""Share of a weight's norm: a tensor closer to the weight is a copy of it, current or some steps old. Unrelated
numbers are at least one norm away."""


class Census:
    """Counts the tensors on this rank's device; does not communicate.

    Args:
        widths: numbers of classes or words in a row of logits on this rank.
    """

    def __init__(self, observed: Observed, device_type: str, widths: Collection[int]) -> None:
        self._observed = observed
        self._device_type = device_type
        self._widths = widths
        self._gradients: set[int] = set()

    def note_gradients(self) -> None:
        """Record the gradients; call it at the start of the update.

        DDP still holds its buckets, with views known to Python, after all gradients were removed.
        """
        leaves = self._observed.alive("parameters")
        self._gradients = {_place(local_part(leaf.grad)) for leaf in leaves if leaf.grad is not None}

    @torch.no_grad()
    def take(self) -> dict[str, int]:
        """Return bytes of `parameters`, `optimizer`, `teacher`, `gradients`, `logits` held outside of the engine.

        Kinds without bytes are absent. Call it after the step with recorded gradients. Waits for the device.
        """
        observed = self._observed
        state = {kind: [local_part(tensor) for tensor in observed.alive(kind)] for kind in COPIED_STATE}
        engine_has = [tensor for kind in ("gradients", "buckets") for tensor in observed.alive(kind)]
        own = {_place(local_part(tensor)) for tensor in engine_has} | self._gradients
        own |= {_place(tensor) for tensors in state.values() for tensor in tensors}
        found: dict[str, int] = {}
        for pieces in _strangers(self._device_type, own).values():
            left = pieces[0].untyped_storage().nbytes()
            for tensor in pieces:
                kind = _find_kind(tensor, state, self._widths)
                size = min(left, left if kind == "logits" else tensor.numel() * tensor.element_size())
                if kind and size:
                    found[kind] = found.get(kind, 0) + size
                    left -= size
        return found


def _strangers(device_type: str, own: Collection[int]) -> dict[int, list[Tensor]]:
    """Return the tensors on the device that are not in `own`, by their piece of memory, each location once."""
    found: dict[int, dict[tuple[int, int], Tensor]] = {}
    for tensor in list_objects():
        kind = type(tensor)  # isinstance would trigger proxy objects
        if not issubclass(kind, Tensor) or issubclass(kind, DTensor | FakeTensor):
            continue
        if tensor.device.type != device_type or not tensor.is_floating_point() or not tensor.numel():
            continue
        place = _place(tensor)
        if place and place not in own and tensor.untyped_storage().nbytes() >= SMALLEST_BYTES:
            found.setdefault(place, {}).setdefault((tensor.storage_offset(), tensor.numel()), tensor)
    return {place: list(pieces.values()) for place, pieces in found.items()}


def _place(tensor: Tensor) -> int:
    """Return the address of its memory; 0 = it has no memory."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a subclass without memory of its own
        return 0


def _find_kind(tensor: Tensor, state: dict[str, list[Tensor]], widths: Collection[int]) -> str | None:
    as_long = False
    for kind, references in state.items():
        for reference in references:
            if reference.numel() == tensor.numel() and _like(tensor, reference):
                as_long = True
                if _near(tensor, reference):
                    return kind
    if as_long:
        return "gradients"
    return "logits" if tensor.dim() > 1 and tensor.shape[-1] in widths else None


def _like(tensor: Tensor, reference: Tensor) -> bool:
    """Return whether both have their numbers in the same order: the same shape, or one of them flat."""
    if tensor.shape == reference.shape:
        return tensor.stride() == reference.stride()
    return 1 in (tensor.dim(), reference.dim()) and tensor.is_contiguous() and reference.is_contiguous()


def _near(tensor: Tensor, reference: Tensor) -> bool:
    count = min(COMPARED, tensor.numel())
    ours, theirs = (each.detach().as_strided((count,), (1,)).float() for each in (tensor, reference))
    length = theirs.norm()
    return bool(length > 0 and (ours - theirs).norm() <= ALIKE * length)
