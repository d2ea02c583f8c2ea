"""What the training operator would inject, as it was observed on a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from stratlab.rehearse.operator import build_training_pods
from stratlab.user_error import UserError
from tests.codes import find_codes

CONTAINER = {"name": "pytorch", "command": ["python"], "env": [{"name": "PET_NNODES", "value": "9"}]}
COMMON = {"PYTHONUNBUFFERED": "1", "TRAINER_ACCELERATOR": ""}


def job(
    elastic: dict[str, Any] | None = None,
    per_node: str | None = "2",
    pod: dict[str, Any] | None = None,
    **replicas: int,
) -> dict[str, Any]:
    template = {"spec": {"containers": [CONTAINER]} | (pod or {})}
    spec: dict[str, Any] = {
        "pytorchReplicaSpecs": {
            role: {"replicas": count, "template": template} for role, count in replicas.items()
        }
    }
    spec |= {} if elastic is None else {"elasticPolicy": elastic}
    spec |= {} if per_node is None else {"nprocPerNode": per_node}
    return {"metadata": {"name": "ddp"}, "spec": spec}


def test_worker_only_elastic_gets_what_was_observed_on_a_cluster() -> None:
    pods = build_training_pods(job({"minReplicas": 2, "maxReplicas": 2, "maxRestarts": 3}, Worker=2), 4711)
    assert [pod.name for pod in pods] == ["ddp-worker-0", "ddp-worker-1"]
    for pod in pods:  # the injected PET_NNODES wins over the rendered one, as the later entry does
        assert pod.commands[0].env == COMMON | {
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
    common = COMMON | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4711", "WORLD_SIZE": "6"}
    common |= {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "4711"}
    common |= {"PET_NNODES": "3", "PET_NPROC_PER_NODE": "2"}
    for index, pod in enumerate(pods):
        own = {"RANK": str(index), "PET_NODE_RANK": str(index), "HOSTNAME": pod.name}
        assert pod.commands[0].env == common | own


def test_elastic_extras_and_the_defaults_of_the_operator() -> None:
    conf = [{"key": "read_timeout", "value": "15"}, {"key": "a", "value": "b"}]
    elastic = {"rdzvId": "r1", "rdzvConf": conf}
    env = build_training_pods(job(elastic, per_node=None, Worker=3), 1)[0].commands[0].env
    assert (env["PET_NNODES"], env["PET_NPROC_PER_NODE"]) == ("3:3", "auto")
    assert (env["PET_RDZV_ID"], env["PET_RDZV_CONF"]) == ("r1", "read_timeout=15,a=b")
    assert "PET_MAX_RESTARTS" not in env


@pytest.mark.parametrize(
    ("bad", "code", "named"),
    [
        (job(Worker=2), "SL-no-rendezvous", "ddp"),
        (job({}, Mastr=1), "SL-replica-type", "Mastr"),
        (job({}, Worker=1, pod={"containers": [{"name": "x"}]}), "SL-no-pytorch-container", "ddp"),
        (job({}, Worker=1, pod={"initContainers": [{"name": "unpack"}]}), "SL-init-container", "unpack"),
        (job({}, Worker=1, pod={"volumes": [{"name": "gib", "hostPath": {}}]}), "SL-volume-kind", "gib"),
    ],
)
def test_what_would_hang_or_be_refused_on_a_cluster_is_refused(
    bad: dict[str, Any], code: str, named: str
) -> None:
    with pytest.raises(UserError) as failure:
        build_training_pods(bad, 1)
    assert find_codes(failure.value) == [code] and named in str(failure.value)
