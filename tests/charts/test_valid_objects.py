"""Everything that a chart renders, the cluster accepts; with the values it is shipped with and with all others set."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.charts.core_object import core_object_problems
from tests.charts.custom_resource import custom_resource_problems
from tests.charts.rendering import CHARTS, NAMESPACE, Document, helm_template, render
from tests.charts.unwrapping import WORKLOADS, workload_values

EVERYTHING = {
    "image": {
        "repository": "host:5000/trainer",
        "tag": "1",
        "pullPolicy": "Always",
        "pullSecrets": ["registry.login"],
    },
    "nodes": 1000,
    "processesPerNode": 8,
    "resources": {
        "requests": {"cpu": 0.5, "memory": 68719476736},
        "limits": {"vendor.com/card": 1, "memory": "64Gi"},
    },
    "rdma": {"enabled": True, "resource": "rdma/hca", "count": 2},
    "suspend": True,
    "tmp": {"sizeLimit": "9Gi"},
    "pod": {
        "labels": {"team": "vision", "sidecar.istio.io/inject": "false"},
        "annotations": {"k8s.v1.cni.cncf.io/networks": "ib,ib", "long": '[\n  {"a": "b"}\n]\n'},
        "serviceAccount": "trainer",
        "runtimeClass": "nvidia",
        "hostNetwork": True,
        "hostIPC": True,
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 1,
                        "preference": {
                            "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]
                        },
                    }
                ],
            },
            "podAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 100, "podAffinityTerm": {"topologyKey": "rack"}}
                ]
            },
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"app": "noisy"}},
                    }
                ]
            },
        },
        "topologySpread": [
            {"topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "volumes": [
            {"name": "scratch", "mountPath": "/scratch", "emptyDir": {"sizeLimit": "99Gi", "medium": ""}},
            {
                "name": "data",
                "mountPath": "/data/sets",
                "subPath": "a/b",
                "readOnly": True,
                "persistentVolumeClaim": {"claimName": "sets"},
            },
            {"name": "topology", "mountPath": "/etc/nccl", "configMap": {"name": "topology"}},
            {"name": "login", "mountPath": "/login", "secret": {"secretName": "login", "optional": True}},
            {
                "name": "bucket",
                "mountPath": "/bucket",
                "csi": {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": {"bucketName": "b"}},
            },
            {
                "name": "gib",
                "mountPath": "/usr/local/gib",
                "readOnly": True,
                "hostPath": {"path": "/home/kubernetes/bin/gib", "type": "Directory"},
            },
        ],
        "initContainers": [
            {
                "name": "unpack",
                "image": "host:5000/tools@sha256:" + "c" * 64,
                "pullPolicy": "Always",
                "command": ["cp", "-r", "/opt/x", "/scratch"],
                "env": [{"name": "A", "value": "$(B)"}],
                "resources": {"limits": {"memory": "1Gi"}},
            },
            {"name": "second", "image": "tools:1", "command": ["true"]},
        ],
        "securityContext": {
            "runAsGroup": "",
            "fsGroup": 2000,
            "supplementalGroups": [44, 1000650000],
            "seLinuxType": "container_t",
            "readOnlyRootFilesystem": False,
            "capabilities": ["SYS_PTRACE"],
        },
    },
    "podSecurity": {"level": "privileged", "hostPaths": ["/home/kubernetes/bin/"]},
    "scheduling": {
        "gang": "volcano",
        "queue": "team-a",
        "priorityClass": "high",
        "nodeSelector": {"node.kubernetes.io/gpu": "a100"},
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
            {"key": "team", "operator": "Equal", "value": "a"},
        ],
        "waitSeconds": 0,
    },
    "sharedMemory": {"sizeLimit": "16Gi"},
    "results": {"claim": "fast.claim", "mountPath": "/data/my results"},
    "mlflow": {"trackingUri": "http://mlflow.lab.svc:5000", "existingSecret": "mlflow-login"},
    "analysis": {
        "resources": {"requests": {}, "limits": {}},
        "ttlSecondsAfterFinished": 0,
        "serviceAccount": "waiter",
        "queue": "team-a",
    },
    "config": {"lr": 1e-5, "comparison": "vit.1"},
    "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
    "secrets": [{"name": "HF_TOKEN", "secret": "hub", "key": "token"}],
}


def problems(documents: list[Document]) -> list[str]:
    found = []
    for document in documents:
        own = document["apiVersion"].split("/")[0].endswith("kubeflow.org")
        check = custom_resource_problems if own else core_object_problems
        found += [f"{document['kind']}: {text}" for text in check(document)]
        if document["metadata"]["namespace"] != NAMESPACE:
            found.append(f"{document['kind']}: not in the namespace of the release")
    return found


def test_as_shipped(documents: list[Document]) -> None:
    assert {document["kind"] for document in documents} == {"PyTorchJob", "Job", "Pod"}
    assert problems(documents) == []


@pytest.mark.parametrize(("api", "topology"), WORKLOADS)
def test_with_every_value_and_the_longest_name(helm: Path, api: str, topology: str) -> None:
    longest = 46 if api == "trainjob" else 52
    arguments = workload_values(api, topology)
    rendered = render(helm, CHARTS / "ddp", arguments, values={"run": EVERYTHING}, release="r" * longest)
    assert problems(rendered) == []
    done = helm_template(helm, CHARTS / "ddp", arguments, release="r" * (longest + 1))
    assert done.returncode and f"at most {longest} characters" in done.stderr


@pytest.mark.parametrize("gang", ["none", "kueue", "scheduler-plugins"])
@pytest.mark.parametrize("api", ["pytorchjob", "mpijob-v2beta1", "trainjob"])
def test_with_every_scheduler(helm: Path, api: str, gang: str) -> None:
    values = {"run": {"scheduling": {"gang": gang}, "workload": {"api": api}}}
    assert problems(render(helm, CHARTS / "fsdp", values=values)) == []
