"""Would the cluster accept these objects? Pods and core kinds by their schemas, custom resources by their SDK."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import kubeflow.training.models as training_models
import kubernetes_validate

from tests.charts.pod_rules import label_problems, pod_problems
from tests.charts.rendering import NAMESPACE, Document
from tests.charts.unwrapping import unwrap_pods

# The oldest whose schema takes an exit code rule of podFailurePolicy, and the newest there is a schema for.
VERSIONS = ("1.29", "1.37")


def problems(documents: Sequence[Document]) -> list[str]:
    """One sentence per reason why an object would be refused."""
    found = []
    for document in documents:
        model = f"KubeflowOrgV1{document['kind']}"
        texts = label_problems(document["metadata"].get("labels", {}))
        if document["apiVersion"] == "kubeflow.org/v1":
            texts += _unknown_fields(model, document, document["kind"])
        elif "kubeflow.org" not in document["apiVersion"]:
            texts += core_problems(document)
        if document["metadata"]["namespace"] != NAMESPACE:
            texts.append("not in the namespace of the release")
        found += [f"{document['kind']}: {text}" for text in texts]
    for name, pod in unwrap_pods(documents).items():
        found += [f"{name}: {text}" for text in (core_problems(pod) or pod_problems(pod))]
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


def _unknown_fields(type_name: str, node: Any, place: str) -> Iterator[str]:
    """Names that the models of the operator do not have; what they have of Kubernetes is checked as such."""
    inner = re.fullmatch(r"(?:list\[|dict\(str, )(.*)[\])]", type_name)
    if inner:
        parts = node.items() if isinstance(node, dict) else enumerate(node)
        for key, part in parts:
            yield from _unknown_fields(inner[1], part, f"{place}.{key}")
    elif model := getattr(training_models, type_name, None):
        attributes = {name: attribute for attribute, name in model.attribute_map.items()}
        for name, part in node.items():
            if name not in attributes:
                yield f"{place}.{name} is not known"
            else:
                yield from _unknown_fields(model.openapi_types[attributes[name]], part, f"{place}.{name}")
