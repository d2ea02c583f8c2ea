"""The trainer's image from inside: its Python, its user, its packages, and that no library lacks another."""

import importlib
import os
import platform
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

IMAGES = Path(__file__).parents[3] / "images"
PACKAGES = Path(sysconfig.get_path("purelib"))
# what a process without a GPU does not load: the first needs the driver, the second is opened when a GPU first asks for
# linear algebra
GPU_ONLY = {"libcaffe2_nvrtc.so", "libtorch_cuda_linalg.so"}


def test_python_is_the_one_that_the_project_is_tested_with():
    (promised,) = re.findall(r"^ARG PYTHON=(\S+)$", (IMAGES / "trainer" / "Dockerfile").read_text(), re.M)
    assert platform.python_version() == promised and sys.prefix == "/opt/venv"


def test_the_trainer_is_the_images():
    for name in ("trainer", "stratlab_spec"):
        spec = find_spec(name)
        assert spec and spec.origin == f"/opt/package/{name}/__init__.py"


def test_it_is_nobody_and_can_write_to_tmp_alone(tmp_path):
    assert os.getuid() == 10001
    (tmp_path / "written").write_text("")
    for place in ("/opt/package/x", "/opt/venv/x", "/x"):
        with pytest.raises(OSError):
            Path(place).write_text("")


def test_every_locked_package_is_there_and_no_other():
    text = (IMAGES / "trainer" / "requirements.txt").read_text()
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.M))
    found = {re.sub(r"[-_.]+", "-", d.name).lower(): d.version for d in distributions(path=[str(PACKAGES)])}
    gone = {name for name in locked if name not in found}
    assert gone <= {"triton"}, "the variant cpu leaves out what compiles for GPUs"
    assert found == {name: version for name, version in locked.items() if name not in gone}


def test_every_shared_library_finds_what_it_needs():
    """Bound at once, those of torch by its import: what is missing is seen here, not in the middle of a run."""
    folders = [PACKAGES / name for name in ("torch", "torchvision", "torchvision.libs")]
    libraries = [path for folder in folders for path in sorted(folder.rglob("*.so*")) if path.is_file()]
    names = [str(path) for path in libraries if path.name not in GPU_ONLY]
    assert len(names) > 10
    code = """
import ctypes, os, sys, torch
for path in sys.argv[1:]:
    print(path, flush=True)
    ctypes.CDLL(path, mode=os.RTLD_NOW)
"""
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]} {done.stderr[-1000:]}"
    assert done.stdout.split() == names


def test_what_the_trainer_imports_can_be_imported():
    """All modules, in one process: an import inside a function is a failure in the middle of a run."""
    code = """
import importlib, pkgutil, trainer
for module in pkgutil.walk_packages(trainer.__path__, "trainer."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
import deepspeed, peft, datasets, sklearn, torchvision, transformers, torch
import torch.distributed.fsdp, torch.distributed.pipelining, torch.distributed.checkpoint, torch._inductor
assert torch.distributed.is_gloo_available()
print("all of them")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip().endswith("all of them"), done.stderr[-2000:]


def test_an_image_for_gpus_compiles_and_quantizes():
    """The one for CPUs has neither compiler nor kernel, and the trainer refuses what needs them."""
    import torch  # noqa: F401  # the kernel is linked against it

    from stratlab_spec.settings.config import Config
    from stratlab_spec.settings.library_rules import PREBUILT_QUANTIZER, compile_problems, find_quantizer

    is_for_gpus = os.environ["STRATLAB_VARIANT"] == "cuda"
    problems = compile_problems(Config(run="r", compile=True), os.environ, gpu=True)
    assert (problems == []) == is_for_gpus, problems
    assert (find_quantizer() is not None) == is_for_gpus
    if is_for_gpus:
        assert callable(importlib.import_module(PREBUILT_QUANTIZER).quantize)
