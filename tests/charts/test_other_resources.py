"""Each way to break a good MPIJob, TrainJob or TrainingRuntime, and who must see it; as in test_custom_resource.py."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.charts.crd_schema import build_crd_schema
from tests.charts.custom_resource import custom_resource_problems
from tests.charts.rendering import CHARTS, find_program, pick, render
from tests.charts.unwrapping import workload_values

Job = dict[str, Any]


def role(job: Job, name: str) -> Job:
    return job["spec"]["mpiReplicaSpecs"][name]


def pod(job: Job) -> Job:
    return role(job, "Worker")["template"]["spec"]


def node(runtime: Job) -> Job:
    return runtime["spec"]["template"]["spec"]["replicatedJobs"][0]


def node_pod(runtime: Job) -> Job:
    return node(runtime)["template"]["spec"]["template"]["spec"]


# (API, kind) -> what is done to it, and what must be said
MUTATIONS: dict[tuple[str, str], dict[str, tuple[Callable[[Job], Any], str]]] = {
    ("mpijob-v1", "MPIJob"): {
        "a field of v2beta1": (lambda j: j["spec"].update(sshAuthMountPath="/x"), "sshAuthMountPath"),
        "unknown field in the pod": (lambda j: pod(j).update(hostnetwork=True), "hostnetwork"),
        "no launcher": (lambda j: j["spec"]["mpiReplicaSpecs"].pop("Launcher"), "expected Launcher and Worker"),
        "two launchers": (lambda j: role(j, "Launcher").update(replicas=2), "Launcher.replicas must be 1"),
        "no worker": (lambda j: role(j, "Worker").update(replicas=0), "Worker.replicas"),
        "launcher restarts": (lambda j: role(j, "Launcher").update(restartPolicy="ExitCode"), "must say so"),
        "launcher without token": (
            lambda j: role(j, "Launcher")["template"]["spec"].update(automountServiceAccountToken=False),
            "cannot reach the workers",
        ),
        "workers stay": (lambda j: j["spec"]["runPolicy"].update(cleanPodPolicy="None"), "must be Running"),
        "no slots": (lambda j: j["spec"].pop("slotsPerWorker"), "slotsPerWorker"),
        "name": (lambda j: j["metadata"].update(name="r" * 55), "63 characters"),
    },
    ("mpijob-v2beta1", "MPIJob"): {
        "another version": (lambda j: j.update(apiVersion="kubeflow.org/v1"), "sshAuthMountPath"),
        "a field of v1": (lambda j: j["spec"].update(mainContainer="x"), "mainContainer"),
        "unknown field in runPolicy": (lambda j: j["spec"]["runPolicy"].update(deadline=1), "deadline"),
        "unknown field in the pod": (lambda j: pod(j).update(hostnetwork=True), "hostnetwork"),
        "slots as text": (lambda j: j["spec"].update(slotsPerWorker="1"), "is not of type 'integer'"),
        "another MPI": (lambda j: j["spec"].update(mpiImplementation="MVAPICH"), "MVAPICH"),
        "policy of v1": (lambda j: role(j, "Launcher").update(restartPolicy="ExitCode"), "takes Never"),
        "creation policy": (lambda j: j["spec"].update(launcherCreationPolicy="Later"), "Later is not known"),
        "home of root": (lambda j: j["spec"].pop("sshAuthMountPath"), "only root reads its home"),
        "no replica specs": (lambda j: j["spec"].pop("mpiReplicaSpecs"), "is a required property"),
        "mount without volume": (lambda j: pod(j)["volumes"].pop(0), "has no volume"),
    },
    ("trainjob", "TrainJob"): {
        "unknown field": (lambda j: j["spec"].update(elasticPolicy={}), "elasticPolicy"),
        "nodes as text": (lambda j: j["spec"]["trainer"].update(numNodes="2"), "numNodes"),
        "no runtime": (lambda j: j["spec"].pop("runtimeRef"), "is a required property"),
        "another runtime": (lambda j: j["spec"]["runtimeRef"].update(kind="Runtime"), "is no runtime"),
        "processes": (lambda j: j["spec"]["trainer"].pop("numProcPerNode"), "numProcPerNode must be given"),
        "label": (lambda j: j["metadata"]["labels"].update(team="a b"), "label team"),
    },
    ("trainjob", "TrainingRuntime"): {
        "unknown field": (lambda r: r["spec"]["mlPolicy"].update(tensorflow={}), "tensorflow"),
        "unknown field in the pod": (lambda r: node_pod(r).update(hostnetwork=True), "hostnetwork"),
        "env value is a number": (lambda r: node_pod(r)["containers"][0]["env"][0].update(value=1), "value"),
        "container name": (lambda r: node_pod(r)["containers"][0].update(name="pytorch"), "the name node"),
        "job name": (lambda r: node(r).update(name="worker"), "one replicated job, node"),
        "no label": (lambda r: node(r)["template"]["metadata"]["labels"].clear(), "the label of the trainer"),
        "restarts in the pod": (
            lambda r: node_pod(r).update(restartPolicy="OnFailure"),
            "podFailurePolicy needs restartPolicy Never",
        ),
        "mount without volume": (lambda r: node_pod(r)["volumes"].pop(0), "has no volume"),
    },
}  # fmt: skip
CASES = [(what, name) for what, mutations in MUTATIONS.items() for name in mutations]


@pytest.fixture(scope="module")
def good() -> dict[tuple[str, str], Job]:
    helm = find_program("helm")
    found = {}
    for api, kind in MUTATIONS:
        arguments = ["--set", "run.nodes=2", *workload_values(api, "worker-only")]
        found[api, kind] = pick(render(helm, CHARTS / "ddp", arguments), kind)
        assert custom_resource_problems(found[api, kind]) == []
    return found


@pytest.mark.parametrize(("what", "name"), CASES, ids=[f"{kind[0]} {kind[1]} {name}" for kind, name in CASES])
def test_a_broken_resource_is_refused(
    good: dict[tuple[str, str], Job], what: tuple[str, str], name: str
) -> None:
    change, reason = MUTATIONS[what][name]
    job = copy.deepcopy(good[what])
    change(job)
    assert any(reason in problem for problem in custom_resource_problems(job)), custom_resource_problems(job)


DEFINITION = """
spec:
  versions:
    - name: v1
      schema: {}
    - name: v2
      schema:
        openAPIV3Schema:
          type: object
          description: prose
          required: [spec]
          properties:
            metadata: {type: object}
            status: {type: object}
            spec:
              type: object
              properties:
                amount: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
                names: {type: array, items: {type: string, description: prose}}
                roles: {type: object, additionalProperties: {properties: {template: {type: object}}}}
"""


def test_a_definition_is_reduced_to_names_and_types() -> None:
    assert build_crd_schema(yaml.safe_load(DEFINITION), "v2", "here v0") == {
        "$comment": "names and types of here v0",
        "type": "object",
        "required": ["spec"],
        "additionalProperties": False,
        "properties": {
            "metadata": {"$ref": "#/$defs/V1ObjectMeta"},
            "spec": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "amount": {"type": ["integer", "string"]},
                    "names": {"type": "array", "items": {"type": "string"}},
                    "roles": {
                        "type": "object",
                        "additionalProperties": {
                            "additionalProperties": False,
                            "properties": {"template": {"$ref": "#/$defs/V1PodTemplateSpec"}},
                        },
                    },
                },
            },
        },
    }
