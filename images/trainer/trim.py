"""Removes from a virtual environment what only GPUs use. For the image variant `cpu`.

The default package index has no torch without CUDA for x86-64. Most of CUDA's libraries are linked into torch and have
to be there, used or not; which ones is measured here: torch and DeepSpeed are imported, and a library that the process
does not map is removed. triton goes whole: it compiles for GPUs only, and torch and DeepSpeed do without it.

    python trim.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

# Started after triton is gone, so that it also shows that nothing here needs it.
MEASURE = """
import deepspeed, torch, torch.distributed.fsdp, torchvision, transformers
assert torch.distributed.is_gloo_available()
for line in open("/proc/self/maps"):
    print(line.split()[-1])
"""
UNUSED = ("triton", "triton-*.dist-info", "torch/include", "torch/share")


def read_loaded() -> set[Path]:
    """The libraries that a process maps which has imported what the trainer imports."""
    done = subprocess.run([sys.executable, "-c", MEASURE], check=True, stdout=subprocess.PIPE, text=True)
    return {Path(line).resolve() for line in done.stdout.splitlines() if line.startswith("/")}


def measure_mb(folder: Path) -> int:
    """Size of all files below a folder, MB."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) // 1_000_000


def main() -> None:
    """Trims the environment that this Python belongs to."""
    packages = Path(sysconfig.get_path("purelib"))
    before_mb = measure_mb(packages)
    for pattern in UNUSED:
        for path in packages.glob(pattern):
            shutil.rmtree(path)
    loaded = read_loaded()
    assert any(path.name.startswith("libcudart") for path in loaded), "torch maps no CUDA runtime"
    removed = []
    for path in sorted((packages / "nvidia").rglob("*")):
        if path.is_file() and path.suffix != ".py" and path.resolve() not in loaded:
            removed.append(path.relative_to(packages))
            path.unlink()
    print(*(f"trim: {path}" for path in removed if ".so" in path.name), sep="\n")
    print(
        f"trim: {before_mb} MB before, {measure_mb(packages)} MB after; {len(removed)} files under nvidia/ removed"
    )


if __name__ == "__main__":
    main()
