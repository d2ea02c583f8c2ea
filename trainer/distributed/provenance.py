"""What produced a run: settings, versions, commit, environment, and a hash of the initial weights."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import nn

from stratlab_spec.settings.config import Config

PACKAGES = ("torch", "torchvision", "deepspeed", "transformers", "peft", "safetensors", "datasets", "numpy")

TRAFFIC = ("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "UCC_", "FI_", "OFI_")
ON_DEVICES = (
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
)
"""Variables that no setting of ours names and that decide how fast libraries work, or what they hold."""


def read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process that change how collectives travel and devices work: name -> value."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(TRAFFIC) or name in ON_DEVICES
    }


def read_versions() -> dict[str, str]:
    """Python's and the packages' versions; a package that is not installed is left out."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def read_git_sha() -> str | None:
    """The commit that an image was built from (it says so), or that of the checkout this module lies in."""
    if os.environ.get("STRATLAB_GIT_SHA"):
        return os.environ["STRATLAB_GIT_SHA"]
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def hash_weights(model: nn.Module) -> str:
    """sha256 over names, shapes and bytes of all parameters and buffers, before any strategy touches them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).numpy().tobytes())
    return digest.hexdigest()


def describe_run(
    config: Config, resolved: dict[str, Any], hosts: list[str], nodes: Sequence[str] = ()
) -> dict[str, Any]:
    """The content of config.json: what was asked, what it resolved to, what it runs on.

    Args:
        hosts, nodes: of every rank: its pod, and the machine below it where that is known.
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
