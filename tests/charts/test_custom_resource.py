"""A check that accepts everything would pass every chart: here each way to break a good job, and who must see it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.charts.custom_resource import custom_resource_problems
from tests.charts.golden_file import GOLDEN
from tests.charts.rendering import pick, read_documents

Job = dict[str, Any]


def worker(job: Job) -> Job:
    return job["spec"]["pytorchReplicaSpecs"]["Worker"]


def pod(job: Job) -> Job:
    return worker(job)["template"]["spec"]


def container(job: Job) -> Job:
    return pod(job)["containers"][0]


MUTATIONS: dict[str, tuple[Callable[[Job], Any], str]] = {
    # the structure
    "unknown field in spec": (lambda j: j["spec"].update(backofLimit=1), "backofLimit"),
    "unknown field in runPolicy": (lambda j: j["spec"]["runPolicy"].update(deadline=1), "deadline"),
    "unknown field in elasticPolicy": (
        lambda j: j["spec"]["elasticPolicy"].update(minReplica=1),
        "minReplica",
    ),
    "unknown field in replica": (lambda j: worker(j).update(replica=1), "replica"),
    "unknown field in template metadata": (
        lambda j: worker(j)["template"]["metadata"].update(lables={}),
        "lables",
    ),
    "unknown field in pod": (lambda j: pod(j).update(restartpolicy="Never"), "restartpolicy"),
    "unknown field in container": (lambda j: container(j).update(comand=["x"]), "comand"),
    "unknown field in securityContext": (
        lambda j: pod(j)["securityContext"].update(runAsRoot=1),
        "runAsRoot",
    ),
    "replicas is text": (lambda j: worker(j).update(replicas="1"), "is not of type 'integer'"),
    "nprocPerNode is a number": (lambda j: j["spec"].update(nprocPerNode=2), "is not of type 'string'"),
    "no replica specs": (lambda j: j["spec"].pop("pytorchReplicaSpecs"), "is a required property"),
    "no runPolicy": (lambda j: j["spec"].pop("runPolicy"), "is a required property"),
    "container without name": (lambda j: container(j).pop("name"), "is a required property"),
    "mount without path": (lambda j: container(j)["volumeMounts"][0].pop("mountPath"), "mountPath"),
    "env value is a number": (lambda j: container(j)["env"][0].update(value=1), "is not of type 'string'"),
    "quantity 1 Gb": (lambda j: container(j).update(resources={"limits": {"memory": "1 Gb"}}), "1 Gb"),
    # what it is
    "another version": (
        lambda j: j.update(apiVersion="kubeflow.org/v2"),
        "expected one of kubeflow.org/v1 PyTorchJob",
    ),
    "another kind": (lambda j: j.update(kind="TFJob"), "expected one of kubeflow.org/v1 PyTorchJob"),
    # the webhook, and the operator
    "name starts with a digit": (lambda j: j["metadata"].update(name="3d-run"), "DNS-1035"),
    "no name": (lambda j: j["metadata"].pop("name"), "DNS-1035"),
    "name too long for its Services": (lambda j: j["metadata"].update(name="r" * 55), "63 characters"),
    "no replicas": (lambda j: j["spec"].update(pytorchReplicaSpecs={}), "no replicas"),
    "replica type Mastr": (lambda j: j["spec"]["pytorchReplicaSpecs"].update(Mastr=worker(j)), "Mastr"),
    "two masters": (
        lambda j: j["spec"]["pytorchReplicaSpecs"].update(Master={**worker(j), "replicas": 2}),
        "Master.replicas must be 1",
    ),
    "no worker": (lambda j: worker(j).update(replicas=0), "at least 1"),
    "elastic without workers": (
        lambda j: j["spec"].update(pytorchReplicaSpecs={"Master": worker(j)}),
        "elasticPolicy needs Worker",
    ),
    "restartPolicy Bogus": (lambda j: worker(j).update(restartPolicy="Bogus"), "restartPolicy Bogus"),
    "cleanPodPolicy Bogus": (
        lambda j: j["spec"]["runPolicy"].update(cleanPodPolicy="No"),
        "cleanPodPolicy No",
    ),
    "managedBy Bogus": (lambda j: j["spec"]["runPolicy"].update(managedBy="me"), "managedBy me"),
    "rdzvBackend Bogus": (lambda j: j["spec"]["elasticPolicy"].update(rdzvBackend="tcp"), "rdzvBackend tcp"),
    "two ways to count": (lambda j: j["spec"]["elasticPolicy"].update(nProcPerNode=2), "spec.nprocPerNode"),
    "fewer workers than the least": (lambda j: j["spec"]["elasticPolicy"].update(minReplicas=2), "outside"),
    "container not named pytorch": (lambda j: container(j).update(name="trainer"), "name pytorch"),
    # accepted by all, and then it hangs
    "no nprocPerNode": (lambda j: j["spec"].pop("nprocPerNode"), "nprocPerNode must be given"),
    "no rendezvous": (lambda j: j["spec"].pop("elasticPolicy"), "never find each other"),
    # the API server, when the operator makes the pods
    "no image": (lambda j: container(j).pop("image"), "no image"),
    "imagePullPolicy Bogus": (lambda j: container(j).update(imagePullPolicy="No"), "imagePullPolicy No"),
    "mount without volume": (lambda j: pod(j)["volumes"].pop(0), "has no volume"),
    "volume without mount": (lambda j: container(j)["volumeMounts"].pop(0), "is not mounted"),
    "volume without source": (lambda j: pod(j)["volumes"][0].pop("persistentVolumeClaim"), "0 sources"),
    "volume twice": (lambda j: pod(j)["volumes"].append(pod(j)["volumes"][0]), "is there twice"),
    "path twice": (lambda j: container(j)["volumeMounts"][0].update(mountPath="/tmp"), "/tmp is there twice"),
    "path with a colon": (lambda j: container(j)["volumeMounts"][0].update(mountPath="/a:b"), "colon"),
    "env twice": (
        lambda j: container(j)["env"].append(container(j)["env"][0]),
        "env TRAINER_RUN is there twice",
    ),
    "container twice": (lambda j: pod(j)["containers"].append(container(j)), "pytorch is there twice"),
    "container name": (lambda j: pod(j)["containers"].append({"name": "A_b", "image": "x"}), "no DNS label"),
    "label value": (lambda j: j["metadata"]["labels"].update(team="a b"), "label team"),
    "label value of the pod": (
        lambda j: worker(j)["template"]["metadata"]["labels"].update(t="-"),
        "label t",
    ),
}


@pytest.fixture(scope="module")
def good() -> Job:
    job = pick(read_documents((GOLDEN / "ddp.yaml").read_text()), "PyTorchJob")
    assert custom_resource_problems(job) == []
    return job


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_job_is_refused(good: Job, name: str) -> None:
    change, reason = MUTATIONS[name]
    job = copy.deepcopy(good)
    change(job)
    assert any(reason in problem for problem in custom_resource_problems(job)), custom_resource_problems(job)


def test_an_old_style_job_is_accepted() -> None:
    """Master and Worker, as the operator's examples have it: the rules are not just those of our own charts."""
    template = {
        "spec": {"containers": [{"name": "pytorch", "image": "x", "resources": {"limits": {"cpu": 1}}}]}
    }
    replica = {"replicas": 1, "restartPolicy": "OnFailure", "template": template}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "old"},
        "spec": {
            "nprocPerNode": "auto",
            "runPolicy": {"cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": {"Master": replica, "Worker": replica},
        },
    }
    assert custom_resource_problems(job) == []
