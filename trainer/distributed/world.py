"""Describe the place of this rank: its process group, its device and machine, and its element types.

| precision   | strategies    | products, stream | norms | weights, state | gathered            | reduced      |
|-------------|---------------|------------------|-------|----------------|---------------------|--------------|
| fp32        | all           | fp32             | fp32  | fp32           | fp32                | fp32         |
| bf16        | all           | bf16             | fp32  | fp32           | products' bf16 (*)  | fp32         |
| fp16        | all, GPU only | fp16             | fp32  | fp32           | products' fp16 (*)  | fp32, scaled |
| bf16_native | zero*, zeropp | bf16             | bf16  | bf16 and fp32  | bf16                | fp32         |

(*) Weights in products are gathered in the products' type, all others in fp32.

Models compute in 16 bits as described in trainer/models/mixed_precision.py. Exception: zero1 and zero2 hold all
parameters in fp32 on every rank, and gather them in fp32 after the update (DeepSpeed gathers in the type it holds).

bf16_native is DeepSpeed's own recipe (its section `bf16`). Its fp32 copy is made from bf16 parameters: these runs start
from rounded weights, and their buffers (running statistics) stay bf16. In other strategies it would equal bf16.

Gradients are reduced in fp32 unless the setting reduce_dtype is bf16. fp32 means full fp32: TF32 is off, including in
cuDNN, where torch enables it.
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

from stratlab_spec.layout.axes import AXES as MESH_AXES
from stratlab_spec.layout.axes import Axes
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.strategies import ND_AXES
from trainer.distributed import read_node


@dataclass(frozen=True)
class World:
    """This process among all processes, as described by torch's launcher."""

    rank: int
    local_rank: int
    size: int
    local_size: int
    device_type: str
    device: str
    device_name: str
    host: str
    node: str = ""
    """The machine below the pod; empty if unknown."""

    @property
    def backend(self) -> str:
        return "nccl" if self.device_type == "cuda" else "gloo"

    @property
    def nodes(self) -> int:
        return self.size // self.local_size


def read_world(env: Mapping[str, str]) -> World:
    """Return the world from RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and the present devices."""
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
    """Return the processor's model and the number of cores that this process may use."""
    model = platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


DEFAULTS = ("default_pg_timeout", "default_pg_nccl_timeout")


def open_process_group(world: World, timeout_s: float) -> None:
    """Create the default group; groups that this process creates later have the same time-out.

    The time-out argument of `init_process_group` applies only to the default group. Meshes, DTensor, DeepSpeed
    (TorchBackend.new_group) and gloo groups next to NCCL create theirs without one, and get torch's defaults: 10
    minutes for NCCL, 30 for gloo. They all call `_get_default_timeout` (torch 2.13, distributed_c10d.py), so the
    default is replaced there.

    On CUDA the group is bound to this rank's device: communicators are created now, so that their failures appear at
    the start, and no barrier guesses a device.
    """
    timeout = timedelta(seconds=timeout_s)
    elsewhere = f"torch {torch.__version__} keeps its default time-outs elsewhere"
    for name in DEFAULTS:
        assert hasattr(dist.distributed_c10d, name), elsewhere
        setattr(dist.distributed_c10d, name, timeout)
    dist.init_process_group(world.backend, timeout=timeout, **bind_device(world, dist.init_process_group))


def bind_device(world: World, init: Any) -> dict[str, torch.device]:
    """Return the argument that binds the group to this rank's device, for NCCL with peers and if `init` accepts it.

    gloo cannot create a mesh's groups from a bound group (torch 2.11, split_group: its options cannot be copied).
    """
    if world.backend != "nccl" or world.size == 1 or "device_id" not in inspect.signature(init).parameters:
        return {}
    return {"device_id": torch.device(world.device)}


def gather_objects(value: Any, group: Any = None) -> list[Any]:
    """Return `value` of every rank of the group, in rank order, on all of them; collective."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


REDUCED = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Element types by the values of the setting reduce_dtype."""


@dataclass(frozen=True)
class Precision:
    """A resolved precision: fp32, bf16, bf16_native or fp16."""

    name: str

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """Return the element type of autocast, or None without autocast."""
        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.name)

    @property
    def products_dtype(self) -> torch.dtype:
        """Return the element type of products."""
        return torch.bfloat16 if self.name == "bf16_native" else self.autocast_dtype or torch.float32

    @property
    def teacher_dtype(self) -> torch.dtype | None:
        """Return the element type of an untrained network's products and their weights; None = fp32."""
        return None if self.products_dtype == torch.float32 else self.products_dtype

    def cast_input(self, given: torch.Tensor) -> torch.Tensor:
        """Cast a model's input to the element type of its parameters; token ids stay integers."""
        return given.bfloat16() if self.name == "bf16_native" and given.is_floating_point() else given

    @property
    def scales_loss(self) -> bool:
        """Return whether gradients would underflow without a scaled loss."""
        return self.name == "fp16"


def resolve_precision(config: Config, device_type: str) -> Precision:
    """Resolve `auto`: bf16 if the device supports it natively, else fp16 on a GPU; fp32 on a CPU.

    Raises:
        ConfigError: fp16 on a CPU.
    """
    if config.precision == "fp16" and device_type == "cpu":
        use = "use fp32, bf16 or auto (here fp32)"
        raise ConfigError([f"TRAINER_PRECISION=fp16: needs a GPU, but this is a CPU; {use} [SL-fp16-cpu]"])
    if config.precision != "auto":
        return Precision(config.precision)
    if device_type == "cpu":
        return Precision("fp32")
    return Precision("bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16")


def apply_whole_fp32() -> None:
    """Disable TF32 in matrix products and convolutions, so that they keep the 23 bits of fp32.

    cuDNN enables it by default (torch 2.13, `torch.backends.cudnn.allow_tf32`), and some images enable it for cuBLAS
    too (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1).
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def uses_tf32() -> bool:
    """Return whether a product of fp32 numbers may be computed with 10 bits."""
    return torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32


def build_mesh(axes: Axes, device_type: str, names: tuple[str, ...] = MESH_AXES) -> DeviceMesh:
    """Return the mesh of the axes `names` over all processes; the process group must exist."""
    sizes = tuple(getattr(axes, name) for name in names)
    # an axis over all processes would reuse the default group, which does not name its axis (torch 2.13)
    own = dict.fromkeys(names, dist.get_backend()) if names == ND_AXES else None
    return init_device_mesh(device_type, sizes, mesh_dim_names=names, backend_override=own)  # type: ignore[arg-type]
