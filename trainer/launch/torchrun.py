"""The accelerators and the ranks of this pod: torch's elastic launcher starts one process on each.

The pod checks without torch, before anything else, whether its accelerators are present. Without a device plugin,
with a broken driver or in an image for CPUs, torch trains on the CPU without a warning, and the pod holds its GPU
node to the end.

python -m trainer.program accelerators nvidia.com/gpu 1      # code 4 and a sentence if one process would not get one
"""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from stratlab_spec import exit_codes as failures
from stratlab_spec.exit_codes import AcceleratorsMissing
from stratlab_spec.settings.library_rules import has_gpu
from trainer.launch.stop import LAUNCHER_PID, LEFT_TO_TORCH, TO_RANKS, Stop, rank_seconds

NVIDIA = "nvidia.com/"  # of other vendors' resources the rank looks at torch itself, see trainer/worker.py
VARIANT = "STRATLAB_VARIANT"  # set by the image
ANSWER_S = 120.0  # a driver that is silent for this long will not answer

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
    """Raise an error unless every process of this pod will find an accelerator.

    Args:
        accelerator: the resource that the pod requests; empty = none, and the check is skipped.
        per_pod: processes, which get one each.

    Raises:
        AcceleratorsMissing: with the problem and its fix.
    """
    if not accelerator.startswith(NVIDIA):
        return
    needed = find_torch_cuda()
    if env.get(VARIANT) == "cpu":
        seen = "this image is the variant for CPUs (build it with VARIANT=cuda) [SL-image-for-cpus]"
    elif not needed:
        seen = "the torch of this image is built without CUDA [SL-torch-no-cuda]"
    else:
        count, version, seen = _probe(env)
        if not seen and count < per_pod:
            seen = f"{count or 'none'} visible [SL-too-few-devices]"
        elif not seen and version // 1000 < int(needed.partition(".")[0]):
            known = f"{version // 1000}.{version % 1000 // 10}"
            seen = f"the node's driver knows CUDA {known} and torch needs {needed} [SL-driver-too-old]"
    if seen:
        refuse(accelerator, per_pod, seen)


def count_devices(env: Mapping[str, str]) -> int:
    """Return the number of NVIDIA devices that torch would find here; 0 if anything is missing."""
    return _probe(env)[0] if find_torch_cuda() else 0


def _probe(env: Mapping[str, str]) -> tuple[int, int, str]:
    """Return the number of devices, the driver's CUDA version x 1000, and why neither could be read."""
    try:
        probe = subprocess.run(
            [sys.executable, "-c", PROBE], env=dict(env), capture_output=True, text=True, timeout=ANSWER_S
        )
    except subprocess.TimeoutExpired:
        return 0, 0, f"the driver has not answered for {ANSWER_S:.0f} s [SL-driver-silent]"
    if probe.returncode:
        last = probe.stderr.strip().split("\n")[-1] or f"ended with {probe.returncode}"
        return 0, 0, f"{last} [SL-driver-failed]"
    count, version = map(int, probe.stdout.split())
    return count, version, ""


def refuse(accelerator: str, per_pod: int, seen: str) -> NoReturn:
    """Raise AcceleratorsMissing."""
    raise AcceleratorsMissing(
        f"run.accelerator={accelerator}: asked for {per_pod} in this pod, one per process, but {seen}; look at the "
        'node, its driver and device plugin, or train on CPUs with run.accelerator=""'
    )


def find_torch_cuda() -> str:
    """Return the version of CUDA that torch was built for, or "": read from its file, without importing torch."""
    found = importlib.util.find_spec("torch")
    file = Path(found.origin).with_name("version.py") if found and found.origin else None
    text = file.read_text() if file and file.is_file() else ""
    version = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return version[1] if version else ""


def main(arguments: list[str]) -> int:
    """Check the accelerators for `stratlab check`; return the exit code."""
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


def run_ranks(
    module: str, per_node: int, grace_s: float, stop: Stop, before: Callable[[], None] = lambda: None
) -> None:
    """Return when all ranks of this pod have ended with 0.

    Args:
        module: that each rank runs.
        per_node: ranks of this pod.
        before: called when torch is imported; a stop interrupts it like the ranks.

    Raises:
        ChildFailedError: torch's; a rank has failed.
        SignalException: torch's; a signal requested a stop of this process.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // per_node)))
    if not has_gpu():  # otherwise each trace would report "ERROR gpuGetDeviceCount failed"
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException

    # the variable of --shutdown-timeout, an option that torch 2.11 does not have (30 s there)
    os.environ["PET_SHUTDOWN_TIMEOUT"] = str(rank_seconds(grace_s))
    options = ["--signals-to-handle", LEFT_TO_TORCH, "-m", module]  # the others are heard by `stop`
    if "PET_RDZV_ENDPOINT" in os.environ:
        if address := read_own_address():
            os.environ.setdefault("PET_LOCAL_ADDR", address)
    elif "PET_MASTER_ADDR" not in os.environ:
        options = ["--standalone", "--nproc-per-node", str(per_node), *options]
    os.environ[LAUNCHER_PID] = str(os.getpid())
    try:
        stop.interrupt = lambda: SignalException("stopped", TO_RANKS)
        before()
        with _heard_between_looks(stop):
            run.run(run.parse_args(options))
    finally:
        stop.interrupt = None


@contextmanager
def _heard_between_looks(stop: Stop) -> Iterator[None]:
    """Hold back a signal while torch's agent checks its ranks, ten times a second, and handle it after the check.

    Raised inside the check it may be lost. The agent times each check, and an exception before its clock is read
    becomes another one (`UnboundLocalError: ... 'start'`, torch 2.13, elastic/metrics/api.py). The agent then ends
    the ranks at once instead of letting them save. Failed ranks are reported as failed. If all ranks have ended with
    0, the launcher does not wait for other pods, which may never arrive.
    """
    from torch.distributed.elastic.agent.server.api import WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    look = LocalElasticAgent._monitor_workers

    def look_undisturbed(agent: LocalElasticAgent, group: Any) -> Any:
        interrupt, stop.interrupt = stop.interrupt, None
        try:
            found = look(agent, group)
        finally:
            stop.interrupt = interrupt
        went_well = found.state in (WorkerState.HEALTHY, WorkerState.SUCCEEDED)
        if interrupt and stop.asked_at is not None and went_well:
            raise interrupt()
        return found

    LocalElasticAgent._monitor_workers = look_undisturbed  # type: ignore[method-assign]
    try:
        yield
    finally:
        LocalElasticAgent._monitor_workers = look  # type: ignore[method-assign]


def read_own_address() -> str | None:
    """Return the address of this pod for other pods; None on a machine that only knows its loopback.

    torch would publish the host name, which cannot be resolved in an MPIJob v1. torch also takes a pod that returns
    under the same name for the pod that it has lost.
    """
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return None
    return None if address.startswith("127.") else address
