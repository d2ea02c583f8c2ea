"""Builds DeepSpeed's CUDA quantizer for all GPUs that torch is built for. Needs no GPU.

DeepSpeed compiles it at the first start, which takes a compiler and minutes. Built under the name that a prebuilt one
has (deepspeed/ops/op_builder/quantizer.py, absolute_name), it is imported instead: trainer/engines/quantization.py.

    python quantizer.py TOOLKIT FOLDER      # TOOLKIT has bin/nvcc; FOLDER/quantizer_op.so is written
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

NAME = "quantizer_op"
# As DeepSpeed's own (op_builder/builder.py, nvcc_args and cxx_args), for processors of any age.
CUDA_FLAGS = (
    *("-O3", "--use_fast_math", "-std=c++17", "-DBF16_AVAILABLE"),
    *("-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__", "-U__CUDA_NO_HALF2_OPERATORS__"),
    *("-U__CUDA_NO_BFLOAT16_OPERATORS__", "-U__CUDA_NO_BFLOAT162_OPERATORS__"),
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
)
HOST_FLAGS = ("-O3", "-std=c++17", "-DBF16_AVAILABLE")


def read_architectures(flags: str) -> str:
    """torch's own list, as its compilation reads it: "sm_75 sm_90" -> "7.5;9.0", the last one also for newer GPUs."""
    found = [name.removeprefix("sm_") for name in flags.split() if name.startswith("sm_")]
    assert found, f"torch names no architecture: {flags!r}"
    return ";".join(f"{name[:-1]}.{name[-1]}" for name in found) + "+PTX"


def find_includes(packages: Path) -> list[Path]:
    """Headers of the CUDA libraries that torch's headers ask for: they come with its wheels, not with the compiler."""
    return [path for path in sorted((packages / "nvidia").glob("*/include")) if path.is_dir()]


def build(toolkit: Path, folder: Path) -> None:
    """Writes FOLDER/quantizer_op.so, and imports it."""
    os.environ["CUDA_HOME"] = str(toolkit)  # read when torch's module is imported
    import torch

    # by its file: without a GPU the package gives another one
    from deepspeed.ops.op_builder.quantizer import QuantizerBuilder
    from torch.utils.cpp_extension import load

    os.environ["TORCH_CUDA_ARCH_LIST"] = read_architectures(torch._C._cuda_getArchFlags())
    os.environ.setdefault("MAX_JOBS", str(os.cpu_count()))
    builder = QuantizerBuilder()
    with tempfile.TemporaryDirectory() as scratch:
        # the wheel has the library under its versioned name alone, which no linker looks for
        (Path(scratch) / "libcudart.so").symlink_to(next((toolkit / "lib").glob("libcudart.so.*")))
        built = Path(scratch) / "build"
        built.mkdir()
        load(
            name=NAME,
            sources=[builder.deepspeed_src_path(path) for path in builder.sources()],
            extra_include_paths=[
                *(builder.deepspeed_src_path(path) for path in builder.include_paths()),
                str(toolkit / "include" / "cccl"),
                *map(str, find_includes(Path(torch.__file__).parents[1])),
            ],
            extra_cflags=list(HOST_FLAGS),
            extra_cuda_cflags=list(CUDA_FLAGS),
            extra_ldflags=[f"-L{scratch}"],
            build_directory=str(built),
            with_cuda=True,
            verbose=True,
        )
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(built / f"{NAME}.so", folder)


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
