"""What the ranks of a healthy run on GPUs post, to be spoilt in one place."""

from __future__ import annotations

import copy
from typing import Any

from trainer.environment.board import Asked

PODS, PER_POD = 2, 2
ASKED = Asked(nodes=PODS, per_node=PER_POD, accelerator="nvidia.com/gpu", results="/results")
NAMES = [f"check-worker-{index}" for index in range(PODS)]


def post_healthy(pods: int = PODS) -> dict[int, dict[str, Any]]:
    """Facts of `pods` times PER_POD ranks on H200s that NVLink joins within a pod, InfiniBand between them."""
    ranks = range(pods * PER_POD)
    return {rank: _post(rank, pods) for rank in ranks}


def spoil(rank: int, *path: str, **changed: Any) -> dict[int, dict[str, Any]]:
    """Healthy facts of PODS pods; what lies at `path` of one rank is changed."""
    facts = copy.deepcopy(post_healthy())
    place = facts[rank]
    for name in path:
        place = place[name]
    place.update(changed)
    return facts


def _post(rank: int, pods: int) -> dict[str, Any]:
    row = {"mib": 256.0, "ms": 2.0, "gb_per_s": 40.0}
    found: dict[str, Any] = {
        "rank": rank,
        "local_rank": rank % PER_POD,
        "pod_index": rank // PER_POD,
        "pod": NAMES[rank // PER_POD],
        "node": f"gpu-{rank // PER_POD}",
        "host": NAMES[rank // PER_POD],
        "versions": {
            "trainer": "0.1.0",
            "python": "3.11.7",
            "torch": "2.11.0",
            "cuda": "13.0",
            "nccl": "2.28.9",
        },
        "device": {
            "visible": PER_POD,
            "type": "cuda",
            "name": "NVIDIA H200",
            "uuid": f"uuid-{rank}",
            "gib": 139.8,
            "free_gib": 139.2,
            "driver": "580.1",
            "nvlink_gb_per_s": 478.0,
            "pcie_gb_per_s": 63.0,
            "joined": {str(1 - rank % PER_POD): "NVLink"},
        },
        "meeting": {"backend": "nccl"},
        "clock": {"offset_s": 0.001, "within_s": 0.0001},
        "files of the others": {"unseen": [], "after_s": 0.1, "unwritten": ""},
        "all-reduce": {
            "all": [{**row, "mib": 1.0, "gb_per_s": 5.0}, row],
            "pod": [{**row, "gb_per_s": 300.0}],
        },
        "transport": {"via": ["NET/IB", "P2P/CUMEM"], "network": ["IB"]},
    }
    if pods == 1:
        found["all-reduce"] = {"all": [{**row, "gb_per_s": 300.0}]}
    if found["local_rank"] == 0:
        found |= {
            "shared memory": {"gib": 8.0, "free_gib": 7.9},
            "results volume": {
                "gib": 1000.0,
                "free_gib": 500.0,
                "mb_per_s": 900.0,
                "clock_s": 0.01,
                "clock_within_s": 0.001,
            },
            "network": {"interface": "eth0", "gb_per_s": None, "ib_gb_per_s": [50.0, 50.0]},
        }
    return found
