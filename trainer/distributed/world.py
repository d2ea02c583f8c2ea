"""Where this rank runs: among which processes, on which device of which machine, and in which element types.

| precision   | strategies    | products, stream | norms | weights, state | gathered            | reduced      |
|-------------|---------------|------------------|-------|----------------|---------------------|--------------|
| fp32        | all           | fp32             | fp32  | fp32           | fp32                | fp32         |
| bf16        | all           | bf16             | fp32  | fp32           | products' bf16 (*)  | fp32         |
| fp16        | all, GPU only | fp16             | fp32  | fp32           | products' fp16 (*)  | fp32, scaled |
| bf16_native | zero*, zeropp | bf16             | bf16  | bf16 and fp32  | bf16                | fp32         |

(*) Weights that enter products are gathered in their type, all others in fp32.

How a model computes in 16 bits: trainer/models/mixed_precision.py. The exception: zero1 and zero2 hold all parameters
in fp32 on every rank, and gather them in fp32 after the update (DeepSpeed gathers in the type that it holds).

bf16_native is DeepSpeed's own recipe (its section `bf16`). Its fp32 copy is made from parameters that are bf16
already: these runs start from rounded weights, and their buffers (running statistics) stay bf16. Elsewhere it would be
another name for bf16.

Reduced in fp32 unless the setting reduce_dtype says bf16. fp32 is all of fp32: TF32 is off, also in cuDNN, where torch
has it on.
"""

from __future__ import annotations

import inspect
import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from stratlab_spec.layout.mesh_rules import AXES as MESH_AXES
from stratlab_spec.layout.parallel_dims import Axes
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.strategies import ND_AXES
from trainer.distributed.machine import read_node


@dataclass(frozen=True)
class World:
    """This process among all, as torch's launcher tells it."""

    rank: int
    local_rank: int
    size: int
    local_size: int
    device_type: str
    device: str
    device_name: str
    host: str
    node: str = ""
    """The machine below the pod; empty where nobody says."""

    @property
    def backend(self) -> str:
        return "nccl" if self.device_type == "cuda" else "gloo"

    @property
    def nodes(self) -> int:
        return self.size // self.local_size


def read_world(env: Mapping[str, str]) -> World:
    """The world from RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and the devices that are there."""
    local_rank = int(env["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available()
    device = f"cuda:{local_rank}" if on_gpu else "cpu"
    return World(
        rank=int(env["RANK"]),
        local_rank=local_rank,
        size=int(env["WORLD_SIZE"]),
        local_size=int(env["LOCAL_WORLD_SIZE"]),
        device_type="cuda" if on_gpu else "cpu",
        device=device,
        device_name=torch.cuda.get_device_name(device) if on_gpu else processor_name(),
        host=socket.gethostname(),
        node=read_node(env),
    )


def processor_name() -> str:
    """The processor's model and the number of cores this process may use."""
    model = platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


DEFAULTS = ("default_pg_timeout", "default_pg_nccl_timeout")


def open_process_group(world: World, timeout_s: float) -> None:
    """Makes the default group; any group that this process makes from now on has the same time-out.

    A time-out that is given to `init_process_group` holds for the default group alone. Meshes, DTensor, DeepSpeed
    (TorchBackend.new_group) and gloo groups beside NCCL's make theirs without one, and get torch's own: 10 minutes of
    NCCL, 30 of gloo. They all ask `_get_default_timeout` (torch 2.13, distributed_c10d.py), so that is where it goes.

    On CUDA the group is bound to this rank's device: communicators are made now, where a failure is a failure at the
    start, and no barrier guesses a device.
    """
    timeout = timedelta(seconds=timeout_s)
    elsewhere = f"torch {torch.__version__} keeps its default time-outs elsewhere"
    for name in DEFAULTS:
        assert hasattr(dist.distributed_c10d, name), elsewhere
        setattr(dist.distributed_c10d, name, timeout)
    dist.init_process_group(world.backend, timeout=timeout, **bind_device(world, dist.init_process_group))


def bind_device(world: World, init: Any) -> dict[str, torch.device]:
    """The argument that binds the group to this rank's device, where NCCL serves it, it has peers, and `init` takes it.

    Of a bound group gloo cannot make a mesh's groups (torch 2.11, split_group: its options cannot be copied).
    """
    if world.backend != "nccl" or world.size == 1 or "device_id" not in inspect.signature(init).parameters:
        return {}
    return {"device_id": torch.device(world.device)}


def gather_objects(value: Any, group: Any = None) -> list[Any]:
    """`value` of every rank of the group, in their order, on all of them; collective."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


REDUCED = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Of the setting reduce_dtype."""


@dataclass(frozen=True)
class Precision:
    """A resolved precision: fp32, bf16, bf16_native or fp16."""

    name: str

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """What autocast computes in, or None where there is no autocast."""
        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.name)

    @property
    def products_dtype(self) -> torch.dtype:
        """What products are computed in."""
        return torch.bfloat16 if self.name == "bf16_native" else self.autocast_dtype or torch.float32

    @property
    def teacher_dtype(self) -> torch.dtype | None:
        """Of the products of a network that is not trained, and of their weights; None = fp32."""
        return None if self.products_dtype == torch.float32 else self.products_dtype

    def cast_input(self, given: torch.Tensor) -> torch.Tensor:
        """A model's input in the element type of its parameters; token ids stay whole numbers."""
        return given.bfloat16() if self.name == "bf16_native" and given.is_floating_point() else given

    @property
    def scales_loss(self) -> bool:
        """Whether gradients would underflow without a scaled loss."""
        return self.name == "fp16"


def resolve_precision(config: Config, device_type: str) -> Precision:
    """`auto` becomes bf16 where the device has it natively, else fp16 on a GPU; fp32 on a CPU.

    Raises:
        ConfigError: fp16 on a CPU.
    """
    if config.precision == "fp16" and device_type == "cpu":
        use = "use fp32, bf16 or auto, which is fp32 here"
        raise ConfigError([f"TRAINER_PRECISION=fp16: needs a GPU, and this is a CPU; {use} [SL-fp16-cpu]"])
    if config.precision != "auto":
        return Precision(config.precision)
    if device_type == "cpu":
        return Precision("fp32")
    return Precision("bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16")


def apply_whole_fp32() -> None:
    """Switches TF32 off in matrix products and convolutions, which are to keep the 23 bits that fp32 has.

    cuDNN has it on unless told otherwise (torch 2.13, `torch.backends.cudnn.allow_tf32`), and some images switch it on
    for cuBLAS too (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1).
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def uses_tf32() -> bool:
    """Whether any product of fp32 numbers may be computed with 10 bits."""
    return torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32


def build_mesh(axes: Axes, device_type: str, names: tuple[str, ...] = MESH_AXES) -> DeviceMesh:
    """The mesh of the axes `names` over all processes; the process group must exist."""
    sizes = tuple(getattr(axes, name) for name in names)
    # an axis over all processes would borrow the default group, which says nothing about its axis (torch 2.13)
    own = dict.fromkeys(names, dist.get_backend()) if names == ND_AXES else None
    return init_device_mesh(device_type, sizes, mesh_dim_names=names, backend_override=own)  # type: ignore[arg-type]
