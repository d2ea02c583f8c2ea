"""Versions, the machine, and the kernels that attention takes, by name. Clocks are only read."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.attention_paths import OURS, SHAPES, build_call
from benchmarks.gpu.measuring import free_memory, list_kernels
from benchmarks.gpu.processes import ask
from benchmarks.gpu.session import ROOT, Session

PACKAGE_NAMES = """
torch torchvision transformers accelerate peft timm lightning numpy triton safetensors tokenizers pydantic
pydantic_core msgspec deepspeed datasets pandas tenacity traceinsight mlflow nvidia-ml-py psutil scikit-learn
liger-kernel flash-attn transformer-engine torchao nvidia-cudnn-cu13 nvidia-nccl-cu13
"""
PACKAGES = tuple(PACKAGE_NAMES.split())
PLACED = ("torch", "pydantic", "msgspec", "deepspeed", "transformers", "trainer")
QUERY = (
    "name,driver_version,memory.total,memory.free,power.limit,clocks.max.sm,clocks.sm,clocks.mem,temperature.gpu,"
    "ecc.mode.current,mig.mode.current,compute_mode,pcie.link.gen.current"
)
FUSED = ("cudnn", "flash")
KEPT_VARIABLES = ("CUDA", "NCCL", "TORCH", "PYTORCH", "LD_LIB", "OMP")


def run(session: Session) -> None:
    """Measure in order, from certain facts to those that may fail."""
    session.measure("versions", read_versions)
    session.measure("machine", read_machine, session)
    session.measure("torch settings", read_torch, session)
    session.measure("attention kernels", read_kernels, session)
    session.measure("import trainer.worker", time_import, session, "import trainer.worker")
    session.measure("import deepspeed", time_import, session, "import deepspeed")


def read_versions() -> dict[str, Any]:
    """Return versions of important packages, and the folders of some: the kit's packages come before the machine's."""
    versions = {}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    found = {name: importlib.util.find_spec(name) for name in PLACED}
    places = {name: str(Path(s.origin).parent.parent) for name, s in found.items() if s and s.origin}
    return {"python": sys.version.split()[0], "versions": versions, "places": places}


def read_machine(session: Session) -> dict[str, Any]:
    """Return cores, memory, disk, compilers and variables; on a GPU the output of nvidia-smi."""
    facts: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "disk_free_gib": shutil.disk_usage(session.work_folder).free / 2**30,
        "tools": {name: shutil.which(name) for name in ("nvcc", "g++", "ninja", "git", "ncu", "nsys")},
        "variables": {k: v for k, v in os.environ.items() if k.startswith(KEPT_VARIABLES)},
    }
    if session.is_cuda:
        said = ask("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader")
        facts["nvidia_smi"] = dict(zip(QUERY.split(","), said.split(", "), strict=False))
        facts["throttle"] = ask("nvidia-smi", "-q", "-d", "PERFORMANCE")[-900:]
    return facts


def read_torch(session: Session) -> dict[str, Any]:
    """Return the switches that change speed or precision, and the versions of torch's libraries."""
    cuda, back = torch.backends.cuda, torch.backends.cudnn
    facts: dict[str, Any] = {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "bf16_reduced_precision_reduction": str(cuda.matmul.allow_bf16_reduced_precision_reduction),
        "cudnn_allow_tf32": back.allow_tf32,
        "cudnn_benchmark": back.benchmark,
        "sdpa": {
            "flash": cuda.flash_sdp_enabled(),
            "efficient": cuda.mem_efficient_sdp_enabled(),
            "math": cuda.math_sdp_enabled(),
            "cudnn": cuda.cudnn_sdp_enabled(),
        },
        "linear_cross_entropy": hasattr(torch.nn.functional, "linear_cross_entropy"),
    }
    if session.is_cuda:
        free, total = torch.cuda.mem_get_info()
        facts |= {
            "cudnn": back.version(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "device": str(torch.cuda.get_device_properties(0)),
            "free_gib": free / 2**30,
            "total_gib": total / 2**30,
        }
    return facts


def read_kernels(session: Session) -> dict[str, Any]:
    """Return the longest kernels of attention at each shape, bf16, forward and backward."""
    found: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        try:
            call = build_call(session.device, shape.fitted(session.tiny))
            found[name] = list_kernels(session, call, longest=3)
        except Exception as failure:  # no kernel for this shape: the gate reports it if a model needs it
            found[name] = f"{type(failure).__name__}: {failure}"[:200]
        free_memory(session.is_cuda)
    fused = [name for name in found if is_fused(found[name])]
    return {"kernels": found, "fused": fused, "not_fused": [name for name in OURS if name not in fused]}


def is_fused(kernels: Any) -> bool:
    """Return whether a list of kernels, not a failure, has one of cuDNN's or flash's."""
    return isinstance(kernels, list) and any(word in str(kernels).lower() for word in FUSED)


def time_import(session: Session, code: str) -> dict[str, Any]:
    """Return seconds that an interpreter needs for an import, its own start included."""
    began = time.time()
    command, seconds = [sys.executable, "-c", code], session.within(90)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout)[-400:])
    return {"import_s": time.time() - began}
