"""The schema of the library chart's values: a typo under `run` is refused before anything reaches the cluster.

    python charts/values_schema.py                                    # print it
    python charts/values_schema.py charts/run/values.schema.json      # write it there: make schema

`run.config` is the trainer's own schema (trainer/config.py), so that a setting is declared once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from trainer.config import schema

Schema = dict[str, Any]

# Of Kubernetes: 500m, 2Gi, 0.5
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
QUALIFIED_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
REPOSITORY = r"^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$"
TAG = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}(@sha256:[0-9a-f]{64})?$"
EXTENDED_RESOURCE = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$"
MOUNT_PATH = r"^/[^:\x00-\x1f\x7f]*$"
ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
HTTP_URI = r"^(https?://[^\s]+)?$"


def _text(pattern: str, description: str, **constraints: Any) -> Schema:
    return {"type": "string", "pattern": pattern, "description": description, **constraints}


def _whole(description: str, *, minimum: int = 1, **constraints: Any) -> Schema:
    return {"type": "integer", "minimum": minimum, "description": description, **constraints}


def _record(description: str, properties: Schema, **constraints: Any) -> Schema:
    whole = {"type": "object", "description": description, "additionalProperties": False}
    return {**whole, "properties": properties, **constraints}


def _image(description: str) -> Schema:
    return _record(
        description,
        {
            "repository": _text(REPOSITORY, "Where the image is, without the tag."),
            "tag": _text(TAG, "Tag, also with a digest: 0.1.0@sha256:..."),
            "pullPolicy": {"enum": ["IfNotPresent", "Always", "Never"], "description": "When it is pulled."},
        },
    )


def _resources(description: str) -> Schema:
    amount = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": QUANTITY}]}
    names = {"pattern": QUALIFIED_NAME}
    amounts = {"type": "object", "additionalProperties": amount, "propertyNames": names}
    return _record(description, {"requests": amounts, "limits": amounts})


def _analysis() -> Schema:
    return _record(
        "The Job that waits for the end of the run and analyses it.",
        {
            "enabled": {"type": "boolean", "description": "Whether there is one."},
            "image": _image("The image of stratlab/."),
            "resources": _resources("Requests and limits of its containers."),
            "deadlineSeconds": _whole("How long after `helm install` the run must have ended."),
            "ttlSecondsAfterFinished": _whole("When the ended Job goes; its results stay.", minimum=0),
        },
    )


def _env() -> Schema:
    value = {"type": ["string", "number", "boolean"], "description": "Value."}
    entry = {"name": _text(ENV_NAME, "Name."), "value": value}
    items = _record(
        "One variable. TRAINER_* names belong into run.config.", entry, required=["name", "value"]
    )
    return {"type": "array", "items": items, "description": "Further variables of the training container."}


def values_schema() -> Schema:
    """Of what stands under `run` in a strategy chart. `global` must be allowed: Helm adds it to every subchart."""
    results = {
        "claim": _text(DNS_SUBDOMAIN, "PersistentVolumeClaim, ReadWriteMany.", maxLength=253),
        "mountPath": _text(MOUNT_PATH, "Where the pods see it."),
    }
    shared_memory = {"sizeLimit": _text(QUANTITY, "Counted as memory of the pod.")}
    mlflow = {"trackingUri": _text(HTTP_URI, 'MLflow server; "" = metrics stay on the results volume.')}
    properties = {
        "global": {"type": "object"},
        "image": _image("The image of trainer/."),
        "nodes": _whole("Pods.", maximum=1000),
        "processesPerNode": _whole("Processes in each pod."),
        "accelerator": _text(EXTENDED_RESOURCE, 'Device that every process gets one of; "" = none.'),
        "resources": _resources("Further requests and limits of a training pod."),
        "sharedMemory": _record("/dev/shm", shared_memory),
        "results": _record("Volume of the results; the claim exists already.", results),
        "mlflow": _record("Tracking server.", mlflow),
        "analysis": _analysis(),
        "config": schema() | {"description": "Settings of the trainer, TRAINER_* in the pod."},
        "env": _env(),
    }
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, **_record("One training run.", properties)}


def main(arguments: list[str]) -> int:
    if len(arguments) > 1:
        print(__doc__, file=sys.stderr)
        return 2
    text = json.dumps(values_schema(), indent=2) + "\n"
    if arguments:
        file = Path(arguments[0])
        unfinished = file.with_name(f".{file.name}")
        unfinished.write_text(text)
        unfinished.replace(file)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
