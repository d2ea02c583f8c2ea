"""What `run.pod` says reaches the pods that train, by every API; others get their part of it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.charts.rendering import (
    CHARTS,
    OTHER_CHARTS,
    Document,
    container,
    environment,
    pick,
    render,
)
from tests.charts.test_valid_objects import EVERYTHING
from tests.charts.unwrapping import RUNNING, WORKLOADS, unwrap_pods, workload_values

POD: dict[str, Any] = EVERYTHING["pod"]  # type: ignore[assignment]
OWN = {"matchLabels": {"app.kubernetes.io/instance": "golden", "app.kubernetes.io/component": "training"}}
VOLUMES = [volume["name"] for volume in POD["volumes"]]


def pods_of(helm: Path, run: dict[str, Any], *arguments: str) -> dict[str, Document]:
    return unwrap_pods(render(helm, CHARTS / "ddp", arguments, values={"run": run}))


def trainer(pod: Document) -> Document:
    (found,) = pod["spec"]["containers"]
    return found


@pytest.fixture(scope="module", params=WORKLOADS, ids=lambda workload: "-".join(workload))
def pods(request: pytest.FixtureRequest, helm: Path) -> dict[str, Document]:
    return pods_of(helm, EVERYTHING, *workload_values(*request.param))


def test_the_pods_that_train_get_all_of_it(pods: dict[str, Document]) -> None:
    names = [name for name in pods if name in RUNNING]
    assert names
    for name in names:
        spec, metadata = pods[name]["spec"], pods[name]["metadata"]
        assert metadata["annotations"] == POD["annotations"]
        assert metadata["labels"].items() >= POD["labels"].items()
        assert spec["serviceAccountName"] == "trainer" and spec["automountServiceAccountToken"] is False
        assert spec["runtimeClassName"] == "nvidia"
        assert spec["hostNetwork"] is spec["hostIPC"] is True
        assert spec["dnsPolicy"] == "ClusterFirstWithHostNet"
        assert spec["topologySpreadConstraints"] == [{**POD["topologySpread"][0], "labelSelector": OWN}]
        mounts = trainer(pods[name])["volumeMounts"]
        assert [mount["name"] for mount in mounts] == ["results", "tmp", "shm", *VOLUMES]
        assert mounts[4] == {
            "name": "data",
            "mountPath": "/data/sets",
            "subPath": "a/b",
            "readOnly": True,
        }
        assert [volume["name"] for volume in spec["volumes"]] == ["results", "tmp", "shm", *VOLUMES]
        assert spec["volumes"][-1] == {"name": "gib", "hostPath": POD["volumes"][-1]["hostPath"]}
        assert trainer(pods[name])["securityContext"]["capabilities"] == {
            "drop": ["ALL"],
            "add": ["SYS_PTRACE", "IPC_LOCK"],
        }
        assert environment(spec, trainer(pods[name])["name"])["HOSTNAME"] == "<metadata.name>"


def test_init_containers_see_the_volumes_and_are_confined(pods: dict[str, Document]) -> None:
    for name in filter(RUNNING.__contains__, pods):
        first, second = pods[name]["spec"]["initContainers"]
        assert first["command"] == ["cp", "-r", "/opt/x", "/scratch"] and first["imagePullPolicy"] == "Always"
        assert first["env"] == [{"name": "A", "value": "$$(B)"}]  # no reference: as it was typed
        assert first["resources"] == {"limits": {"memory": "1Gi"}, "requests": {"cpu": "100m"}}
        assert second["resources"] == {"requests": {"cpu": "100m", "memory": "128Mi"}}
        for each in (first, second):
            assert [mount["name"] for mount in each["volumeMounts"]] == ["results", "tmp", *VOLUMES]
            assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert each["securityContext"]["allowPrivilegeEscalation"] is False


def test_affinity_to_the_run_itself_is_the_default(pods: dict[str, Document]) -> None:
    required, preferred = (
        "requiredDuringSchedulingIgnoredDuringExecution",
        "preferredDuringSchedulingIgnoredDuringExecution",
    )
    for name in filter(RUNNING.__contains__, pods):
        affinity = pods[name]["spec"]["affinity"]
        assert affinity["nodeAffinity"] == POD["affinity"]["nodeAffinity"]
        near = {"topologyKey": "rack", "labelSelector": OWN}
        assert affinity["podAffinity"] == {preferred: [{"weight": 100, "podAffinityTerm": near}]}
        assert affinity["podAntiAffinity"] == {
            required: POD["affinity"]["podAntiAffinity"][required]
        }  # its own selector


def test_others_get_labels_and_users_alone(pods: dict[str, Document]) -> None:
    others = [name for name in pods if name not in RUNNING]
    assert {"Job", "Pod"} <= {*others}
    for name in others:
        spec = pods[name]["spec"]
        assert pods[name]["metadata"]["labels"].items() >= POD["labels"].items()
        assert not pods[name]["metadata"].get("annotations", {}).keys() & POD["annotations"].keys()
        assert not spec.keys() & {"hostNetwork", "hostIPC", "affinity", "runtimeClassName", "dnsPolicy"}
        assert not {volume["name"] for volume in spec["volumes"]} & {*VOLUMES}
        if name == "MPIJob.Launcher":  # v1's operator makes it an account
            assert spec.get("serviceAccountName") == (
                None if spec["automountServiceAccountToken"] else "trainer"
            )
            assert "initContainers" not in spec


def test_every_pod_has_the_users_and_a_bounded_tmp(pods: dict[str, Document]) -> None:
    for pod in pods.values():
        security = pod["spec"]["securityContext"]
        assert security["runAsUser"] == 10001 and "runAsGroup" not in security
        assert (security["fsGroup"], security["supplementalGroups"]) == (2000, [44, 1000650000])
        assert security["seLinuxOptions"] == {"type": "container_t"}
        assert {"name": "tmp", "emptyDir": {"sizeLimit": "9Gi"}} in pod["spec"]["volumes"]
        for each in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            assert each["securityContext"]["readOnlyRootFilesystem"] is False


def test_objects_carry_the_labels(helm: Path) -> None:
    labels = {"kueue.x-k8s.io/priority-class": "low"}
    for document in render(helm, CHARTS / "ddp", values={"run": {"pod": {"labels": labels}}}):
        assert document["metadata"]["labels"].items() >= labels.items()


def test_nothing_of_it_as_shipped(documents: list[Document]) -> None:
    for name, pod in unwrap_pods(documents).items():
        allowed = {"serviceAccountName"} if name == "Job.waiter" else set()
        added = {"affinity", "topologySpreadConstraints", "runtimeClassName", "hostNetwork", "hostIPC"}
        assert not pod["spec"].keys() & ((added | {"initContainers", "serviceAccountName"}) - allowed)
        assert {"name": "tmp", "emptyDir": {"sizeLimit": "50Gi"}} in pod["spec"]["volumes"]


OPENSHIFT = {"runAsUser": "", "runAsGroup": "", "fsGroup": ""}


def test_openshift_chooses_the_users(helm: Path) -> None:
    for name, pod in pods_of(helm, {"pod": {"securityContext": OPENSHIFT}}).items():
        security = pod["spec"]["securityContext"]
        assert security == {
            "runAsNonRoot": True,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        }, name
    env = environment(
        pods_of(helm, {"pod": {"securityContext": OPENSHIFT}})["PyTorchJob.Worker"]["spec"], "pytorch"
    )
    assert env["USER"] == "trainer"
    (prepared,) = unwrap_pods(
        render(
            helm,
            CHARTS / "prepare",
            OTHER_CHARTS["prepare"],
            values={"run": {"pod": {"securityContext": OPENSHIFT}}},
        )
    ).values()
    assert "runAsUser" not in prepared["spec"]["securityContext"]


def test_a_change_of_an_annotation_is_a_change_of_the_settings(helm: Path) -> None:
    def settings(run: dict[str, Any]) -> str:
        job = pick(render(helm, CHARTS / "ddp", values={"run": run}), "PyTorchJob")
        return job["metadata"]["annotations"]["stratlab/settings-sha256"]

    seen = [settings({"pod": pod}) for pod in ({}, {"annotations": {"a": "b"}}, {"annotations": {"a": "c"}})]
    assert len({*seen}) == 3


def test_a_container_of_the_lab_is_not_touched(helm: Path) -> None:
    pods = pods_of(helm, EVERYTHING)
    for pod, name in (("Job.waiter", "wait"), ("Job", "analyze")):
        assert container(pods[pod]["spec"], name)["securityContext"]["capabilities"] == {"drop": ["ALL"]}
