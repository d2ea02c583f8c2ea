"""A queue of Kueue with room for one run: admitted, preempted by a run of higher priority, resumed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import KUBECTL, Lab, build_list, build_object, run, wait_until
from tests.cluster.operators.test_operators import MPIJOB, SMALL, TRAINJOB
from tests.cluster.path import Run, check_comparison, check_success
from tests.cluster.resuming import Fault, check_resumed, wait_for_checkpoint

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
        "apiVersion": GROUP, "kind": "WorkloadPriorityClass", "metadata": {"name": URGENT},
        "value": 100,
    }  # fmt: skip
    return [*objects, urgent]


@contextmanager
def use_queue(lab: Lab) -> Iterator[None]:
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


pytestmark = pytest.mark.cluster

PYTORCHJOB = Run("ddp", "whole-pytorchjob", values=SMALL)
SHORT = {"run.config.epochs": 2, "run.config.comparison": "urgent", "run.analysis.enabled": "false"}


@pytest.fixture(scope="module", autouse=True)
def queue(lab: Lab) -> Iterator[None]:
    with use_queue(lab):
        yield


@pytest.mark.parametrize("kind", [PYTORCHJOB, TRAINJOB, MPIJOB], ids=lambda kind: kind.name.partition("-")[2])
def test_a_run_is_preempted_and_resumed(lab: Lab, kind: Run, tmp_path: Path) -> None:
    api = kind.name.partition("-")[2]
    values = kind.values | QUEUED | {"run.config.comparison": f"queued-{api}"}
    low = replace(kind, release=f"low-{api}", values=values)
    whole = replace(kind, release=f"alone-{api}", values=values | {"run.analysis.enabled": "false"})
    urgent = replace(kind, release=f"urgent-{api}", values=values | SHORT | PRIORITY)
    lab.install(low.name, low.chart, low.values)
    wait_for_checkpoint(lab, low)
    lab.install(urgent.name, urgent.chart, urgent.values)
    wait_for_eviction(lab, low.name)
    assert lab.conditions(f"{low.resource}/{low.name}").get("Suspended") == "True"
    lab.watch(urgent.name)
    wait_until(lambda: find_admission(lab, low.name).get("Admitted") == "True", "admitted again")
    check_success(lab, low)
    lab.uninstall(urgent.name)
    lab.install(whole.name, whole.chart, whole.values)
    lab.watch(whole.name)
    check_resumed(lab, Fault(low, whole))
    check_comparison(lab, f"queued-{api}", [whole.name, low.name], tmp_path / "report")
    for each in (low, whole):
        lab.uninstall(each.name)
