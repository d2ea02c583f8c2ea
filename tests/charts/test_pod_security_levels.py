"""A value that leaves the level of its namespace is refused by its name; one that the level allows is not.

Two who do not know each other must agree: the chart's table, and the checks of pod_security.py on what it renders.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.charts.pod_security import APPARMOR, BASELINE_CAPABILITIES, LEVELS, find_level
from tests.charts.rendering import CHARTS, OTHER_CHARTS, helm_template, read_documents
from tests.charts.unwrapping import unwrap_pods

GIB = {
    "name": "gib",
    "mountPath": "/usr/local/gib",
    "readOnly": True,
    "hostPath": {"path": "/home/kubernetes/bin/gib"},
}
LISTED = ["/home/kubernetes/bin"]
CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"pod": {"hostNetwork": True}}, "run.pod.hostNetwork=true", "privileged"),
    ({"pod": {"hostIPC": True}}, "run.pod.hostIPC=true", "privileged"),
    ({"pod": {"volumes": [GIB]}}, "run.pod.volumes: gib (hostPath", "privileged"),
    ({"rdma": {"enabled": True}}, "run.rdma.lockMemory=true", "privileged"),
    ({"rdma": {"enabled": True, "lockMemory": False}}, "", "restricted"),
    (
        {"pod": {"securityContext": {"capabilities": ["SYS_ADMIN"]}}},
        "run.pod.securityContext.capabilities: SYS_ADMIN",
        "privileged",
    ),
    (
        {"pod": {"securityContext": {"capabilities": sorted(BASELINE_CAPABILITIES)}}},
        "run.pod.securityContext.capabilities: AUDIT_WRITE",
        "baseline",
    ),
    ({"pod": {"securityContext": {"capabilities": ["NET_BIND_SERVICE"]}}}, "", "restricted"),
    ({"pod": {"securityContext": {"runAsUser": 0}}}, "run.pod.securityContext.runAsUser=0", "baseline"),
    ({"pod": {"securityContext": {"runAsUser": -0.0}}}, "run.pod.securityContext.runAsUser=0", "baseline"),
    ({"pod": {"securityContext": {"runAsUser": ""}}}, "", "restricted"),
    ({"pod": {"securityContext": {"runAsGroup": 0, "fsGroup": 0}}}, "", "restricted"),
    (
        {"pod": {"securityContext": {"seccompProfile": "Unconfined"}}},
        "run.pod.securityContext.seccompProfile=Unconfined",
        "privileged",
    ),
    ({"pod": {"securityContext": {"seLinuxType": "spc_t"}}}, "seLinuxType=spc_t", "privileged"),
    ({"pod": {"securityContext": {"seLinuxType": "container_t"}}}, "", "restricted"),
    ({"pod": {"securityContext": {"readOnlyRootFilesystem": False}}}, "", "restricted"),
    (
        {"pod": {"annotations": {f"{APPARMOR}pytorch": "unconfined"}}},
        f"run.pod.annotations: {APPARMOR}pytorch=unconfined",
        "privileged",
    ),
    ({"pod": {"annotations": {f"{APPARMOR}pytorch": "runtime/default"}}}, "", "restricted"),
    ({"pod": {"annotations": {f"{APPARMOR}pytorch": "localhost/strict"}}}, "", "restricted"),
    (
        {
            "pod": {
                "volumes": [
                    {"name": "a", "mountPath": "/a", "csi": {"driver": "a.b"}},
                    {"name": "b", "mountPath": "/b", "emptyDir": {"sizeLimit": "1Gi", "medium": "Memory"}},
                ],
                "initContainers": [{"name": "a", "image": "a", "command": ["true"]}],
                "runtimeClass": "nvidia",
                "annotations": {"a": "b"},
            }
        },
        "",
        "restricted",
    ),
]


@pytest.mark.parametrize(("run", "key", "needs"), CASES, ids=lambda case: str(case)[:60])
def test_a_value_at_its_level_and_below(helm: Path, run: dict[str, Any], key: str, needs: str) -> None:
    def template(level: str) -> subprocess.CompletedProcess[str]:
        values = {"run": {**run, "podSecurity": {"level": level, "hostPaths": LISTED}}}
        return helm_template(helm, CHARTS / "ddp", values=values)

    done = template(needs)
    assert done.returncode == 0, done.stderr
    pods = unwrap_pods(read_documents(done.stdout))
    found = {name: find_level(pod["spec"], pod["metadata"].get("annotations")) for name, pod in pods.items()}
    assert max(found.values(), key=LEVELS.index) == needs
    if needs != LEVELS[0]:
        below = LEVELS[LEVELS.index(needs) - 1]
        done = template(below)
        assert done.returncode == 1 and done.stdout == ""
        assert key in done.stderr and f"needs `{needs}`" in done.stderr
        assert f"run.podSecurity.level is {below}" in done.stderr
        assert f"say so: run.podSecurity.level={needs}" in done.stderr


def test_all_that_a_level_refuses_is_named_at_once(helm: Path) -> None:
    run = {"pod": {"hostNetwork": True, "securityContext": {"runAsUser": 0}}, "rdma": {"enabled": True}}
    done = helm_template(helm, CHARTS / "ddp", values={"run": run})
    for key in ("run.pod.hostNetwork=true", "runAsUser=0", "run.rdma.lockMemory=true"):
        assert key in done.stderr
    assert "run.podSecurity.level=privileged" in done.stderr


@pytest.mark.parametrize("workload", ["api=mpijob-v1", "topology=master-worker"])
def test_what_an_operator_adds_needs_baseline(helm: Path, workload: str) -> None:
    """Whatever the values are: it is not in what is rendered."""
    for level in LEVELS:
        settings = f"run.workload.{workload},run.podSecurity.level={level}"
        done = helm_template(helm, CHARTS / "ddp", ["--set", settings])
        assert (done.returncode == 0) == (level != "restricted"), done.stderr
    done = helm_template(helm, CHARTS / "ddp", ["--set", f"run.workload.{workload}"])
    assert f"run.workload.{workload} (its operator adds an init container" in done.stderr
    assert "needs `baseline`" in done.stderr and "say so: run.podSecurity.level=baseline" in done.stderr


@pytest.mark.parametrize("level", LEVELS)
def test_a_preparation_is_held_to_it_too(helm: Path, level: str) -> None:
    values = {"run": {"pod": {"securityContext": {"runAsUser": 0}}, "podSecurity": {"level": level}}}
    done = helm_template(helm, CHARTS / "prepare", OTHER_CHARTS["prepare"], values=values)
    assert (done.returncode == 0) == (level != "restricted"), done.stderr
    assert done.returncode == 0 or "runAsUser=0 needs `baseline`" in done.stderr


@pytest.mark.parametrize(
    ("volume", "listed", "says"),
    [
        (GIB, [], "gib is the folder /home/kubernetes/bin/gib of the node, which run.podSecurity.hostPaths does not"),
        (GIB, ["/home/kubernetes/bin/gi"], "run.podSecurity.hostPaths does not list"),
        (GIB, ["/home/kubernetes/bin/gib/lib64"], "run.podSecurity.hostPaths does not list"),
        ({**GIB, "readOnly": False}, LISTED, "which may only be read: readOnly must be true"),
        ({k: v for k, v in GIB.items() if k != "readOnly"}, LISTED, "readOnly must be true"),
        (GIB, LISTED, ""),
        (GIB, ["/home/kubernetes/bin/gib/"], ""),
        (GIB, ["/other", "/home"], ""),
    ],
    ids=str,
)  # fmt: skip
def test_folders_of_the_node_are_listed_and_only_read(
    helm: Path, volume: dict[str, Any], listed: list[str], says: str
) -> None:
    run = {"pod": {"volumes": [volume]}, "podSecurity": {"level": "privileged", "hostPaths": listed}}
    done = helm_template(helm, CHARTS / "ddp", values={"run": run})
    assert (done.returncode == 1) == bool(says), done.stderr
    assert not says or f"run.pod.volumes: {says}" in done.stderr or says in done.stderr


@pytest.mark.parametrize("key", ["privileged", "hostPID", "sysctls"])
def test_there_is_no_key_for_more(helm: Path, key: str) -> None:
    for pod in ({key: True}, {"securityContext": {key: True}}):
        run = {"pod": pod, "podSecurity": {"level": "privileged"}}
        done = helm_template(helm, CHARTS / "ddp", values={"run": run})
        assert done.returncode == 1 and key in done.stderr
