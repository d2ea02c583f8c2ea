"""Measure a rank's environment, separately and together with other ranks; assessment.py judges the results.

Each rank measures versions, shared memory, the results volume, the device and the network. For the device,
that is whether it computes, its free memory and its links to the pod's other devices. For the network, it is the
node's stated speed; NCCL's choice: trainer/distributed/nccl_transport.py.

Over the default group, which uses the hosts, ranks measure together. They time all-reduces from small to large
messages, compare clocks with rank 0, and read each other's files on the results volume.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import socket
import struct
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer.distributed.nccl_transport import read_rdma_ports
from trainer.distributed.world import processor_name
from trainer.installation import read_version
from trainer.measuring.links import ask_nvml

MIB = 2**20
HOST_SIZES = (MIB // 16, MIB, 16 * MIB)
DEVICE_SIZES = (MIB, 16 * MIB, 256 * MIB)
REPEATS = 5
LONGEST_S = 4.0
"""Limit for one all-reduce; larger messages that would take longer are skipped."""


def bus_gb_per_s(size: int, ranks: int, seconds: float) -> float:
    """Return the GB/s that each rank sends and receives: 2 (n - 1) / n of the message, as in nccl-tests."""
    return 2 * (ranks - 1) / ranks * size / seconds / 1e9


def prove_sum(device: str, group: Any) -> None:
    """Run one all-reduce with a known result.

    Raises:
        RuntimeError: the result is wrong.
    """
    one = torch.ones(1000, device=device)
    dist.all_reduce(one, group=group)
    size = dist.get_world_size(group)
    if not bool((one == size).all()):
        raise RuntimeError(f"an all-reduce of ones over {size} ranks gave {float(one[0])}")


def measure_all_reduce(device: str, group: Any) -> list[dict[str, float]]:
    """Return for each size `mib` the bus bandwidth and the milliseconds: the best of REPEATS, on the slowest rank."""
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return []
    found: list[dict[str, float]] = []
    for size in HOST_SIZES if device == "cpu" else DEVICE_SIZES:
        if found and found[-1]["ms"] * size / (found[-1]["mib"] * MIB) > LONGEST_S * 1e3:
            break
        message = torch.zeros(size // 4, device=device)
        best = float("inf")
        for _ in range(REPEATS + 1):
            _finish(message)
            began = time.monotonic()
            dist.all_reduce(message, group=group)
            _finish(message)
            best = min(best, time.monotonic() - began)
        slowest = torch.tensor(best, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)  # so that all groups try the same sizes
        seconds = float(slowest)
        found.append({"mib": size / MIB, "ms": seconds * 1e3, "gb_per_s": bus_gb_per_s(size, ranks, seconds)})
    return found


def _finish(message: torch.Tensor) -> None:
    if message.is_cuda:
        torch.cuda.synchronize()


ROUNDS = 8


def compare_clocks() -> dict[str, float]:
    """Return `offset_s`, how far this rank's clock is ahead of rank 0's, accurate to `within_s`.

    One rank at a time asks rank 0 for its time. The estimate assumes equal times in both directions. `within_s`, half
    of the shortest round trip, covers any difference.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    best = (float("inf"), 0.0)
    for asking in range(1, size):
        for _ in range(ROUNDS):
            answer = torch.zeros(1, dtype=torch.float64)
            if rank == asking:
                sent, began = time.time(), time.monotonic()
                dist.send(answer, 0)
                dist.recv(answer, 0)
                trip = time.monotonic() - began
                best = min(best, (trip, sent + trip / 2 - float(answer)))
            elif rank == 0:
                dist.recv(answer, asking)
                answer[0] = time.time()
                dist.send(answer, asking)
    return {"offset_s": best[1], "within_s": best[0] / 2} if rank else {"offset_s": 0.0, "within_s": 0.0}


GIB = 2**30


def describe_device(local_rank: int) -> dict[str, Any]:
    """Describe this rank's compute device; only "visible" if other devices exist but none is left for this rank."""
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not visible:
        return {"visible": 0, "name": processor_name(), "type": "cpu"}
    if local_rank >= visible:
        return {"visible": visible, "type": "none"}
    torch.cuda.set_device(local_rank)
    one = torch.ones(1 << 20, device="cuda")
    if (total := float(one.sum())) != one.numel():
        raise RuntimeError(f"a sum of {one.numel()} ones came to {total:.0f}")
    free, whole = torch.cuda.mem_get_info()
    properties = torch.cuda.get_device_properties(local_rank)
    return {
        "visible": visible,
        "type": "cuda",
        "name": properties.name,
        "uuid": str(properties.uuid),
        "gib": whole / GIB,
        "free_gib": free / GIB,
        **ask_nvml(local_rank, visible),
    }


SHM = Path("/dev/shm")
SHM_SAMPLE = 4 * MIB
VOLUME_SAMPLE = 32 * MIB
PIECE = MIB


def describe_versions() -> dict[str, str]:
    """Return the versions that must be equal on all ranks; "" for missing packages."""
    nccl = torch.cuda.nccl.version() if torch.cuda.is_available() else ()
    return {
        "trainer": read_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "nccl": ".".join(map(str, nccl)),
    }


def _measure_room(folder: Path) -> dict[str, Any]:
    """Return total and free GiB of the folder's file system."""
    state = os.statvfs(folder)
    return {"gib": state.f_blocks * state.f_frsize / GIB, "free_gib": state.f_bavail * state.f_frsize / GIB}


def describe_shared_memory() -> dict[str, Any]:
    """Return total and free GiB of /dev/shm, after writing a file of SHM_SAMPLE bytes to it.

    Raises:
        OSError: writing failed.
    """
    found = _measure_room(SHM)
    sample = SHM / f"stratlab-{uuid.uuid4().hex}"
    try:
        with open(sample, "wb") as file:
            file.write(bytes(SHM_SAMPLE))
    except OSError as failure:
        found["error"] = str(failure.strerror)
    finally:
        sample.unlink(missing_ok=True)
    return found


def describe_volume(folder: Path) -> dict[str, Any]:
    """Return free GiB, MB/s of VOLUME_SAMPLE bytes written to disk, and the lead of the volume's clock.

    Args:
        folder: on the results volume; created if missing.
    """
    found: dict[str, Any] = {}
    sample = folder / f".sample-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = _measure_room(folder)
        before = time.time()
        with open(sample, "wb") as file:
            made = time.time()
            found["clock_s"] = os.fstat(file.fileno()).st_mtime - (before + made) / 2
            found["clock_within_s"] = (made - before) / 2
            piece, began = os.urandom(PIECE), time.monotonic()
            for _ in range(VOLUME_SAMPLE // PIECE):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            found["mb_per_s"] = VOLUME_SAMPLE / 1e6 / (time.monotonic() - began)
    except OSError as failure:
        found["error"] = str(failure.strerror)
    finally:
        sample.unlink(missing_ok=True)
    return found


PLENTY_S = 65.0
"""A network file system may show a new file late: NFS caches a folder for up to 60 s."""
POLL_S = 0.2


def exchange_files(folder: Path) -> dict[str, Any]:
    """Write a file, read the other ranks' files, and return `unseen`, `after_s` and `unwritten`.

    `unseen` lists ranks without a readable file within PLENTY_S. `after_s` is the time of the last read. `unwritten` is
    the error of writing this rank's own file.

    Args:
        folder: only for this check, equal on all ranks; deleted at the end.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    error = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank{rank}").write_text(f"{folder.name} {rank}")
    except OSError as failure:
        error = str(failure.strerror)
    errors: list[str] = [""] * size
    dist.all_gather_object(errors, error)  # now every rank has written its file or failed
    waited_for = [other for other in range(size) if not errors[other]]
    began = time.monotonic()
    while unseen := [other for other in waited_for if not _is_there(folder, other)]:
        if time.monotonic() - began > PLENTY_S:
            break
        time.sleep(POLL_S)
    found = {"unseen": unseen, "after_s": time.monotonic() - began, "unwritten": error}
    dist.all_gather_object(errors, "")  # now all ranks have finished reading
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _is_there(folder: Path, rank: int) -> bool:
    with suppress(OSError):
        os.listdir(folder)
        return (folder / f"rank{rank}").read_text() == f"{folder.name} {rank}"
    return False


SIOCGIFADDR = 0x8915


def describe_network(env: Mapping[str, str], first: str, sys: Path = Path("/sys/class")) -> dict[str, Any]:
    """Return the interface towards the address `first`, its speed, and InfiniBand's active ports.

    Speed is in GB/s. None is an unknown speed: virtual interfaces, such as a pod's, report a meaningless number.
    """
    name = env.get("GLOO_SOCKET_IFNAME", "").split(",")[0] or find_interface(first)
    speed = None
    if name and (sys / "net" / name / "device").exists():
        with suppress(OSError, ValueError):
            megabits = int((sys / "net" / name / "speed").read_text())
            speed = megabits / 8e3 if megabits > 0 else None
    rates = [port.gb_per_s for port in read_rdma_ports(sys) if port.gb_per_s is not None]
    return {"interface": name, "gb_per_s": speed, "ib_gb_per_s": rates}


def find_interface(address: str) -> str:
    """Return the name of the interface that reaches `address`; "" if unknown."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing
        own = probe.getsockname()[0]
        if own.startswith("127."):
            return "lo"
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == own:
                    return name
    return ""
