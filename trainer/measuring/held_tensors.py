"""What a rank really holds: element types and bytes, counted by walking tensors instead of believing a setting.

    Observed    of the engine's state: parameters, gradients, optimizer, buckets
    Census      of what Python code keeps on a device between two steps beside it, told by shapes and numbers:

    every tensor that Python knows, but the engine's own state
        of a weight's shape: near a weight's numbers       parameters
                             near those of its moments     optimizer
                             near neither                  gradients
        a row as wide as there are classes, or words       logits

An allocator knows how much there is, and not for what. What only C++ holds (what autograd has saved, buckets) is not
seen, nor what was given back before the step ended; of a copy in one long piece nothing is known either.
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
    """Keeps Python's collector off what is there now: behind the first step, all that a run is made of.

    It walks every object of the process each time it looks for circles of garbage. A trainer's process has a million of
    them: the walk took a quarter of a second (AMD EPYC, 2 cores), on each rank at a time of its own, and the others
    wait for it (torchtitan collects at set steps for that reason). Objects are freed as before.
    """
    gc.collect()
    gc.freeze()


def list_objects() -> list[Any]:
    """Every object that the collector knows of, those that were set aside too."""
    aside = gc.get_freeze_count() > 0
    gc.unfreeze()
    found = gc.get_objects()
    if aside:
        gc.freeze()
    return found


SHARDS = ("ds_tensor", "ds_secondary_tensor")
"""The rank's share, and with hpz that of the copy inside its node (partition_parameters.py)."""


def list_shards(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """What DeepSpeed's stage 3 keeps of parameters beside the tensors themselves, which are empty while not in use."""
    found = (getattr(parameter, name, None) for parameter in parameters for name in SHARDS)
    return [shard for shard in found if shard is not None]


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


COPIED_STATE = ("parameters", "optimizer", "teacher")
"""Of what the engine has, what a copy may be one of."""
SMALLEST_BYTES = 512
"""Of a piece of memory that is looked at: one block of CUDA's allocator."""
COMPARED = 4096
"""Numbers of a tensor, the first ones: no more is read, and no more memory taken for it than this."""
ALIKE = 0.5
"""Of a weight's length: what is nearer to it is a copy of it, of now or of some steps ago. Numbers that have nothing
to do with it are as far away as it is long, or farther."""


class Census:
    """Of this rank's device; asks no other rank.

    Args:
        widths: how many classes, or words, a row of logits has on this rank.
    """

    def __init__(self, observed: Observed, device_type: str, widths: Collection[int]) -> None:
        self._observed = observed
        self._device_type = device_type
        self._widths = widths
        self._gradients: set[int] = set()

    def note_gradients(self) -> None:
        """Call it where the update begins: DDP goes on holding its buckets, with views that Python has seen, when
        no parameter has a gradient any more."""
        leaves = self._observed.alive("parameters")
        self._gradients = {_place(local_part(leaf.grad)) for leaf in leaves if leaf.grad is not None}

    @torch.no_grad()
    def take(self) -> dict[str, int]:
        """Bytes of `parameters`, `optimizer`, `teacher`, `gradients`, `logits` that somebody keeps beside the engine;
        of what there is none, nothing. Call it behind the step whose gradients were noted. Waits for the device.
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
    """Tensors on the device that are not in `own`, by the piece of memory that they lie in, each of its places once."""
    found: dict[int, dict[tuple[int, int], Tensor]] = {}
    for tensor in list_objects():
        kind = type(tensor)  # isinstance would ask objects that stand for others what they are
        if not issubclass(kind, Tensor) or issubclass(kind, DTensor | FakeTensor):
            continue
        if tensor.device.type != device_type or not tensor.is_floating_point() or not tensor.numel():
            continue
        place = _place(tensor)
        if place and place not in own and tensor.untyped_storage().nbytes() >= SMALLEST_BYTES:
            found.setdefault(place, {}).setdefault((tensor.storage_offset(), tensor.numel()), tensor)
    return {place: list(pieces.values()) for place, pieces in found.items()}


def _place(tensor: Tensor) -> int:
    """Where its memory begins; 0 = it has none."""
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
    """Whether both have their numbers in the same order: in the same shape, or one of them in a row."""
    if tensor.shape == reference.shape:
        return tensor.stride() == reference.stride()
    return 1 in (tensor.dim(), reference.dim()) and tensor.is_contiguous() and reference.is_contiguous()


def _near(tensor: Tensor, reference: Tensor) -> bool:
    count = min(COMPARED, tensor.numel())
    ours, theirs = (each.detach().as_strided((count,), (1,)).float() for each in (tensor, reference))
    length = theirs.norm()
    return bool(length > 0 and (ours - theirs).norm() <= ALIKE * length)
