"""Follows every storage from its making to its end, through all operators that run meanwhile."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from trainer.counting.fake_device import asks_for_device, is_on_meta
from trainer.counting.replacement import replaced
from trainer.counting.timeline import Label, Storage, Timeline

ALWAYS = {"build": "other", "data": "data", "forward": "activations", "backward": "activations"}
"""The cause of what nothing more is known about, by phase."""
HALF = (torch.bfloat16, torch.float16)
NODE_CAUSE = "stratlab_cause"
"""In the metadata of an autograd node: what its backward pass makes is for this."""


class StorageWatch(TorchDispatchMode):
    """While it is entered, every new storage goes into `timeline`; so does its end, and its resizing.

    Sees operators, not what happens inside a kernel.

    Args:
        block_bytes: of the timeline.
    """

    def __init__(self, block_bytes: int) -> None:
        super().__init__()
        self.timeline = Timeline(block_bytes)
        self.phase = "build"
        self.collectives: Counter[tuple[str, str]] = Counter()
        """Bytes that collectives put out, by (operator, dtype), since the counter was cleared."""
        self.operators = 0
        self._regions: list[tuple[str, bool]] = []
        self._alive: dict[int, tuple[Storage, Any]] = {}
        self._patches = ExitStack()

    def begin(self, phase: str) -> None:
        """What is made from now on is made in this phase."""
        self.phase = phase
        self.timeline.begin(phase)

    def __enter__(self) -> StorageWatch:
        self._patches.enter_context(replaced(torch.UntypedStorage, resize_=self._resizing()))
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)
        self._patches.close()
        self._alive.clear()  # with the weak references: what dies later is of no interest

    def _resizing(self) -> Any:
        """fully_shard frees what it has gathered by resize_(0), which is no operator."""
        resize = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            known = self._alive.get(storage._cdata)
            if known:
                self.timeline.resize(known[0], storage.nbytes())
            return result

        return resize_

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return (
                NotImplemented  # its local operators come here one by one; else their temporaries were missed
            )
        if asks_for_device(func, args):
            return args[0].fake_device
        result = func(*args, **(kwargs or {}))
        self.operators += 1
        name = func.overloadpacket.__name__
        if func.namespace in ("c10d", "_c10d_functional"):
            self._count_collective(name, args, result)
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor):
                self.see(tensor, name, args)
        return result

    def see(self, tensor: Tensor, operator: str, sources: Any = ()) -> None:
        """Takes up the storage of `tensor` if it is new."""
        tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        if is_on_meta(tensor):
            return
        memory = tensor.untyped_storage()
        key = memory._cdata
        if key in self._alive:
            return
        dtype = str(tensor.dtype).removeprefix("torch.")
        cause, final = self._find_cause(tensor, operator, sources)
        storage = Storage(Label(self.phase, operator, dtype, tuple(tensor.shape)), cause, final)

        def end(_: Any) -> None:
            self.timeline.resize(storage, 0)
            del self._alive[key]

        self._alive[key] = (storage, weakref.ref(memory, end))
        self.timeline.resize(storage, memory.nbytes())

    def _find_cause(self, tensor: Tensor, operator: str, sources: Any) -> tuple[str, bool]:
        if self._regions:
            return self._regions[-1]
        if operator == "_to_copy" and tensor.dtype in HALF:
            source = self._find(sources[0])
            if source and source.cause in ("parameters", "gathered"):
                return "low-precision copies", True
        node = torch._C._current_autograd_node()
        if node is not None and NODE_CAUSE in node.metadata:
            return node.metadata[NODE_CAUSE], True
        return ALWAYS.get(self.phase, "other"), False

    def _find(self, tensor: Any) -> Storage | None:
        tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        if not isinstance(tensor, Tensor) or is_on_meta(tensor):
            return None
        known = self._alive.get(tensor.untyped_storage()._cdata)
        return known[0] if known else None

    def attribute(self, tensor: Any, cause: str, final: bool = False) -> None:
        """Says what the storage of `tensor` is held for, unless that was said for good. None is passed over."""
        if not isinstance(tensor, Tensor):
            return
        self.see(tensor, "given")
        found = self._find(tensor)
        if found and not found.final:
            found.cause, found.final = cause, final

    def move_to_host(self, tensor: Any) -> None:
        """Says that the storage of `tensor` is in host memory. None is passed over."""
        if found := self._find(tensor):
            found.on_host = True

    @contextmanager
    def region(self, cause: str, final: bool = False) -> Iterator[None]:
        """What is made inside is held for `cause`; if `final`, whatever is found out later."""
        self._regions.append((cause, final))
        try:
            yield
        finally:
            self._regions.pop()

    def _count_collective(self, name: str, args: Any, result: Any) -> None:
        put_out = [t for t in tree_iter(result) if isinstance(t, Tensor)]
        if not put_out:  # written into the first argument
            put_out = [t for t in tree_iter(args[:1]) if isinstance(t, Tensor)]
        for tensor in put_out:
            size = tensor.numel() * tensor.element_size()
            self.collectives[name.strip("_"), str(tensor.dtype).removeprefix("torch.")] += size
