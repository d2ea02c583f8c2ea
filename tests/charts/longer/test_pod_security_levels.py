"""A value that leaves the level of its namespace is refused by its name; one that the level allows is not.

Two who do not know each other must agree: the chart's table, and the checks of pod_security.py on what it renders.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.charts.pod_security import APPARMOR, BASELINE_CAPABILITIES, LEVELS, find_level
from tests.charts.rendering import CHARTS, helm_template, refusal, render
from tests.charts.unwrapping import unwrap_pods
from tests.codes import find_codes

GIB = {
    "name": "gib",
    "mountPath": "/usr/local/gib",
    "readOnly": True,
    "hostPath": {"path": "/home/kubernetes/bin/gib"},
}
LISTED = ["/home/kubernetes/bin"]


def security(**given: Any) -> dict[str, Any]:
    return {"pod": {"securityContext": given}}


CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"pod": {"hostNetwork": True}}, "run.pod.hostNetwork=true", "privileged"),
    ({"pod": {"hostIPC": True}}, "run.pod.hostIPC=true", "privileged"),
    ({"pod": {"volumes": [GIB]}}, "run.pod.volumes: gib", "privileged"),
    ({"rdma": {"enabled": True}}, "run.rdma.lockMemory=true", "privileged"),
    (security(capabilities=["SYS_ADMIN"]), "capabilities: SYS_ADMIN", "privileged"),
    (security(capabilities=sorted(BASELINE_CAPABILITIES)), "capabilities: AUDIT_WRITE", "baseline"),
    (security(runAsUser=-0.0), "runAsUser=0", "baseline"),
    (security(seccompProfile="Unconfined"), "seccompProfile=Unconfined", "privileged"),
    (security(seLinuxType="spc_t"), "seLinuxType=spc_t", "privileged"),
    ({"pod": {"annotations": {f"{APPARMOR}pytorch": "unconfined"}}}, f"{APPARMOR}pytorch", "privileged"),
]
RESTRICTED: dict[str, Any] = {
    "rdma": {"enabled": True, "lockMemory": False},
    "pod": {
        "volumes": [
            {"name": "a", "mountPath": "/a", "csi": {"driver": "a.b"}},
            {"name": "b", "mountPath": "/b", "emptyDir": {"sizeLimit": "1Gi", "medium": "Memory"}},
        ],
        "initContainers": [{"name": "a", "image": "a", "command": ["true"]}],
        "runtimeClass": "nvidia",
        "annotations": {f"{APPARMOR}pytorch": "localhost/strict", f"{APPARMOR}wait": "runtime/default"},
        "securityContext": {
            "capabilities": ["NET_BIND_SERVICE"],
            "runAsUser": "",
            "runAsGroup": 0,
            "seLinuxType": "container_t",
            "readOnlyRootFilesystem": False,
        },
    },
}


def needed_level(helm: Path, run: dict[str, Any], level: str) -> str:
    """Of the pods, as they are rendered at this level."""
    values = {"run": {**run, "podSecurity": {"level": level, "hostPaths": LISTED}}}
    pods = unwrap_pods(render(helm, CHARTS / "ddp", values=values)).values()
    found = [find_level(pod["spec"], pod["metadata"].get("annotations")) for pod in pods]
    return max(found, key=LEVELS.index)


@pytest.mark.parametrize(("run", "key", "needs"), CASES, ids=lambda case: str(case)[:60])
def test_a_value_at_its_level_and_below(helm: Path, run: dict[str, Any], key: str, needs: str) -> None:
    assert needed_level(helm, run, needs) == needs
    below = LEVELS[LEVELS.index(needs) - 1]
    said = refusal(helm, "ddp", values={"run": {**run, "podSecurity": {"level": below, "hostPaths": LISTED}}})
    assert find_codes(said) == ["SL-security-level"]
    assert key in said and f"run.podSecurity.level={needs}" in said


def test_what_every_level_allows(helm: Path) -> None:
    assert needed_level(helm, RESTRICTED, "restricted") == "restricted"


def test_all_that_a_level_refuses_is_named_at_once(helm: Path) -> None:
    run = {"pod": {"hostNetwork": True, "securityContext": {"runAsUser": 0}}}
    said = refusal(helm, "ddp", values={"run": run})
    assert all(key in said for key in ("hostNetwork=true", "runAsUser=0", "run.podSecurity.level=privileged"))


@pytest.mark.parametrize("workload", ["api=mpijob-v1", "topology=master-worker"])
def test_what_an_operator_adds_needs_baseline(helm: Path, workload: str) -> None:
    """Whatever the values are: it is not in what is rendered."""
    said = refusal(helm, "ddp", ["--set", f"run.workload.{workload}"])
    assert find_codes(said) == ["SL-security-level"]
    assert f"run.workload.{workload}" in said and "run.podSecurity.level=baseline" in said


@pytest.mark.parametrize("listed", ["/home/kubernetes/bin/gib/", "/home"])
def test_folders_of_the_node_are_listed_and_only_read(helm: Path, listed: str) -> None:
    """With all below; what is not listed, or may be written, is refused: test_refusals.py."""
    run = {"pod": {"volumes": [GIB]}, "podSecurity": {"level": "privileged", "hostPaths": ["/other", listed]}}
    assert helm_template(helm, CHARTS / "ddp", values={"run": run}).returncode == 0
