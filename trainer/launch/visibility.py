"""Whether the accelerators that a run asks for are here: found out without torch, before anything else is done.

Without a device plugin, with a broken driver or in an image for CPUs torch says nothing and trains on the CPU, and the
pod holds its GPU node to the end.

python -m trainer.program accelerators nvidia.com/gpu 1      # code 4 and a sentence if one process would not get one
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from trainer import failures
from trainer.failures import AcceleratorsMissing

NVIDIA = "nvidia.com/"  # of other vendors' resources the rank looks at torch itself, see trainer/worker.py
VARIANT = "STRATLAB_VARIANT"  # set by the image
ANSWER_S = 120.0  # a driver that says nothing for so long never will

# In a process of its own: a broken driver may hang or crash whoever asks. Prints how many, and CUDA's version x 1000.
PROBE = """
import ctypes
try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError as failure:
    raise SystemExit(f"there is no driver library in this container ({failure})")
count, version, text = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_char_p(b"unknown")
driver.cuDriverGetVersion(ctypes.byref(version))
code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
if code not in (0, 100):  # 100: no device
    driver.cuGetErrorString(code, ctypes.byref(text))
    raise SystemExit(f"the driver fails: {text.value.decode()} (CUDA error {code})")
print(count.value, version.value)
"""


def check(accelerator: str, per_pod: int, env: Mapping[str, str]) -> None:
    """Raises unless every process of this pod will find an accelerator.

    Args:
        accelerator: the resource that the pod asks for; empty = none, and nothing is looked at.
        per_pod: processes, which get one each.

    Raises:
        AcceleratorsMissing: with what is wrong and what helps.
    """
    if not accelerator.startswith(NVIDIA):
        return
    needed = find_torch_cuda()
    if env.get(VARIANT) == "cpu":
        refuse(
            accelerator,
            per_pod,
            "this image is the variant for CPUs (build it with VARIANT=cuda) [SL-image-for-cpus]",
        )
    if not needed:
        refuse(accelerator, per_pod, "the torch of this image is built without CUDA [SL-torch-no-cuda]")
    try:
        probe = subprocess.run(
            [sys.executable, "-c", PROBE], env=dict(env), capture_output=True, text=True, timeout=ANSWER_S
        )
    except subprocess.TimeoutExpired:
        refuse(accelerator, per_pod, f"the driver has not answered for {ANSWER_S:.0f} s [SL-driver-silent]")
    if probe.returncode:
        said = probe.stderr.strip().split("\n")[-1] or f"ended with {probe.returncode}"
        refuse(accelerator, per_pod, f"{said} [SL-driver-failed]")
    count, version = (int(word) for word in probe.stdout.split())
    if count < per_pod:
        refuse(accelerator, per_pod, f"{count or 'none'} visible [SL-too-few-devices]")
    if version // 1000 < int(needed.partition(".")[0]):
        known = f"{version // 1000}.{version % 1000 // 10}"
        refuse(
            accelerator,
            per_pod,
            f"the node's driver knows CUDA {known} and torch needs {needed} [SL-driver-too-old]",
        )


def count_devices(env: Mapping[str, str]) -> int:
    """NVIDIA's devices that torch would find here; 0 where anything is missing."""
    if not find_torch_cuda():
        return 0
    try:
        probe = subprocess.run(
            [sys.executable, "-c", PROBE], env=dict(env), capture_output=True, text=True, timeout=ANSWER_S
        )
    except subprocess.TimeoutExpired:
        return 0
    return int(probe.stdout.split()[0]) if probe.returncode == 0 else 0


def refuse(accelerator: str, per_pod: int, seen: str) -> NoReturn:
    """Raises AcceleratorsMissing."""
    raise AcceleratorsMissing(
        f"run.accelerator={accelerator}: asked for {per_pod} in this pod, one per process, but {seen}; look at the "
        'node, its driver and device plugin, or train on CPUs with run.accelerator=""'
    )


def find_torch_cuda() -> str:
    """The version of CUDA that torch was built for, "" for none: read from its file, for torch itself is not wanted."""
    found = importlib.util.find_spec("torch")
    file = Path(found.origin).with_name("version.py") if found and found.origin else None
    text = file.read_text() if file and file.is_file() else ""
    version = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return version[1] if version else ""


def main(arguments: list[str]) -> int:
    """Looks, for `stratlab check`; returns the exit code."""
    try:
        accelerator, per_pod = arguments[0], int(arguments[1])
    except (IndexError, ValueError):
        print(__doc__, file=sys.stderr)
        return failures.BAD_CONFIG
    try:
        check(accelerator, per_pod, os.environ)
    except AcceleratorsMissing as missing:
        print(missing, file=sys.stderr)
        return failures.ACCELERATORS_MISSING
    return failures.DONE
