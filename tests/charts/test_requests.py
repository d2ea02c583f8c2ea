"""No pod is BestEffort: each reserves CPU and memory by itself. Read from the renders, not asked of a scanner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.charts.rendering import (
    CHARTS,
    OTHER_CHARTS,
    Document,
    container,
    discover_other_charts,
    render,
    training_pod,
)
from tests.charts.unwrapping import WORKLOADS, unwrap_pods, workload_values


def without_requests(documents: list[Document]) -> list[str]:
    """Pod, container and resource of which no amount above zero is requested. A limit does not count."""
    return [
        f"{name} {each['name']}: {resource}"
        for name, pod in unwrap_pods(documents).items()
        for each in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
        for resource in ("cpu", "memory")
        if each.get("resources", {}).get("requests", {}).get(resource, "0") in ("0", "")
    ]


def test_every_pod_as_shipped(documents: list[Document]) -> None:
    assert without_requests(documents) == []


@pytest.mark.parametrize("accelerator", ["nvidia.com/gpu", ""])
@pytest.mark.parametrize(("api", "topology"), WORKLOADS)
def test_every_pod_of_every_workload(helm: Path, api: str, topology: str, accelerator: str) -> None:
    settings = [*workload_values(api, topology), "--set", f"run.nodes=2,run.accelerator={accelerator}"]
    assert without_requests(render(helm, CHARTS / "ddp", settings)) == []


def test_every_pod_of_the_other_charts(helm: Path) -> None:
    for chart in discover_other_charts():
        assert without_requests(render(helm, CHARTS / chart, OTHER_CHARTS[chart])) == []


def test_an_accelerator_alone_is_seen() -> None:
    pod = {"containers": [{"name": "pytorch", "resources": {"limits": {"nvidia.com/gpu": "8", "cpu": "1"}}}]}
    job = {"kind": "Job", "metadata": {"namespace": "lab", "name": "x"}, "spec": {"template": {"spec": pod}}}
    assert without_requests([job]) == ["Job pytorch: cpu", "Job pytorch: memory"]


@pytest.mark.parametrize(
    ("run", "requests"),
    [
        ({"processesPerNode": 8}, {"cpu": "16", "memory": "64Gi"}),
        ({"processesPerNode": 8, "accelerator": ""}, {"cpu": "800m", "memory": "8Gi"}),
        ({"resources": {"requests": {"cpu": 1.5}}}, {"cpu": "1.5", "memory": "16Gi"}),
        # of a limit alone Kubernetes makes a request of the same amount; a larger one would be refused
        ({"resources": {"limits": {"memory": "4Gi"}}}, {"cpu": "4"}),
        (
            {"resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"cpu": 2}}},
            {"cpu": "1", "memory": "1Gi"},
        ),
        (
            {"resources": {"requests": {"ephemeral-storage": "9Gi"}}},
            {"cpu": "4", "ephemeral-storage": "9Gi", "memory": "16Gi"},
        ),
    ],
    ids=str,
)
def test_amounts(helm: Path, run: dict[str, Any], requests: dict[str, str]) -> None:
    rendered = render(helm, CHARTS / "ddp", values={"run": run})
    assert container(training_pod(rendered), "pytorch")["resources"]["requests"] == requests
