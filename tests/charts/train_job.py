"""Would the cluster accept this TrainJob and this TrainingRuntime, and Kubeflow Trainer v2 run them?"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from kubeflow_trainer_api import models

from tests.charts.core_object import failure_policy_problems
from tests.charts.pod_rules import label_problems, pod_problems
from tests.charts.sdk_schema import QUANTITY

Schema = dict[str, Any]

ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
SCALARS = {
    "IoK8sApimachineryPkgApiResourceQuantity": QUANTITY,
    "IoK8sApimachineryPkgUtilIntstrIntOrString": {"type": ["integer", "string"]},
}


def train_job_problems(job: dict[str, Any]) -> list[str]:
    structure = _structure_problems("TrainerV1alpha1TrainJob", job)
    if structure:
        return structure
    spec = job["spec"]
    problems = label_problems(job["metadata"].get("labels", {}))
    if spec["runtimeRef"].get("kind") not in ("TrainingRuntime", "ClusterTrainingRuntime"):
        problems.append(f"runtimeRef.kind {spec['runtimeRef'].get('kind')} is no runtime")
    if not spec.get("trainer", {}).get("numProcPerNode"):
        problems.append("trainer.numProcPerNode must be given: without it one process per CPU is started")
    return problems


def training_runtime_problems(runtime: dict[str, Any]) -> list[str]:
    structure = _structure_problems("TrainerV1alpha1TrainingRuntime", runtime)
    if structure:
        return structure
    problems = label_problems(runtime["metadata"].get("labels", {}))
    jobs = [
        job
        for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]
        if job["template"].get("metadata", {}).get("labels", {}).get(ANCESTOR) == "trainer"
    ]
    if [job["name"] for job in jobs] != ["node"]:
        problems.append("one replicated job, node, must have the label of the trainer")
    for job in jobs:
        spec = job["template"]["spec"]
        if "node" not in [container["name"] for container in spec["template"]["spec"]["containers"]]:
            problems.append("no container has the name node")
        problems += pod_problems(spec["template"]) + failure_policy_problems(spec)
    return problems


def _structure_problems(model: str, document: dict[str, Any]) -> list[str]:
    errors = _validator(model).iter_errors(document)
    return [f"{leaf.json_path}: {leaf.message}" for error in errors for leaf in _leaves(error)]


def _leaves(error: ValidationError) -> Iterator[ValidationError]:
    """What is wrong itself: every optional field of the models is an alternative to null."""
    if not error.context:
        yield error
    for part in error.context or ():
        if part.validator_value != "null":
            yield from _leaves(part)


@functools.cache
def _validator(model: str) -> Draft202012Validator:
    """Of the models' own schema, strict, and with their wrappers of scalars undone."""
    schema = getattr(models, model).model_json_schema(by_alias=True)
    strict = [schema, *schema["$defs"].values()]
    for part in strict:
        if part.get("type") == "object" and "properties" in part:
            part["additionalProperties"] = False
    schema["$defs"] |= SCALARS
    return Draft202012Validator(schema)
