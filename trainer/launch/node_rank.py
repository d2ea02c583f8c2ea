"""Ranks follow the pods: pod `ddp-worker-2` of 2 processes each holds ranks 4 and 5, and worker-0 has rank 0's console.

torch's c10d rendezvous numbers the nodes in the order of their addresses as text, in which 10.1.0.10 comes before
10.1.0.9 (dynamic_rendezvous.py, torch 2.13): after a restart, or on an unlucky day, rank 0 is in any pod. Its store is
the launcher's, not rank 0's, so that the ranks may be dealt out anew before the process group is made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

POD_INDEX = re.compile(r"-worker-(\d+)$")


def read_node_rank(env: Mapping[str, str], pod_name: str) -> int | None:
    """The pod's index, or None where torch's own numbering is right: no rendezvous, or pods without an index."""
    found = POD_INDEX.search(pod_name)
    return int(found.group(1)) if found and "PET_RDZV_ENDPOINT" in env else None


def holds_rank_0(env: Mapping[str, str], pod_name: str, nodes: int) -> bool:
    """Whether the first rank will be in this pod; False where only torch's rendezvous will know."""
    if nodes == 1:
        return True
    node = read_node_rank(env, pod_name)
    if node is None and "PET_RDZV_ENDPOINT" not in env:  # a TrainJob, or a PyTorchJob with a master
        return env.get("PET_NODE_RANK") == "0"
    return node == 0


def read_rank(env: Mapping[str, str], pod_name: str) -> int:
    """This process's rank, from the variables of torch's launcher and the pod it is in."""
    node = read_node_rank(env, pod_name)
    if node is None:
        return int(env["RANK"])
    return node * int(env["LOCAL_WORLD_SIZE"]) + int(env["LOCAL_RANK"])
