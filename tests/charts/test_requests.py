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
    helm_template,
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


OVER = [
    ("cpu", "501m", "0.5"),
    ("cpu", 2, "1.5"),
    ("memory", "1.5Gi", "1Gi"),
    ("memory", "1074M", "1Gi"),
    ("memory", "1Gi", "1G"),
    ("memory", 1073741825, "1Gi"),
    ("memory", "2Ei", "1E"),
    ("memory", "1Ti", "1T"),
    ("ephemeral-storage", "9Gi", "8Gi"),
]


@pytest.mark.parametrize(("name", "request_", "limit"), OVER, ids=str)
def test_a_request_above_its_limit_is_refused(
    helm: Path, name: str, request_: str | int, limit: str | int
) -> None:
    """The API server refuses the pod, not the run. As it is meant, the other way round, it is allowed."""
    resources = {"requests": {name: request_}, "limits": {name: limit}}
    done = helm_template(helm, CHARTS / "ddp", values={"run": {"resources": resources}})
    assert done.returncode == 1
    assert f"run.resources: requests.{name}={request_} is above limits.{name}={limit}" in done.stderr
    swapped = {"requests": {name: limit}, "limits": {name: request_}}
    render(helm, CHARTS / "ddp", values={"run": {"resources": swapped}})


@pytest.mark.parametrize(("one", "same"), [("1M", "1000k"), (1073741824, "1Gi"), ("100m", 0.1)], ids=str)
def test_a_request_may_be_its_limit(helm: Path, one: str | int, same: str | float) -> None:
    for requests, limits in ((one, same), (same, one)):
        resources = {"requests": {"memory": requests}, "limits": {"memory": limits}}
        render(helm, CHARTS / "ddp", values={"run": {"resources": resources}})


def test_it_is_refused_of_every_container(helm: Path) -> None:
    over = {"requests": {"cpu": 2}, "limits": {"cpu": 1}}
    first = {"name": "unpack", "image": "a", "command": ["true"], "resources": over}
    says = "requests.cpu=2 is above limits.cpu=1"
    for run, key in (
        ({"pod": {"initContainers": [first]}}, "run.pod.initContainers: unpack: resources"),
        ({"analysis": {"resources": over}}, "run.analysis.resources"),
    ):
        done = helm_template(helm, CHARTS / "ddp", values={"run": run})
        assert done.returncode == 1 and f"{key}: {says}" in done.stderr, done.stderr
    settings = [*OTHER_CHARTS["prepare"], "--set", "prepare.resources.limits.cpu=1m"]
    done = helm_template(helm, CHARTS / "prepare", settings)
    assert done.returncode == 1 and "prepare.resources: requests.cpu=" in done.stderr


def test_a_default_request_does_not_exceed_a_limit_of_the_analysis(helm: Path) -> None:
    done = helm_template(helm, CHARTS / "ddp", ["--set", "run.analysis.resources.limits.memory=512Mi"])
    assert "run.analysis.resources: requests.memory=1Gi is above limits.memory=512Mi" in done.stderr
