"""Ask NVML for a device's links, and after the first step NCCL's log for what it makes of them.

NVML, ports of the node ─▶ Present ────────────────────────┐
NCCL's log ─▶ Transport ─▶ gathered from all ranks ─▶ fall-backs ─▶ a rank's facts, warnings
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from trainer.distributed.nccl_transport import (
    FIX,
    NcclLog,
    Present,
    Transport,
    describe_transport,
    find_fall_backs,
    find_present,
    name_fall_backs,
    read_log,
    read_rdma_ports,
    say_fall_back,
)
from trainer.distributed.world import World, gather_objects

log = logging.getLogger("trainer")

PCIE_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s per lane and direction, by generation."""
# nvmlDeviceGetTopologyCommonAncestor, with the names of `nvidia-smi topo -m`
ANCESTORS = {0: "SELF", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def ask_nvml(local_rank: int, visible: int) -> dict[str, Any]:
    """Return driver, links and topology, or `nvml`, why NVML is not available."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        # by UUID: NVML counts all GPUs of the node, CUDA only the visible ones
        uuids = [f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(visible)]
        handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
    except Exception as failure:  # NVML errors, or a missing driver library
        return {"nvml": f"{type(failure).__name__}: {failure}"}
    own = handles[local_rank]

    def ask(question: Callable[[], Any]) -> Any:
        with suppress(nvml.NVMLError, AttributeError, KeyError):
            return question()
        return None

    return {
        "driver": _text(ask(nvml.nvmlSystemGetDriverVersion)),
        "nvlink_gb_per_s": ask(lambda: _sum_links(nvml, own)),
        "pcie_gb_per_s": ask(lambda: _read_pcie(nvml, own)),
        "joined": {
            str(index): ask(partial(_name_join, nvml, own, other)) or "unknown"
            for index, other in enumerate(handles)
            if index != local_rank
        },
    }


def _read_pcie(nvml: Any, handle: Any) -> float:
    lane = PCIE_LANE[nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)]
    return lane * float(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))


def _sum_links(nvml: Any, handle: Any) -> float:
    """Return the GB/s per direction of all active NVLinks; 0.0 without NVLinks."""
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


def read_own_transport(local_rank: int, nccl_log: NcclLog) -> tuple[Transport | None, Present]:
    """Return the rank's transport, and its faster ways; the log is complete once a step has run."""
    joined: Mapping[str, str] = ask_nvml(local_rank, torch.cuda.device_count()).get("joined", {})
    present = find_present(read_rdma_ports(), joined.values(), os.environ)
    return read_log(nccl_log, joined.values()), present


def observe_transport(world: World, nccl_log: NcclLog, group: Any) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the rank's `transport` of ranks/rank*.json, None if unknown, and the run's warnings; collective.

    Args:
        group: of all ranks, through their hosts.
    """
    found, present = read_own_transport(world.local_rank, nccl_log)
    ranks = gather_objects((found, present), group)
    reasons = find_fall_backs(ranks)
    if world.rank == 0:
        log.info("NCCL: %s", describe_transport([each for each, _ in ranks]))
    facts = None
    if found:
        told = {name: value or None for name, value in asdict(found).items()}
        facts = {**told, "present": asdict(present), "fell_back": reasons[world.rank] or None}
    return facts, [f"{say_fall_back(named)}; {FIX}" for named in name_fall_backs(reasons)]
