"""Would the cluster accept this custom resource, and its operator run it?

The schema first, then the rules of the operator's webhook, of the API server, and those that nobody checks: jobs that
are accepted and then hang. The rules rely on a document of the right structure. Here those of a PyTorchJob (training
operator v1.9); beside this file those of the others.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from jsonschema import Draft202012Validator

from tests.charts.mpi_job import mpi_job_v1_problems, mpi_job_v2beta1_problems
from tests.charts.pod_rules import label_problems, pod_problems
from tests.charts.sdk_schema import build_sdk_schema
from tests.charts.train_job import train_job_problems, training_runtime_problems

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
CHOICES = {
    "restartPolicy": ("Always", "OnFailure", "Never", "ExitCode"),
    "cleanPodPolicy": ("All", "Running", "None"),
    "rdzvBackend": ("c10d", "etcd", "etcd-v2"),
    "managedBy": ("kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"),
}


def custom_resource_problems(job: dict[str, Any]) -> list[str]:
    """One sentence per reason why it would not run; empty = it would. Of a kind that is not known here, that is it."""
    rules = {
        ("kubeflow.org/v1", "PyTorchJob"): pytorch_job_problems,
        ("kubeflow.org/v1", "MPIJob"): mpi_job_v1_problems,
        ("kubeflow.org/v2beta1", "MPIJob"): mpi_job_v2beta1_problems,
        ("trainer.kubeflow.org/v1alpha1", "TrainJob"): train_job_problems,
        ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): training_runtime_problems,
    }
    what = (job.get("apiVersion", ""), job.get("kind", ""))
    if what not in rules:
        return [f"{' '.join(what)}: expected one of {', '.join(' '.join(known) for known in rules)}"]
    return rules[what](job)


def pytorch_job_problems(job: dict[str, Any]) -> list[str]:
    structure = [f"{error.json_path}: {error.message}" for error in _validator().iter_errors(job)]
    if structure:
        return structure
    replicas = job["spec"]["pytorchReplicaSpecs"]
    problems = _name_problems(job["metadata"], replicas) + label_problems(job["metadata"].get("labels", {}))
    problems += _replica_type_problems(replicas) + _rendezvous_problems(job["spec"])
    problems += _choice("cleanPodPolicy", job["spec"]["runPolicy"])
    problems += _choice("managedBy", job["spec"]["runPolicy"])
    for role, replica in replicas.items():
        problems += [f"{role}: {text}" for text in _replica_problems(replica)]
    return problems


@functools.cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(build_sdk_schema("KubeflowOrgV1PyTorchJob"))


def _choice(name: str, where: dict[str, Any]) -> list[str]:
    if name not in where or where[name] in CHOICES[name]:
        return []
    return [f"{name} {where[name]} is none of {', '.join(CHOICES[name])}"]


def _name_problems(metadata: dict[str, Any], replicas: dict[str, Any]) -> list[str]:
    name = metadata.get("name", "")
    if not DNS_1035.fullmatch(name):
        return [f"metadata.name {name!r} is no DNS-1035 label (a-z, 0-9, -; starts with a letter)"]
    services = [f"{name}-{role.lower()}-{r.get('replicas', 1) - 1}" for role, r in replicas.items()]
    return [f"metadata.name: Service {s} has more than 63 characters" for s in services if len(s) > 63]


def _replica_type_problems(replicas: dict[str, Any]) -> list[str]:
    problems = [
        f"replica type {role}: expected Master or Worker" for role in replicas.keys() - {"Master", "Worker"}
    ]
    if not replicas:
        problems.append("no replicas")
    if replicas.get("Master", {}).get("replicas", 1) != 1:
        problems.append("Master.replicas must be 1")
    if replicas.get("Worker", {}).get("replicas", 1) < 1:
        problems.append("Worker.replicas must be at least 1")
    return problems


def _rendezvous_problems(spec: dict[str, Any]) -> list[str]:
    replicas, elastic = spec["pytorchReplicaSpecs"], spec.get("elasticPolicy")
    problems = []
    if not re.fullmatch(r"auto|cpu|gpu|[1-9][0-9]*", spec.get("nprocPerNode", "")):
        problems.append("nprocPerNode must be given: without it one process per CPU is started")
    if elastic is None:
        if "Master" not in replicas:
            problems.append("neither Master nor elasticPolicy: the workers would never find each other")
        return problems
    workers = replicas.get("Worker", {}).get("replicas", 1)
    if "Worker" not in replicas:
        problems.append("elasticPolicy needs Worker replicas: the operator crashes without")
    if not elastic.get("minReplicas", workers) <= workers <= elastic.get("maxReplicas", workers):
        problems.append(f"Worker.replicas {workers} is outside minReplicas and maxReplicas")
    if "nProcPerNode" in elastic:
        problems.append("elasticPolicy.nProcPerNode: write spec.nprocPerNode")
    return problems + _choice("rdzvBackend", elastic)


def _replica_problems(replica: dict[str, Any]) -> list[str]:
    problems = _choice("restartPolicy", replica)
    if "pytorch" not in [container["name"] for container in replica["template"]["spec"]["containers"]]:
        problems.append("no container has the name pytorch")
    return problems + pod_problems(replica["template"])
