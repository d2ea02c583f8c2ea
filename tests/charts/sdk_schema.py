"""A strict JSON schema of a custom resource, generated from the kubeflow-training SDK's own models.

The SDK's models know names, types and what is required; here unknown fields are refused too. No 600 KB CRD to carry.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import kubeflow.training.models as training_models
import kubernetes.client.models as kubernetes_models
from kubernetes.client import Configuration

Schema = dict[str, Any]

QUANTITY: Schema = {
    "anyOf": [
        {"type": "integer"},
        {
            "type": "string",
            "pattern": r"^[+-]?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+|[numkKMGTPE]i?)?$",
        },
    ]
}
SCALARS: dict[str, Schema] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "bool": {"type": "boolean"},
    "datetime": {"type": "string"},
    "object": {},  # a number or text
    "Quantity": QUANTITY,
}


@functools.cache
def build_sdk_schema(root: str) -> Schema:
    """JSON schema (draft 2020-12) of an SDK model such as KubeflowOrgV1PyTorchJob. 1-3 s, then cached."""
    definitions: dict[str, Schema] = {}
    reference = _schema_of(root, definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **reference, "$defs": definitions}


def _schema_of(type_name: str, definitions: dict[str, Schema]) -> Schema:
    if of_list := re.fullmatch(r"list\[(.*)\]", type_name):
        return {"type": "array", "items": _schema_of(of_list[1], definitions)}
    if of_dict := re.fullmatch(r"dict\(str, (.*)\)", type_name):
        return {"type": "object", "additionalProperties": _schema_of(of_dict[1], definitions)}
    if type_name in SCALARS:
        return SCALARS[type_name]
    if type_name not in definitions:
        definitions[type_name] = {}  # before descending: types refer to themselves
        definitions[type_name] = _object_schema(_find_model(type_name), definitions)
    return {"$ref": f"#/$defs/{type_name}"}


def _object_schema(model: type, definitions: dict[str, Schema]) -> Schema:
    names: dict[str, str] = model.attribute_map  # type: ignore[attr-defined]
    types: dict[str, str] = model.openapi_types  # type: ignore[attr-defined]
    properties = {}
    for attribute, name in names.items():
        amounts = name in ("limits", "requests") and types[attribute] == "dict(str, str)"
        properties[name] = (
            {
                "type": "object",
                "additionalProperties": QUANTITY,
            }  # the SDK says text, the API takes numbers too
            if amounts
            else _schema_of(types[attribute], definitions)
        )
    required = sorted(names[attribute] for attribute in names if _is_required(model, attribute))
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": required,
    }


def _is_required(model: type, attribute: str) -> bool:
    """Whether the setter refuses None."""
    lenient = Configuration()
    lenient.client_side_validation = False
    instance = model(local_vars_configuration=lenient)
    instance.local_vars_configuration = Configuration()
    try:
        setattr(instance, attribute, None)
    except ValueError:
        return True
    return False


def _find_model(type_name: str) -> type:
    """SDK type names carry package prefixes that the classes of the kubernetes client do not have."""
    short = re.sub(r"^K8sIoApi[A-Z][a-z]+", "", type_name)
    bare = re.sub(r"^.*?(V\d\w*)$", r"\1", type_name)
    for name in (type_name, short, bare):
        for module in (training_models, kubernetes_models):
            if hasattr(module, name):
                return getattr(module, name)
    raise LookupError(f"the SDK has no model {type_name}")
