"""Would the cluster accept this MPIJob, and its operator run it? v1: the training operator; v2beta1: the MPI operator.

No webhook checks an MPIJob: what is wrong shows up in events, or not at all.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from tests.charts.crd_schema import read_crd_schema
from tests.charts.pod_rules import label_problems, pod_problems
from tests.charts.sdk_schema import build_sdk_schema

V2BETA1 = Path(__file__).parent / "schemas" / "mpijob-v2beta1.json"


def mpi_job_v1_problems(job: dict[str, Any]) -> list[str]:
    structure = _structure_problems(_v1_validator(), job)
    if structure:
        return structure
    problems = _problems(job)
    if job["spec"]["mpiReplicaSpecs"].get("Launcher", {}).get("restartPolicy") != "Never":
        problems.append(
            "Launcher: the operator never starts a failed launcher again, restartPolicy must say so"
        )
    launcher = job["spec"]["mpiReplicaSpecs"].get("Launcher", {"template": {"spec": {}}})["template"]["spec"]
    if launcher.get("automountServiceAccountToken") is False:
        problems.append("Launcher: without the token of its ServiceAccount it cannot reach the workers")
    return problems


def mpi_job_v2beta1_problems(job: dict[str, Any]) -> list[str]:
    structure = _structure_problems(_v2beta1_validator(), job)
    if structure:
        return structure
    spec = job["spec"]
    problems = _problems(job)
    for role, replica in spec["mpiReplicaSpecs"].items():
        if replica.get("restartPolicy") not in ("Never", "OnFailure"):
            problems.append(
                f"{role}: restartPolicy {replica.get('restartPolicy')}, it takes Never or OnFailure"
            )
    if spec.get("launcherCreationPolicy") not in ("AtStartup", "WaitForWorkersReady"):
        problems.append(f"launcherCreationPolicy {spec.get('launcherCreationPolicy')} is not known")
    if spec.get("sshAuthMountPath", "/root/.ssh").startswith("/root"):
        problems.append("sshAuthMountPath: only root reads its home")
    return problems


@functools.cache
def _v1_validator() -> Draft202012Validator:
    return Draft202012Validator(build_sdk_schema("KubeflowOrgV1MPIJob"))


@functools.cache
def _v2beta1_validator() -> Draft202012Validator:
    return Draft202012Validator(read_crd_schema(V2BETA1))


def _structure_problems(validator: Draft202012Validator, job: dict[str, Any]) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(job)]


def _problems(job: dict[str, Any]) -> list[str]:
    spec, name = job["spec"], job["metadata"].get("name", "")
    replicas = spec["mpiReplicaSpecs"]
    problems = label_problems(job["metadata"].get("labels", {}))
    last = f"{name}-worker-{replicas.get('Worker', {}).get('replicas', 1) - 1}"
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", last) or len(last) > 63:
        problems.append(f"metadata.name: pod {last} is no DNS-1035 label of at most 63 characters")
    if replicas.keys() != {"Launcher", "Worker"}:
        problems.append(f"replica types {', '.join(sorted(replicas))}: expected Launcher and Worker")
    if replicas.get("Launcher", {}).get("replicas") != 1:
        problems.append("Launcher.replicas must be 1")
    if replicas.get("Worker", {}).get("replicas", 0) < 1:
        problems.append("Worker.replicas must be at least 1")
    if spec.get("slotsPerWorker", 0) < 1:
        problems.append("slotsPerWorker must be at least 1")
    if spec["runPolicy"].get("cleanPodPolicy") != "Running":
        problems.append("cleanPodPolicy must be Running: the workers do not end by themselves")
    for role, replica in replicas.items():
        problems += [f"{role}: {text}" for text in pod_problems(replica["template"])]
    return problems
