"""By what ranks reach each other: what NCCL has chosen, and how fast the network of the node says it is."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

VIA = re.compile(r"\bvia ([A-Z][A-Za-z0-9]+(?:/[A-Za-z]+)?)")
NETWORK = re.compile(r"Using network (\w+)")
IB_RATE = re.compile(r"([\d.]+) Gb/sec")
SIOCGIFADDR = 0x8915


def hide_log(env: dict[str, str]) -> Path | None:
    """Has NCCL tell what it chooses in a file of this process; None where somebody has asked it for something else."""
    if "NCCL_DEBUG" in env:
        return None
    path = Path(tempfile.gettempdir()) / f"stratlab-nccl-{os.getpid()}.log"
    env |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,P2P,SHM", "NCCL_DEBUG_FILE": str(path)}
    return path


def read_log(path: Path | None) -> dict[str, list[str]]:
    """`via`: transports between ranks, as P2P/CUMEM, SHM, NET/IB; `network`: IB or Socket. Removes the file."""
    text = ""
    if path:
        with suppress(OSError):
            text = path.read_text(errors="replace")
        path.unlink(missing_ok=True)
    return {
        "via": sorted({*VIA.findall(text)}) + (["NVLS"] if "NVLS comm" in text else []),
        "network": sorted({*NETWORK.findall(text)}),
    }


def describe_network(env: Mapping[str, str], first: str, sys: Path = Path("/sys/class")) -> dict[str, Any]:
    """The interface that leads to the address `first`, its speed, and InfiniBand's ports that are up.

    Speed is in GB/s, None where it is not known: a virtual interface, as that of a pod, says a number that means
    nothing.
    """
    name = env.get("GLOO_SOCKET_IFNAME", "").split(",")[0] or find_interface(first)
    speed = None
    if name and (sys / "net" / name / "device").exists():
        with suppress(OSError, ValueError):
            megabits = int((sys / "net" / name / "speed").read_text())
            speed = megabits / 8e3 if megabits > 0 else None
    rates = []
    for port in sorted((sys / "infiniband").glob("*/ports/*")):
        with suppress(OSError, AttributeError):
            if "ACTIVE" in (port / "state").read_text():
                rates.append(float(IB_RATE.search((port / "rate").read_text())[1]) / 8)  # type: ignore[index]
    return {"interface": name, "gb_per_s": speed, "ib_gb_per_s": rates}


def find_interface(address: str) -> str:
    """The name of the interface by which `address` is reached; "" where nobody knows."""
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
