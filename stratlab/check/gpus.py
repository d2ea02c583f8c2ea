"""The GPUs of the cluster: how many there are, and how many nobody has asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stratlab.check.finding import Finding, ask, unseen
from stratlab.cluster.connection import Connection

GPU = "nvidia.com/gpu"


def check_gpus(connection: Connection) -> Iterator[Finding]:
    """Allocatable ones on nodes that take pods, and how many are asked for already."""
    nodes = ask(connection, "/api/v1/nodes")
    if not isinstance(nodes, dict):
        yield unseen("GPUs", "nodes")
        return
    per_node = count_offered(nodes["items"])
    total = sum(per_node.values())
    if not total:
        fix = 'train on CPUs with --set run.accelerator="", or install the GPU device plugin'
        seen = f"no node of {len(per_node)} offers {GPU}: a run that asks for it waits until there is one [SL-no-gpus]"
        yield Finding("warning", "GPUs", seen, fix)
        return
    pods = ask(connection, "/api/v1/pods", {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"})
    where = f"on {sum(count > 0 for count in per_node.values())} of {len(per_node)} nodes"
    if not isinstance(pods, dict):
        yield Finding("ok", "GPUs", f"{total} {where}; how many are free cannot be seen")
        return
    used = sum(count_gpus(pod) for pod in pods["items"] if pod["spec"].get("nodeName") in per_node)
    yield Finding("ok" if used < total else "warning", "GPUs", f"{total - used} of {total} are free, {where}")


def offers_gpus(connection: Connection) -> bool:
    """Whether a node that takes pods has some to give, as far as this may be seen."""
    nodes = ask(connection, "/api/v1/nodes")
    return isinstance(nodes, dict) and any(count_offered(nodes["items"]).values())


def count_offered(nodes: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """GPUs by the name of each node that takes pods."""
    return {
        node["metadata"]["name"]: int(node["status"].get("allocatable", {}).get(GPU, 0))
        for node in nodes
        if not node["spec"].get("unschedulable")
    }


def count_gpus(pod: Mapping[str, Any]) -> int:
    """As the scheduler counts them: a device is asked for by its limit."""
    containers = pod["spec"].get("containers") or []
    return sum(int(((each.get("resources") or {}).get("limits") or {}).get(GPU, 0)) for each in containers)
