"""A strict JSON schema of names and types out of a CustomResourceDefinition, without its prose and its pod templates.

Of the MPI operator there is no package whose models could be read as those of the other operators are, so what is kept
of its definition lies in schemas/. To make it anew:

    folder=$(go mod download -json github.com/kubeflow/mpi-operator@v0.8.0 | jq --raw-output .Dir)
    python -m tests.charts.crd_schema $folder/manifests/base/kubeflow.org_mpijobs.yaml v2beta1 \\
        "github.com/kubeflow/mpi-operator v0.8.0" tests/charts/schemas/mpijob-v2beta1.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.charts.sdk_schema import build_sdk_schema

Schema = dict[str, Any]

KEPT = ("type", "enum", "required", "minimum", "maximum")
POD_TEMPLATE = "V1PodTemplateSpec"  # of the kubernetes client
METADATA = "V1ObjectMeta"


def build_crd_schema(definition: Schema, version: str, source: str) -> Schema:
    """What `definition` says of its `version`; pod templates and metadata are references to other schemas."""
    (found,) = [entry for entry in definition["spec"]["versions"] if entry["name"] == version]
    schema = _names_and_types(found["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"$ref": f"#/$defs/{METADATA}"}
    schema["properties"].pop("status", None)
    return {"$comment": f"names and types of {source}", **schema}


def read_crd_schema(file: Path) -> Schema:
    """A schema from `schemas/`, complete."""
    definitions: Schema = {}
    for root in (POD_TEMPLATE, METADATA):
        definitions |= build_sdk_schema(root)["$defs"]
    return {**json.loads(file.read_text()), "$defs": definitions}


def _names_and_types(node: Schema) -> Schema:
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    kept = {name: node[name] for name in KEPT if name in node}
    if "items" in node:
        kept["items"] = _names_and_types(node["items"])
    if isinstance(node.get("additionalProperties"), dict):
        kept["additionalProperties"] = _names_and_types(node["additionalProperties"])
    elif "properties" in node:
        kept["additionalProperties"] = False
        kept["properties"] = {
            name: {"$ref": f"#/$defs/{POD_TEMPLATE}"} if name == "template" else _names_and_types(part)
            for name, part in node["properties"].items()
        }
    return kept


def main(arguments: list[str]) -> int:
    if len(arguments) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    definition, version, source, target = arguments
    schema = build_crd_schema(yaml.safe_load(Path(definition).read_text()), version, source)
    Path(target).write_text(json.dumps(schema, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
