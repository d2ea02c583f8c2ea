"""What produced a run: versions, commit, and a hash of the initial weights."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import subprocess
from pathlib import Path

from torch import nn

PACKAGES = ("torch", "deepspeed", "transformers", "datasets", "numpy")


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
    """The commit of the checkout that this module lies in, or None inside an image."""
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
