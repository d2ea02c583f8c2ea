"""The device of a rank: whether it computes, how much of it is free, and how it is joined to the others of its pod."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from trainer.layout.world import processor_name

GIB = 2**30
PCIE_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s per lane and direction, by generation."""
# nvmlDeviceGetTopologyCommonAncestor, in the words of `nvidia-smi topo -m`
ANCESTORS = {0: "SELF", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def count_visible() -> int:
    """Devices that torch can use in this process."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def describe_device(local_rank: int) -> dict[str, Any]:
    """What this rank would compute on; with "visible" alone where there is no device for it but others are."""
    visible = count_visible()
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
        **_ask_nvml(local_rank, visible),
    }


def _ask_nvml(local_rank: int, visible: int) -> dict[str, Any]:
    """Driver, links and topology; {} where NVML is not to be had."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        # by UUID: NVML counts all GPUs of the node, CUDA only those that are visible
        uuids = [f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(visible)]
        handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
    except Exception as failure:  # its own errors, and those of a driver library that is not there
        return {"nvml": f"{type(failure).__name__}: {failure}"}
    own = handles[local_rank]

    def ask(question: Callable[[], Any]) -> Any:
        with suppress(nvml.NVMLError, AttributeError, KeyError):
            return question()
        return None

    return {
        "driver": _text(ask(nvml.nvmlSystemGetDriverVersion)),
        "nvlink_gb_per_s": ask(lambda: _sum_links(nvml, own)),
        "pcie_gb_per_s": ask(
            lambda: (
                PCIE_LANE[nvml.nvmlDeviceGetMaxPcieLinkGeneration(own)]
                * nvml.nvmlDeviceGetCurrPcieLinkWidth(own)
            )
        ),
        "joined": {
            str(index): ask(partial(_name_join, nvml, own, other)) or "unknown"
            for index, other in enumerate(handles)
            if index != local_rank
        },
    }


def _sum_links(nvml: Any, handle: Any) -> float:
    """GB/s per direction of all NVLinks that are up; 0.0 for a device without."""
    up = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        with suppress(nvml.NVMLError):
            up += nvml.nvmlDeviceGetNvLinkState(handle, link) == 1
    if not up:
        return 0.0
    (speed,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])
    return up * float(speed.value.uiVal) / 1e3


def _name_join(nvml: Any, own: Any, other: Any) -> str:
    with suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetP2PStatus(own, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0:
            return "NVLink"
    return ANCESTORS.get(int(nvml.nvmlDeviceGetTopologyCommonAncestor(own, other)), "unknown")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
