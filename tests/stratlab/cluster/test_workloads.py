from __future__ import annotations

from typing import Any

import pytest

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.pods import console_pod, node_rank, place_of, training_container
from stratlab.cluster.workloads import (
    APIS,
    CREATED,
    FAILED,
    NO_STATUS,
    RESTARTING,
    RUNNING,
    SUCCEEDED,
    SUSPENDED,
    RunFacts,
    Workload,
    find_workload,
    list_workloads,
    read_state,
)
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.watch.objects import build_run


def conditions(**statuses: bool) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": str(holds)} for kind, holds in statuses.items()]}


# As the operators write them; those of the training operator v1.9 were seen on a real cluster.
@pytest.mark.parametrize(
    ("status", "state"),
    [
        (None, NO_STATUS),
        ({}, NO_STATUS),
        ({"replicaStatuses": {"Worker": {}}}, NO_STATUS),
        (conditions(Created=True), CREATED),
        (conditions(Created=True, Running=True), RUNNING),
        (conditions(Created=True, Restarting=True), RESTARTING),
        (conditions(Created=True, Running=True, Restarting=False), RUNNING),
        (conditions(Created=True, Running=False, Suspended=True), SUSPENDED),
        (conditions(Created=True, Suspended=False, Running=True), RUNNING),
        (conditions(Created=True, Running=True, Suspended=True), SUSPENDED),
        (conditions(Running=True, Restarting=True), RESTARTING),
        (conditions(Created=True, Running=False, Succeeded=True), SUCCEEDED),
        (conditions(Created=True, Running=False, Failed=True), FAILED),
        (conditions(Succeeded=False, Failed=True), FAILED),
        (conditions(Suspended=False), CREATED),  # a TrainJob that was resumed
        (conditions(Complete=True), SUCCEEDED),
        ({"jobsStatus": [{"name": "node", "active": 1, "ready": 0}]}, RUNNING),
        ({"jobsStatus": [{"name": "node", "active": 0, "ready": 0}]}, CREATED),
        (conditions(Complete=True) | {"jobsStatus": [{"name": "node", "active": 0}]}, SUCCEEDED),
        (conditions(SomethingNew=True), CREATED),
    ],
)
def test_states(status: dict[str, Any] | None, state: str) -> None:
    assert read_state({"status": status}) == state


def test_the_table_of_apis() -> None:
    assert {name: api.path("ns", "x") for name, api in APIS.items()} == {
        "pytorchjob": "/apis/kubeflow.org/v1/namespaces/ns/pytorchjobs/x",
        "mpijob-v1": "/apis/kubeflow.org/v1/namespaces/ns/mpijobs/x",
        "mpijob-v2beta1": "/apis/kubeflow.org/v2beta1/namespaces/ns/mpijobs/x",
        "trainjob": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/ns/trainjobs/x",
    }


@pytest.mark.parametrize("name", list(APIS))
def test_a_release_is_found_by_name_or_by_label(api: FakeApi, connection: Connection, name: str) -> None:
    path = APIS[name].path("lab")
    assert find_workload(connection, "lab", "demo") is None
    api.put(path, build_run("Running", name="other"))
    api.put(path, build_run("Running"))
    found = find_workload(connection, "lab", "demo")
    assert found and (found.api.name, found.name, found.release) == (name, "demo", "demo")
    named_otherwise = build_run("Running")
    named_otherwise["metadata"]["name"] = "renamed"
    api.delete(path, "demo")
    api.put(path, named_otherwise)
    found = find_workload(connection, "lab", "demo")
    assert found and (found.name, found.release) == ("renamed", "demo")
    assert sorted(each.name for each in list_workloads(connection, "lab")) == ["other", "renamed"]


def test_an_api_that_may_not_be_read_matters_only_if_nothing_is_found(
    api: FakeApi, connection: Connection
) -> None:
    api.fault = lambda path, query: {"status": 403, "message": "no mpijobs"} if "mpijobs" in path else None
    with pytest.raises(ClusterError, match="no mpijobs"):
        find_workload(connection, "lab", "demo")
    api.put(APIS["trainjob"].path("lab"), build_run("Running"))
    found = find_workload(connection, "lab", "demo")
    assert found and found.api.name == "trainjob"


def test_annotations_and_what_the_operator_says() -> None:
    run = build_run("Created", "Failed")
    run["metadata"] |= {"namespace": "lab", "uid": "u"}
    workload = Workload(APIS["pytorchjob"], run)
    assert workload.facts == RunFacts("/results/c/demo", "volume", "/results", "lab:1", "", 4)
    assert (workload.state, workload.message) == (FAILED, "demo is Failed.")
    bare = Workload(APIS["pytorchjob"], {"metadata": {"name": "x"}})
    assert bare.facts == RunFacts("", "", "", "", "", None)
    assert (bare.release, bare.state, bare.message) == ("x", NO_STATUS, "")


@pytest.mark.parametrize(
    ("spec", "nodes", "has_master"),
    [
        ({"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}}, 3, False),
        ({"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}}, 4, True),
        ({"mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}}, 2, False),
        ({"trainer": {"numNodes": 2}}, 2, False),
        ({"trainer": {}}, 1, False),  # nobody says how many
        ({"pytorchReplicaSpecs": {"Master": {}, "Worker": {}}}, 2, True),
    ],
)
def test_nodes(spec: dict[str, Any], nodes: int, has_master: bool) -> None:
    workload = Workload(APIS["pytorchjob"], {"metadata": {"name": "x"}, "spec": spec})
    assert (workload.nodes, workload.has_master) == (nodes, has_master)


def pod(**labels: str) -> dict[str, Any]:
    """Double underscores stand for what cannot be in a name."""
    written = {
        key.replace("training__", "training.kubeflow.org/").replace("_", "-"): value
        for key, value in labels.items()
    }
    return {"metadata": {"name": "-".join(labels.values()), "labels": written}}


def v1(role: str, index: int = 0) -> dict[str, Any]:
    return pod(training__replica_type=role, training__replica_index=str(index))


def train(index: int) -> dict[str, Any]:
    labels = {
        "jobset.sigs.k8s.io/replicatedjob-name": "node",
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    return {"metadata": {"name": f"node-{index}", "labels": labels}}


V2_LAUNCHER = pod(training__job_role="launcher")
V2_WORKER = pod(training__job_role="worker", training__replica_index="0")


@pytest.mark.parametrize(
    ("pods", "console"),
    [
        ([v1("worker", 1), v1("worker", 0)], v1("worker", 0)),
        ([v1("worker", 0), v1("master")], v1("master")),
        ([v1("worker", 0), v1("launcher")], v1("launcher")),
        ([V2_WORKER, V2_LAUNCHER], V2_LAUNCHER),
        ([train(1), train(0)], train(0)),
        ([v1("worker", 1)], None),
        ([], None),
    ],
)
def test_which_pod_has_the_console(pods: list[dict[str, Any]], console: dict[str, Any] | None) -> None:
    assert console_pod(pods) == console


def test_a_successor_has_the_console() -> None:
    """A Job keeps pods that have failed, and their names are in no order."""
    older, newer = train(0), train(0)
    older["metadata"] |= {"name": "node-0-zzzzz", "creationTimestamp": "2026-01-01T00:00:09Z"}
    newer["metadata"] |= {"name": "node-0-aaaaa", "creationTimestamp": "2026-01-01T00:00:10Z"}
    assert console_pod([older, newer]) is newer and console_pod([newer, older]) is newer


def test_places_and_node_ranks() -> None:
    assert place_of(v1("Worker", 3)) == ("worker", 3)
    assert place_of({"metadata": {"name": "x"}}) == ("", 0)
    assert [node_rank(v1("worker", 1), master) for master in (False, True)] == [1, 2]
    assert (node_rank(v1("master"), True), node_rank(V2_LAUNCHER, False), node_rank(train(1), False)) == (
        0,
        None,
        1,
    )


def test_the_training_container() -> None:
    def spec(*names: str) -> dict[str, Any]:
        return {"spec": {"containers": [{"name": name} for name in names]}}

    assert training_container(spec("sidecar", "pytorch")) == "pytorch"
    assert training_container(spec("node", "sidecar")) == "node"
