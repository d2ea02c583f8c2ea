"""Removes from a virtual environment what only GPUs use. For the image variant `cpu`.

The default package index has no torch without CUDA for x86-64. Which libraries of CUDA a process maps that has imported
what the trainer imports is measured here, and the others are removed. Those that are mapped are there because torch is
linked against them; the large ones are replaced by stand-ins (stand_in.py). triton goes whole: it compiles for GPUs
only, and torch and DeepSpeed do without it.

    python trim.py FOLDER        # with as, ld and readelf in FOLDER/bin
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from stand_in import Binutils, read_undefined, replace_library

# Started after triton is gone, and again with stand-ins, so that it also shows that nothing here needs what went.
MEASURE = """
import deepspeed, torch, torch.distributed.fsdp, torchvision, transformers
assert torch.distributed.is_gloo_available()
for line in open("/proc/self/maps"):
    print(line.split()[-1])
"""
UNUSED = ("triton", "triton-*.dist-info", "torch/include", "torch/share")
LARGE_BYTES = 10_000_000


def read_loaded() -> set[Path]:
    """The libraries that a process maps which has imported what the trainer imports."""
    done = subprocess.run([sys.executable, "-c", MEASURE], check=True, stdout=subprocess.PIPE, text=True)
    return {Path(line).resolve() for line in done.stdout.splitlines() if line.startswith("/")}


def measure_mb(folder: Path) -> int:
    """Size of all files below a folder, MB."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) // 1_000_000


def remove_unmapped(packages: Path) -> set[Path]:
    """Removes NVIDIA's files that are not mapped; returns the libraries that are."""
    loaded = read_loaded()
    assert any(path.name.startswith("libcudart") for path in loaded), "torch maps no CUDA runtime"
    removed = []
    for path in sorted((packages / "nvidia").rglob("*")):
        if path.is_file() and path.suffix != ".py" and path.resolve() not in loaded:
            removed.append(path.relative_to(packages))
            path.unlink()
    print(*(f"trim: {path}" for path in removed if ".so" in path.name), sep="\n")
    return loaded


def replace_large(packages: Path, loaded: set[Path], binutils: Binutils) -> None:
    """Puts stand-ins in the place of NVIDIA's large libraries, smaller ones stay what they are."""
    inside = [path for path in loaded if path.is_relative_to(packages) and ".so" in path.name]
    nvidia = packages / "nvidia"
    large = [path for path in inside if path.is_relative_to(nvidia) and path.stat().st_size > LARGE_BYTES]
    wanted = read_undefined(binutils, [path for path in inside if path not in large])
    for path in sorted(large):
        before_mb = path.stat().st_size // 1_000_000
        functions = replace_library(binutils, path, wanted)
        print(f"trim: {path.name}, {before_mb} MB: a stand-in with {functions} functions")


def main() -> None:
    """Trims the environment that this Python belongs to."""
    packages = Path(sysconfig.get_path("purelib")).resolve()
    before_mb = measure_mb(packages)
    for pattern in UNUSED:
        for path in packages.glob(pattern):
            shutil.rmtree(path)
    loaded = remove_unmapped(packages)
    if platform.machine() == "x86_64":  # what stands in is written in its assembly
        replace_large(packages, loaded, Binutils(Path(sys.argv[1])))
        remove_unmapped(packages)  # what only the replaced ones needed
    print(f"trim: {before_mb} MB before, {measure_mb(packages)} MB after")


if __name__ == "__main__":
    main()
