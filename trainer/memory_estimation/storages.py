"""Watch a step on fake tensors: every storage, and every place that would make the host wait.

StorageWatch    follows every storage from its making to its end, through all operators that run meanwhile
WaitWatch       operator or method ─▶ does its result, or its memory, need a value on the host? ─▶ (reason, caller)

A waiting host does not send further work, so that the device runs dry. The rules are CUDA's, read from torch's
sources (2.13). If all tensors are on one device, copies between it and the host have no operator. `Tensor.cpu`,
`Tensor.numpy` and tensors made of the host's numbers then stand for such copies. Waits inside C++ only, or only with
a stream (DeepSpeed asks its accelerator), are not seen, and neither are threads that work ahead of a step.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from trainer.memory_estimation.timeline import Label, Storage, Timeline, Wait

_INHERITED = object()


@contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Set these attributes of `owner`, and restore the previous ones."""
    before = {name: vars(owner).get(name, _INHERITED) for name in attributes}  # getattr would bind
    assert all(hasattr(owner, name) for name in attributes), f"{owner} has not all of {list(attributes)}"
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            if value is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def asks_for_device(func: Any, args: Any) -> bool:
    """Return whether a mode is called only for `device` of a fake tensor, `args[0]`.

    It is two of three calls of a step of ZeRO-3 (torch 2.13); answered without asking all modes.
    """
    return (
        func is torch.ops.prim.device.default
        and isinstance(args[0], FakeTensor)
        and not args[0].fake_mode.in_kernel_invocation  # torch answers "meta" then
    )


def is_on_meta(tensor: Tensor) -> bool:
    """Return whether a tensor is on the meta device: one without memory of any kind."""
    device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
    return device.type == "meta"


ALWAYS = {"build": "other", "data": "data", "forward": "activations", "backward": "activations"}
"""The cause of storages without further knowledge, by phase."""
HALF = (torch.bfloat16, torch.float16)
NODE_CAUSE = "stratlab_cause"
"""In the metadata of an autograd node: the cause of storages from its backward pass."""


class StorageWatch(TorchDispatchMode):
    """Record every new storage in `timeline` while it is entered, with its end and its resizing.

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
        """Attribute the following storages to this phase."""
        self.phase = phase
        self.timeline.begin(phase)

    def observe(self, engine: Any) -> None:
        """Do nothing; called with the engine before its steps."""

    def __enter__(self) -> StorageWatch:
        self._patches.enter_context(replaced(torch.UntypedStorage, resize_=self._resizing()))
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)
        self._patches.close()
        self._alive.clear()  # with the weak references: later ends do not matter

    def _resizing(self) -> Any:
        """Follow resize_(0), by which fully_shard frees gathered tensors without an operator."""
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
            return NotImplemented  # its local operators come here one by one: else temporaries were missed
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
        """Start to follow the storage of `tensor` if it is new."""
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
        if self.phase == "optimizer" and (source := self._find(next(iter(tree_iter(sources)), None))):
            storage.on_host = source.on_host  # the host updates what is offloaded

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
        """Set the cause of the storage of `tensor`, unless it is final; ignore None."""
        if not isinstance(tensor, Tensor):
            return
        self.see(tensor, "given")
        found = self._find(tensor)
        if found and not found.final:
            found.cause, found.final = cause, final

    def move_to_host(self, tensor: Any) -> None:
        """Mark the storage of `tensor` as host memory; ignore None."""
        if found := self._find(tensor):
            found.on_host = True

    @contextmanager
    def region(self, cause: str, final: bool = False) -> Iterator[None]:
        """Attribute storages made inside to `cause`; if `final`, later attributions do not change it."""
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
            self.collectives[name.strip("_"), str(tensor.dtype).removeprefix("torch.")] += tensor.nbytes


READS = "reads a value"
SIZES = "the size of the result depends on values"
MASKS = "an index of flags becomes places"
COUNTS = "counts look for the largest value first"
MADE = "a tensor made of the host's numbers"
TO_HOST = "a copy to the host"
TO_DEVICE = "a copy from memory that is not pinned"
RANKS = "waits for the other ranks"
ALL = "waits for all work of the device"

BY_OPERATOR = {
    **dict.fromkeys(("_local_scalar_dense", "equal"), READS),
    **dict.fromkeys(("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"), SIZES),
    "bincount": COUNTS,
    "barrier": RANKS,
    "monitored_barrier_": RANKS,
}
BY_METHOD = {"tolist": READS, "cpu": TO_HOST, "numpy": TO_HOST}
"""Methods of a tensor that wait once for any number of values."""
PINNED = "stratlab_pinned"
"""Attribute of a tensor in memory that a device can read directly."""
_HERE = Path(__file__).parent
_ROOTS = ("/site-packages/", "/dist-packages/", str(_HERE.parent.parent) + "/")
_PASSED_THROUGH = (
    *("/torch/utils/", "/torch/_dynamo/", "/torch/_subclasses/", "/torch/_ops.py", "/torch/_tensor.py"),
    *("/torch/autograd/", "/torch/_compile.py", "/contextlib.py"),
)
"""Of who asks: files that only hand a call on."""


class WaitWatch(TorchDispatchMode):
    """Count waits while it is entered; further entries add to the counts.

    Args:
        one_device: all tensors represent a device's; otherwise `Tensor.device` separates host and device.
    """

    def __init__(self, one_device: bool = True) -> None:
        super().__init__()
        self.found: Counter[Wait] = Counter()
        self._one_device = one_device
        self._inside_method = False
        self._patches = ExitStack()

    def __enter__(self) -> WaitWatch:
        for owner, attributes in self._replacements().items():
            self._patches.enter_context(replaced(owner, **attributes))
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)
        self._patches.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its local operators come here one by one
        if asks_for_device(func, args):
            return args[0].fake_device
        kwargs = kwargs or {}
        why = self._why(func.overloadpacket.__name__, func, args, kwargs)
        if why and not self._inside_method:
            self._add(why)
        return func(*args, **kwargs)

    def _why(self, name: str, func: Any, args: Any, kwargs: Any) -> str | None:
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            return MASKS if _has_flags(name, args) else None
        if name == "repeat_interleave":
            size = kwargs.get("output_size", args[1] if len(args) > 1 else None)
            return SIZES if size is None else None
        if name == "lift_fresh":  # a list as an index; one number (x[mask] = 0) travels with its kernel
            return MADE if self._one_device and args[0].dim() else None
        if name in ("_to_copy", "copy_"):
            return _copies(name, args, kwargs)
        return BY_OPERATOR.get(name)

    def _replacements(self) -> dict[Any, dict[str, Any]]:
        methods = dict(BY_METHOD) if self._one_device else {"tolist": READS}
        found: dict[Any, dict[str, Any]] = {
            Tensor: {name: self._once(why, getattr(Tensor, name)) for name, why in methods.items()},
            FakeTensor: {"tolist": self._once(READS, FakeTensor.tolist)},
            **({torch: {"tensor": self._once(MADE, torch.tensor)}} if self._one_device else {}),
            torch.cuda: {"synchronize": self._once(ALL, torch.cuda.synchronize)},
        }
        if not self._one_device:
            found[Tensor]["pin_memory"] = _pin
        if accelerator := sys.modules.get("deepspeed.accelerator.cpu_accelerator"):
            kind = accelerator.CPU_Accelerator
            found[kind] = {"synchronize": self._once(ALL, kind.synchronize)}
        return found

    def _once(self, why: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside_method:
                return method(*args, **kwargs)
            self._add(why)
            self._inside_method = True
            try:
                return method(*args, **kwargs)
            finally:
                self._inside_method = False

        return call

    def _add(self, why: str) -> None:
        places = list(_places())
        ours = next((place for place in places if place.startswith("trainer/")), "")
        self.found[Wait(why, places[0] if places else "", ours)] += 1


def _has_flags(name: str, args: Any) -> bool:
    flags = [t for t in tree_iter(args[1]) if isinstance(t, Tensor) and t.dtype in (torch.bool, torch.uint8)]
    if name != "index" and len(flags) == len(args[1]) == 1:  # one number for all is a fill: no places needed
        return args[2].numel() != 1
    return bool(flags)


def _copies(name: str, args: Any, kwargs: Any) -> str | None:
    """Return the reason for a wait between host and device, if there is one."""
    if name == "copy_":
        target, source = args[:2]
        to, waits = target.device, not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    else:
        source, to = args[0], kwargs.get("device")
        waits = not kwargs.get("non_blocking", False)
    if to is None or (to.type == "cpu") == (source.device.type == "cpu"):
        return None
    if to.type == "cpu":
        return TO_HOST if waits else None
    return TO_DEVICE if waits or not getattr(source, PINNED, False) else None


def _pin(tensor: Tensor, *_: Any) -> Tensor:
    """Replace `Tensor.pin_memory`, which needs a driver."""
    pinned = tensor.view_as(tensor)
    setattr(pinned, PINNED, True)
    return pinned


def _places() -> Iterator[str]:
    """Yield the call stack from the innermost frame outwards, without the frames of this package."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((str(_HERE), "<")) and not any(part in file for part in _PASSED_THROUGH):
            yield f"{_shorten(file)}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]


def _shorten(file: str) -> str:
    for root in _ROOTS:
        if root in file:
            return file.rpartition(root)[2]
    return file
