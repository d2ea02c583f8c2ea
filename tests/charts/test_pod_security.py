"""Every pod passes Pod Security `restricted`, and the check that says so is not blind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.charts.pod_security import CONTAINER_CONTROLS, POD_CONTROLS, find_pods, restricted_problems
from tests.charts.rendering import CHARTS, Document, analysis_pod, pick, render, training_pod, waiter_pod
from tests.charts.test_valid_objects import EVERYTHING
from tests.charts.unwrapping import WORKLOADS, unwrap_pods, workload_values

Spec = dict[str, Any]


def test_every_pod_is_restricted(documents: list[Document]) -> None:
    pods = list(find_pods(documents))
    every = (analysis_pod(documents), waiter_pod(documents), training_pod(documents))
    for expected in (*every, pick(documents, "Pod")["spec"]):
        assert expected in pods
    assert len(pods) == 4
    for pod in pods:
        assert restricted_problems(pod) == []


@pytest.mark.parametrize(("api", "topology"), WORKLOADS)
def test_with_every_value_only_those_break_it_that_say_so(helm: Path, api: str, topology: str) -> None:
    """And what operators add, which is not in here. The Jobs of the lab stay restricted."""
    rendered = render(helm, CHARTS / "ddp", workload_values(api, topology), values={"run": EVERYTHING})
    found = {name: restricted_problems(pod["spec"]) for name, pod in unwrap_pods(rendered).items()}
    assert len(found) == 3 + len(WORKLOADS[api, topology])
    trains = ("Worker", "Master", "node")
    for name, problems in found.items():
        expected = {"pod: hostNetwork", "pod: hostIPC", "pod: volume type"}
        expected |= {"node: capabilities.add" if api == "trainjob" else "pytorch: capabilities.add"}
        assert {*problems} == (expected if name.endswith(trains) else set()), name


def test_what_restricted_does_not_ask_for(documents: list[Document]) -> None:
    """No token of the API server, a root file system that cannot be written, a group that can read the volume."""
    for pod in find_pods(documents):
        assert pod["automountServiceAccountToken"] is False
        assert {pod["securityContext"][name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {10001}
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


GOOD: Spec = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "volumes": [{"name": "v", "emptyDir": {}}],
    "initContainers": [
        {
            "name": "first",
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
    "containers": [
        {
            "name": "main",
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
}


def main(pod: Spec) -> Spec:
    return pod["containers"][0]["securityContext"]


def first(pod: Spec) -> Spec:
    return pod["initContainers"][0]["securityContext"]


# What breaks the pod -> which control must say so
POD_MUTATIONS: list[tuple[str, Callable[[Spec], Any]]] = [
    ("hostNetwork", lambda p: p.update(hostNetwork=True)),
    ("hostPID", lambda p: p.update(hostPID=True)),
    ("hostIPC", lambda p: p.update(hostIPC=True)),
    ("hostProcess", lambda p: p["securityContext"].update(windowsOptions={"hostProcess": True})),
    ("volume type", lambda p: p["volumes"].append({"name": "h", "hostPath": {"path": "/"}})),
    ("volume type", lambda p: p["volumes"].append({"name": "h", "nfs": {"server": "x", "path": "/"}})),
    ("sysctls", lambda p: p["securityContext"].update(sysctls=[{"name": "kernel.msgmax", "value": "1"}])),
    ("seLinuxOptions", lambda p: p["securityContext"].update(seLinuxOptions={"type": "spc_t"})),
    ("appArmorProfile", lambda p: p["securityContext"].update(appArmorProfile={"type": "Unconfined"})),
    ("runAsUser 0", lambda p: p["securityContext"].update(runAsUser=0)),
]
CONTAINER_MUTATIONS: list[tuple[str, Callable[[Spec], Any]]] = [
    ("privileged", lambda p: main(p).update(privileged=True)),
    ("privileged", lambda p: first(p).update(privileged=True)),
    ("allowPrivilegeEscalation", lambda p: main(p).update(allowPrivilegeEscalation=True)),
    ("allowPrivilegeEscalation", lambda p: first(p).pop("allowPrivilegeEscalation")),
    ("capabilities.drop", lambda p: main(p).pop("capabilities")),
    ("capabilities.drop", lambda p: main(p)["capabilities"].update(drop=["NET_RAW"])),
    ("capabilities.add", lambda p: main(p)["capabilities"].update(add=["IPC_LOCK"])),
    ("runAsNonRoot", lambda p: p["securityContext"].pop("runAsNonRoot")),
    ("runAsNonRoot", lambda p: first(p).update(runAsNonRoot=False)),
    ("runAsUser 0", lambda p: main(p).update(runAsUser=0)),
    ("seccompProfile", lambda p: p["securityContext"].pop("seccompProfile")),
    ("seccompProfile", lambda p: main(p).update(seccompProfile={"type": "Unconfined"})),
    ("procMount", lambda p: main(p).update(procMount="Unmasked")),
    ("hostPort", lambda p: p["containers"][0].update(ports=[{"containerPort": 80, "hostPort": 80}])),
    ("hostProcess", lambda p: main(p).update(windowsOptions={"hostProcess": True})),
    ("seLinuxOptions", lambda p: main(p).update(seLinuxOptions={"user": "system_u"})),
    ("appArmorProfile", lambda p: first(p).update(appArmorProfile={"type": "Unconfined"})),
]


def test_the_good_pod_passes() -> None:
    assert restricted_problems(GOOD) == []


@pytest.mark.parametrize(("control", "change"), POD_MUTATIONS, ids=[name for name, _ in POD_MUTATIONS])
def test_a_pod_that_breaks_a_control(control: str, change: Callable[[Spec], Any]) -> None:
    pod = copy.deepcopy(GOOD)
    change(pod)
    assert f"pod: {control}" in restricted_problems(pod)


@pytest.mark.parametrize(
    ("control", "change"), CONTAINER_MUTATIONS, ids=[name for name, _ in CONTAINER_MUTATIONS]
)
def test_a_container_that_breaks_a_control(control: str, change: Callable[[Spec], Any]) -> None:
    pod = copy.deepcopy(GOOD)
    change(pod)
    assert {f"main: {control}", f"first: {control}"} & set(restricted_problems(pod))


def test_every_control_is_broken_once() -> None:
    assert {name for name, _ in POD_MUTATIONS} == POD_CONTROLS.keys()
    assert {name for name, _ in CONTAINER_MUTATIONS} == CONTAINER_CONTROLS.keys()


def test_pods_are_found_in_objects_of_any_kind() -> None:
    pod = {"containers": [{"name": "x"}]}
    hidden = {"kind": "Any", "spec": {"parts": [{"template": {"spec": pod}}], "other": {"spec": pod}}}
    assert list(find_pods([hidden])) == [pod, pod]
