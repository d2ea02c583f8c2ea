"""A resolved run: settings, processes, plan, precision and folder, as every other part receives them; and its origin.

The origin is settings, versions, commit, environment, and a hash of the initial weights.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from stratlab_spec.layout.axes import Axes, mesh_names
from stratlab_spec.plan import Plan
from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import Config
from trainer.distributed.nccl_transport import find_own_variables
from trainer.distributed.world import Precision, World, build_mesh
from trainer.hang_detection.heartbeat import Pulse

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, kw_only=True)
class Run:
    """Facts of a run that its parts share and do not derive themselves."""

    config: Config
    world: World
    precision: Precision
    mesh: DeviceMesh
    """Of this strategy's axes over all processes."""
    plan: Plan
    folder: RunDirectory
    compile_backend: str
    """Of torch.compile, if the setting `compile` is on."""
    pulse: Pulse
    """This rank's heartbeat."""

    @property
    def axes(self) -> Axes:
        return self.plan.axes

    @property
    def writes(self) -> bool:
        """Return whether this rank writes the files that are written once."""
        return self.world.rank == 0


def build_run(
    config: Config,
    world: World,
    plan: Plan,
    precision: Precision,
    compile_backend: str = "inductor",
    pulse: Pulse | None = None,
) -> Run:
    """Return the run on this rank; the process group must exist.

    Args:
        compile_backend: `aot_eager` traces and differentiates like inductor and generates no code, for tests.
        pulse: None = a private one.
    """
    return Run(
        config=config,
        world=world,
        precision=precision,
        mesh=build_mesh(plan.axes, world.device_type, mesh_names(config)),
        plan=plan,
        folder=RunDirectory(config.results, config.comparison, config.run),
        compile_backend=compile_backend,
        pulse=pulse or Pulse(None, world.rank),
    )


PACKAGES = ("torch", "torchvision", "deepspeed", "transformers", "peft", "safetensors", "datasets", "numpy")

TRAFFIC = ("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "UCC_", "FI_", "OFI_")
ON_DEVICES = (
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
)
"""Variables outside of the settings that decide the speed of libraries or their memory."""


def read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the user that affect collectives and devices: name -> value."""
    own = find_own_variables(environ)
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name.startswith(TRAFFIC) or name in ON_DEVICES) and name not in own
    }


def read_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def read_git_sha() -> str | None:
    """Return the commit of the image, from its environment, or of the checkout of this module."""
    if os.environ.get("STRATLAB_GIT_SHA"):
        return os.environ["STRATLAB_GIT_SHA"]
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def hash_weights(model: nn.Module) -> str:
    """Return the sha256 of names, shapes and bytes of all parameters and buffers, before a strategy wraps them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).numpy().tobytes())
    return digest.hexdigest()


def describe_run(
    config: Config, resolved: dict[str, Any], hosts: list[str], nodes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the content of config.json: the settings, the resolved values, and the machines.

    Args:
        hosts, nodes: per rank its pod, and the machine below it if known.
    """
    return {
        "schema_version": 1,
        "run_uid": uuid.uuid4().hex,
        "run": config.run,
        "comparison": config.comparison,
        "config": config.model_dump(),
        "resolved": resolved,
        "provenance": {
            "versions": read_versions(),
            "git_sha": read_git_sha(),
            "environment": read_environment(os.environ),
            "image": config.image,
            "hosts": sorted(set(hosts)),
            "nodes": sorted({node for node in nodes if node}),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    }
