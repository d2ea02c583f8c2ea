"""Would the cluster accept these objects? Strictly by their schemas, unknown fields too, and by rules of a pod."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
from jsonschema import Draft202012Validator, ValidationError
from kubeflow_trainer_api import models

from tests.charts.crd_schema import read_crd_schema
from tests.charts.pod_rules import label_problems, pod_problems
from tests.charts.rendering import NAMESPACE, Document
from tests.charts.sdk_schema import QUANTITY, build_sdk_schema
from tests.charts.unwrapping import find_templates

# The oldest whose schema takes an exit code rule of podFailurePolicy, and the newest there is a schema for.
VERSIONS = ("1.29", "1.37")
SCALARS = {
    "IoK8sApimachineryPkgApiResourceQuantity": QUANTITY,
    "IoK8sApimachineryPkgUtilIntstrIntOrString": {"type": ["integer", "string"]},
}
MPI_V2BETA1 = Path(__file__).parent / "schemas" / "mpijob-v2beta1.json"


def problems(documents: Sequence[Document]) -> list[str]:
    """One sentence per reason why an object would be refused."""
    found = []
    for document in documents:
        own = document["apiVersion"].split("/")[0].endswith("kubeflow.org")
        texts = [*(_custom_problems(document) if own else core_problems(document))]
        if not texts:
            texts = label_problems(document["metadata"].get("labels", {}))
            texts += [text for _, template in find_templates(document, "") for text in pod_problems(template)]
        if document["metadata"]["namespace"] != NAMESPACE:
            texts.append("not in the namespace of the release")
        found += [f"{document['kind']}: {text}" for text in texts]
    return found


def core_problems(document: Document) -> list[str]:
    """By the schemas of Kubernetes."""
    found = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as failure:
            found.append(f"{document['metadata']['name']}: {version}: {failure}")
    return found


def _custom_problems(document: Document) -> Iterator[str]:
    for error in _validator(document["apiVersion"], document["kind"]).iter_errors(document):
        yield from (f"{leaf.json_path}: {leaf.message}" for leaf in _leaves(error))


def _leaves(error: ValidationError) -> Iterator[ValidationError]:
    """What is wrong itself: every optional field of the models is an alternative to null."""
    if not error.context:
        yield error
    for part in error.context or ():
        if part.validator_value != "null":
            yield from _leaves(part)


@functools.cache
def _validator(version: str, kind: str) -> Draft202012Validator:
    if version == "kubeflow.org/v2beta1":
        return Draft202012Validator(read_crd_schema(MPI_V2BETA1))
    if version == "kubeflow.org/v1":
        return Draft202012Validator(build_sdk_schema(f"KubeflowOrgV1{kind}"))
    schema: dict[str, Any] = getattr(models, f"TrainerV1alpha1{kind}").model_json_schema(by_alias=True)
    for part in [schema, *schema["$defs"].values()]:
        if part.get("type") == "object" and "properties" in part:
            part["additionalProperties"] = False
    schema["$defs"] |= SCALARS
    return Draft202012Validator(schema)
