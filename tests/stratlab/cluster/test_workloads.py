"""What the custom resources of four operators say, and which pod is which."""

import pytest

from stratlab.cluster import ClusterError
from stratlab.cluster import volume_pod as module
from stratlab.cluster.pod_template import PodRequest
from stratlab.cluster.pods import console_pod, node_rank, place_of, training_container
from stratlab.cluster.volume_pod import find_place
from stratlab.cluster.workloads import APIS, Workload, find_workload, list_workloads, read_state
from tests.stratlab.watch.objects import build_run


def conditions(*that_hold, **others):
    statuses = dict.fromkeys(that_hold, True) | others
    return {"conditions": [{"type": kind, "status": str(holds)} for kind, holds in statuses.items()]}


def nodes_of_trainjob(active):
    return {"jobsStatus": [{"name": "node", "active": active, "ready": 0}]}


# As the operators write them; those of the training operator v1.9 were seen on a real cluster.
@pytest.mark.parametrize(
    ("status", "state"),
    [
        (None, "no status"),
        (conditions("Created", "Running", "Suspended"), "Suspended"),
        (conditions("Running", "Restarting"), "Restarting"),
        (conditions("Failed", Succeeded=False), "Failed"),
        (conditions(Suspended=False), "Created"),  # a TrainJob that was resumed
        (conditions("Complete") | nodes_of_trainjob(0), "Succeeded"),
        (nodes_of_trainjob(1), "Running"),
        (nodes_of_trainjob(0), "Created"),
    ],
)
def test_states(status, state):
    assert read_state({"status": status}) == state


def test_a_release_is_found_by_name_or_by_label(api, connection):
    assert {name: api.path("ns", "x") for name, api in APIS.items()} == {
        "pytorchjob": "/apis/kubeflow.org/v1/namespaces/ns/pytorchjobs/x",
        "mpijob-v1": "/apis/kubeflow.org/v1/namespaces/ns/mpijobs/x",
        "mpijob-v2beta1": "/apis/kubeflow.org/v2beta1/namespaces/ns/mpijobs/x",
        "trainjob": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/ns/trainjobs/x",
    }
    path = APIS["trainjob"].path("lab")
    assert find_workload(connection, "demo") is None
    api.put(path, build_run("Running", name="other"))
    api.put(path, build_run("Running"))
    found = find_workload(connection, "demo")
    assert found and (found.api.name, found.name, found.release) == ("trainjob", "demo", "demo")
    named_otherwise = build_run("Running")
    named_otherwise["metadata"]["name"] = "renamed"
    api.delete(path, "demo")
    api.put(path, named_otherwise)
    found = find_workload(connection, "demo")
    assert found and (found.name, found.release) == ("renamed", "demo")
    assert sorted(each.name for each in list_workloads(connection)) == ["other", "renamed"]


def test_an_api_that_may_not_be_read_matters_only_if_nothing_is_found(api, connection):
    api.fault = lambda path, query: {"status": 403} if "mpijobs" in path else None
    with pytest.raises(ClusterError) as failure:
        find_workload(connection, "demo")
    assert failure.value.status == 403
    api.put(APIS["trainjob"].path("lab"), build_run("Running"))
    found = find_workload(connection, "demo")
    assert found and found.api.name == "trainjob"


def pod(name, **labels):
    written = {f"training.kubeflow.org/{key.replace('_', '-')}": value for key, value in labels.items()}
    return {"metadata": {"name": name, "labels": written}}


def v1(role, index=0):
    return pod(f"{role}-{index}", replica_type=role, replica_index=str(index))


def train(index, name="", created=""):
    labels = {
        "jobset.sigs.k8s.io/replicatedjob-name": "node",
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    return {"metadata": {"name": name or f"node-{index}", "labels": labels, "creationTimestamp": created}}


V2_LAUNCHER = pod("launcher", job_role="launcher")
OLDER, NEWER = (
    train(0, "node-0-zzzzz", "2026-01-01T00:00:09Z"),
    train(0, "node-0-aaaaa", "2026-01-01T00:00:10Z"),
)


@pytest.mark.parametrize(
    ("pods", "console"),
    [
        ([v1("worker", 1), v1("worker", 0)], v1("worker", 0)),
        ([v1("worker", 0), v1("master")], v1("master")),
        ([pod("w", job_role="worker", replica_index="0"), V2_LAUNCHER], V2_LAUNCHER),
        ([train(1)], None),
        ([NEWER, OLDER], NEWER),  # a Job keeps pods that have failed, and their names are in no order
    ],
)
def test_which_pod_has_the_console(pods, console):
    assert console_pod(pods) == console


def test_places_ranks_and_containers():
    assert place_of(v1("Worker", 3)) == ("worker", 3) and place_of({"metadata": {"name": "x"}}) == ("", 0)
    assert [node_rank(v1("worker", 1), master) for master in (False, True)] == [1, 2]
    ranks = (node_rank(v1("master"), True), node_rank(V2_LAUNCHER, False), node_rank(train(1), False))
    assert ranks == (0, None, 1)
    for names, container in ((("sidecar", "pytorch"), "pytorch"), (("node", "sidecar"), "node")):
        assert training_container({"spec": {"containers": [{"name": name} for name in names]}}) == container


FIELDS = ("results-claim", "results-mount", "lab-image", "certificates")


def run(name, comparison, *place):
    """Runs are as old as their names say: `a` is the oldest. `place`: claim, mount, image, certificates."""
    notes = {"run-directory": f"/data/{comparison}/{name}"} | dict(zip(FIELDS, place, strict=False))
    annotations = {f"stratlab/{key}": value for key, value in notes.items()}
    created = f"2026-11-0{'abcd'.index(name) + 1}T00:00:00Z"
    metadata = {"name": name, "creationTimestamp": created, "annotations": annotations}
    return Workload(APIS["pytorchjob"], {"metadata": metadata})


def find(monkeypatch, comparison, *runs, **given):
    monkeypatch.setattr(module, "list_workloads", lambda connection: [*runs])
    return find_place(None, comparison, **given)


def test_the_newest_run_of_the_comparison_decides(monkeypatch):
    runs = run("a", "vit", "old", "/old", "lab:1"), run("b", "vit", "big", "/data", "lab:2", "secret/x/y")
    runs += (run("c", "llm", "x", "/x", "x:1"),)
    said = []
    found = find(monkeypatch, "vit", *runs, say=said.append)
    assert found == PodRequest("big", "/data", "lab:2", certificates="secret/x/y")
    assert all(word in said[0] for word in ("PyTorchJob b", "big", "/data", "lab:2", "3"))
    given = find(monkeypatch, "vit", *runs, image="mine:3", certificates="secret/own/ca.crt")
    assert given == PodRequest("big", "/data", "mine:3", certificates="secret/own/ca.crt")
    assert find(monkeypatch, "gone", *runs) == PodRequest("x", "/x", "x:1"), "of the newest of all"


@pytest.mark.parametrize(
    ("spec", "nodes", "has_master"),
    [
        ({"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}}, 4, True),
        ({"mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}}, 2, False),
        ({"pytorchReplicaSpecs": {"Worker": {}}}, 1, False),
        ({"trainer": {}}, 1, False),  # nobody says how many
    ],
)
def test_nodes(spec, nodes, has_master):
    workload = Workload(APIS["pytorchjob"], {"metadata": {"name": "x"}, "spec": spec})
    assert (workload.nodes, workload.has_master) == (nodes, has_master)
