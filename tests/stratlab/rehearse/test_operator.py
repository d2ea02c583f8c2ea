from __future__ import annotations

from typing import Any

import pytest

from stratlab.rehearse.operator import build_training_pods
from stratlab.user_error import UserError

CONTAINER = {"name": "pytorch", "command": ["python"], "env": [{"name": "PET_NNODES", "value": "9"}]}


def job(elastic: dict[str, Any] | None = None, per_node: str | None = "2", **replicas: int) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "pytorchReplicaSpecs": {
            role: {"replicas": count, "template": {"spec": {"containers": [CONTAINER]}}}
            for role, count in replicas.items()
        }
    }
    if elastic is not None:
        spec["elasticPolicy"] = elastic
    if per_node is not None:
        spec["nprocPerNode"] = per_node
    return {"metadata": {"name": "ddp"}, "spec": spec}


def test_worker_only_elastic_gets_what_was_observed_on_a_cluster() -> None:
    pods = build_training_pods(job({"minReplicas": 2, "maxReplicas": 2, "maxRestarts": 3}, Worker=2), 4711)
    assert [pod.name for pod in pods] == ["ddp-worker-0", "ddp-worker-1"]
    for pod in pods:  # the injected PET_NNODES wins over the rendered one, as the later entry does
        assert pod.commands[0].env == {
            "PYTHONUNBUFFERED": "1",
            "TRAINER_ACCELERATOR": "",
            "PET_RDZV_ENDPOINT": "127.0.0.1:4711",
            "PET_RDZV_BACKEND": "c10d",
            "PET_NNODES": "2:2",
            "PET_MAX_RESTARTS": "3",
            "PET_NPROC_PER_NODE": "2",
            "PET_LOCAL_ADDR": "127.0.0.1",
            "HOSTNAME": pod.name,
        }


def test_master_and_worker_get_the_index_of_their_pod_as_rank() -> None:
    pods = build_training_pods(job(Master=1, Worker=2), 4711)
    assert [pod.name for pod in pods] == ["ddp-master-0", "ddp-worker-0", "ddp-worker-1"]
    common = {
        "PYTHONUNBUFFERED": "1",
        "TRAINER_ACCELERATOR": "",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4711",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "4711",
        "WORLD_SIZE": "6",
        "PET_NNODES": "3",
        "PET_NPROC_PER_NODE": "2",
    }
    for index, pod in enumerate(pods):
        own = {"RANK": str(index), "PET_NODE_RANK": str(index), "HOSTNAME": pod.name}
        assert pod.commands[0].env == common | own


def test_elastic_extras_and_the_defaults_of_the_operator() -> None:
    elastic = {
        "rdzvId": "r1",
        "rdzvConf": [{"key": "read_timeout", "value": "15"}, {"key": "a", "value": "b"}],
    }
    env = build_training_pods(job(elastic, per_node=None, Worker=3), 1)[0].commands[0].env
    assert env["PET_NNODES"] == "3:3"
    assert env["PET_NPROC_PER_NODE"] == "auto"
    assert env["PET_RDZV_ID"] == "r1"
    assert env["PET_RDZV_CONF"] == "read_timeout=15,a=b"
    assert "PET_MAX_RESTARTS" not in env


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (job(Worker=2), "neither a Master nor an elasticPolicy"),
        (job({}, Mastr=1), "replica type Mastr"),
    ],
)
def test_what_would_hang_or_be_refused_on_a_cluster_is_refused(bad: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build_training_pods(bad, 1)


def test_the_container_must_have_the_name_that_the_operator_insists_on() -> None:
    other = job({}, Worker=1)
    other["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"] = [
        CONTAINER | {"name": "trainer"}
    ]
    with pytest.raises(ValueError, match="with the name pytorch"):
        build_training_pods(other, 1)


def test_an_init_container_in_an_image_of_its_own_is_refused() -> None:
    asked = job({"minReplicas": 1, "maxReplicas": 1}, Worker=1)
    pod = asked["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["initContainers"] = [{"name": "unpack", "image": "tools:1", "command": ["tar"]}]
    with pytest.raises(UserError, match=r"init container unpack .* --set run\.pod\.initContainers=null"):
        build_training_pods(asked, 4711)


def test_a_folder_of_the_node_is_refused_with_what_to_do() -> None:
    asked = job({"minReplicas": 1, "maxReplicas": 1}, Worker=1)
    pod = asked["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["volumes"] = [{"name": "gib", "hostPath": {"path": "/home/kubernetes/bin/gib"}}]
    with pytest.raises(UserError, match=r"volume gib is a hostPath.*--set run\.pod\.volumes=null"):
        build_training_pods(asked, 4711)
