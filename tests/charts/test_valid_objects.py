"""Everything that a chart renders, the cluster accepts; with the values it is shipped with and with all others set."""

from __future__ import annotations

from pathlib import Path

from tests.charts.core_object import core_object_problems
from tests.charts.custom_resource import custom_resource_problems
from tests.charts.rendering import CHARTS, NAMESPACE, Document, render

EVERYTHING = {
    "image": {"repository": "host:5000/trainer", "tag": "1", "pullPolicy": "Always"},
    "nodes": 1000,
    "processesPerNode": 8,
    "resources": {
        "requests": {"cpu": 0.5, "memory": 68719476736},
        "limits": {"rdma/hca": 1, "memory": "64Gi"},
    },
    "sharedMemory": {"sizeLimit": "16Gi"},
    "results": {"claim": "fast.claim", "mountPath": "/data/my results"},
    "mlflow": {"trackingUri": "http://mlflow.lab.svc:5000"},
    "analysis": {"resources": {"requests": {}, "limits": {}}, "ttlSecondsAfterFinished": 0},
    "config": {"lr": 1e-5, "comparison": "vit.1"},
    "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
}


def problems(documents: list[Document]) -> list[str]:
    found = []
    for document in documents:
        check = custom_resource_problems if document["kind"] == "PyTorchJob" else core_object_problems
        found += [f"{document['kind']}: {text}" for text in check(document)]
        if document["metadata"]["namespace"] != NAMESPACE:
            found.append(f"{document['kind']}: not in the namespace of the release")
    return found


def test_as_shipped(documents: list[Document]) -> None:
    assert {document["kind"] for document in documents} == {"PyTorchJob", "Job"}
    assert problems(documents) == []


def test_with_every_value_and_the_longest_name(helm: Path) -> None:
    rendered = render(helm, CHARTS / "ddp", values={"run": EVERYTHING}, release="r" * 52)
    assert problems(rendered) == []
