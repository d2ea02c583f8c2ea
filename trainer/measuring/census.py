"""What Python code keeps on a device between two steps beside an engine's state: told by shapes and numbers.

    every tensor that Python knows, but the engine's own state
        of a weight's shape: near a weight's numbers       parameters
                             near those of its moments     optimizer
                             near neither                  gradients
        a row as wide as there are classes, or words       logits

An allocator knows how much there is, and not for what. What only C++ holds (what autograd has saved, buckets) is not
seen, nor what was given back before the step ended; of a copy in one long piece nothing is known either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from trainer.measuring.garbage import list_objects
from trainer.measuring.observation import Observed, local_part

STATE = ("parameters", "optimizer", "teacher")
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
        state = {kind: [local_part(tensor) for tensor in observed.alive(kind)] for kind in STATE}
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
    for tensor in _python_tensors():
        if tensor.device.type != device_type or not tensor.is_floating_point() or not tensor.numel():
            continue
        place = _place(tensor)
        if place and place not in own and tensor.untyped_storage().nbytes() >= SMALLEST_BYTES:
            found.setdefault(place, {}).setdefault((tensor.storage_offset(), tensor.numel()), tensor)
    return {place: list(pieces.values()) for place, pieces in found.items()}


def _python_tensors() -> Iterator[Tensor]:
    for each in list_objects():
        kind = type(each)  # isinstance would ask objects that stand for others what they are
        if issubclass(kind, Tensor) and not issubclass(kind, DTensor | FakeTensor):
            yield each


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
    ours, theirs = (_first(each) for each in (tensor, reference))
    length = theirs.norm()
    return bool(length > 0 and (ours - theirs).norm() <= ALIKE * length)


def _first(tensor: Tensor) -> Any:
    return tensor.detach().as_strided((min(COMPARED, tensor.numel()),), (1,)).float()
