"""A queue of Kueue in a namespace: room for one run, and a class of priority that takes it from others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.lab import KUBECTL, Lab, build_list, build_object, run, wait_until

NAME, URGENT = "stratlab-test", "stratlab-urgent"
GROUP = "kueue.x-k8s.io/v1beta1"
# of two pods that request 50m and 1Gi each; launchers of an MPIJob 100m and 256Mi
ROOM = {"cpu": "200m", "memory": "2560Mi"}
QUEUED = {"run.scheduling.gang": "kueue", "run.scheduling.queue": NAME}
PRIORITY = {r"run.pod.labels.kueue\.x-k8s\.io/priority-class": URGENT}


def build_objects(namespace: str) -> list[dict[str, Any]]:
    resources = [{"name": name, "nominalQuota": amount} for name, amount in ROOM.items()]
    groups = [{"coveredResources": list(ROOM), "flavors": [{"name": NAME, "resources": resources}]}]
    specs: dict[str, dict[str, Any]] = {
        "ResourceFlavor": {},
        "ClusterQueue": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": groups,
        },
        "LocalQueue": {"clusterQueue": NAME},
    }
    objects = [build_object(kind, NAME, spec) | {"apiVersion": GROUP} for kind, spec in specs.items()]
    objects[-1]["metadata"]["namespace"] = namespace
    urgent = {
        "apiVersion": GROUP,
        "kind": "WorkloadPriorityClass",
        "metadata": {"name": URGENT},
        "value": 100,
    }
    return [*objects, urgent]


@contextmanager
def use_queue(lab: Lab) -> Iterator[None]:
    """Removed afterwards, by its names."""
    text = build_list(build_objects(lab.namespace))
    try:
        run([KUBECTL, "apply", "-f", "-"], text=text)
        lab.kubectl("wait", f"localqueue/{NAME}", "--for=condition=Active", "--timeout=60s")
        yield
    finally:
        run([KUBECTL, "delete", "--ignore-not-found", "--timeout=60s", "-f", "-"], text=text, check=False)


def find_admission(lab: Lab, release: str) -> dict[str, str]:
    """{condition: status} of Kueue's Workload of a run; {} before there is one."""
    for each in lab.get("workloads.kueue.x-k8s.io")["items"]:
        owners = [owner["name"] for owner in each["metadata"].get("ownerReferences") or []]
        if release in owners:
            return {one["type"]: one["status"] for one in each.get("status", {}).get("conditions") or []}
    return {}


def wait_for_eviction(lab: Lab, release: str, timeout_s: float = 180) -> None:
    """Until Kueue has taken the room from a run, and its pods are gone."""

    def is_out() -> bool:
        found = find_admission(lab, release)
        running = {"Pending", "Running"} & {*lab.phases(release)}
        return found.get("Preempted") == "True" and found.get("Admitted") != "True" and not running

    wait_until(is_out, f"{release} is preempted, Kueue says {find_admission(lab, release)}", timeout_s)
