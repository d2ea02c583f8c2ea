"""The schema of the library chart's values: a typo under `run` is refused before anything reaches the cluster.

    python charts/values_schema.py                                    # print it
    python charts/values_schema.py charts/run/values.schema.json      # write it there: make schema

`run.config` is the trainer's own schema (trainer/settings/config.py), so that a setting is declared once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainer.settings import reserved_folders
from trainer.settings.fields import GRACE_S, YEAR_S
from trainer.settings.schema import schema

Schema = dict[str, Any]

# Of Kubernetes: 500m, 2Gi, 0.5
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
PREFIX = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/"
LABEL_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
QUALIFIED_NAME = rf"^({PREFIX})?{LABEL_NAME}$"  # 253 characters, a slash, and 63
REPOSITORY = r"^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$"
TAG = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}(@sha256:[0-9a-f]{64})?$"
EXTENDED_RESOURCE = rf"^({PREFIX}{LABEL_NAME})?$"
MOUNT_PATH = r"^(/[^/:\x00-\x1f\x7f]+)+/?$"
NO_MOUNT_PATH = rf"{reserved_folders.PATTERN}|/\.\.?(/|$)"
ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
HTTP_URI = r"^(https?://[^\s/?#@]+([/?#][^\s]*)?)?$"  # no user:password@
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
SECRET_KEY = r"^[-._A-Za-z0-9]+$"


def _text(pattern: str, description: str, **constraints: Any) -> Schema:
    return {"type": "string", "pattern": pattern, "description": description, **constraints}


def _whole(description: str, *, minimum: int = 1, **constraints: Any) -> Schema:
    return {"type": "integer", "minimum": minimum, "description": description, **constraints}


def _record(
    description: str, properties: Schema, required: Iterable[str] | None = None, **constraints: Any
) -> Schema:
    """All values are required but lists and maps, unless `required` names some.

    Helm fills in the defaults, and null takes one away: an empty list is a value, no number of pods is none.
    """
    whole = {"type": "object", "description": description, "additionalProperties": False}
    if required is None:
        required = [name for name, part in properties.items() if not _may_be_empty(part)]
    if required:
        whole["required"] = [*required]
    return {**whole, "properties": properties, **constraints}


def _may_be_empty(part: Schema) -> bool:
    return part.get("type") == "array" or "propertyNames" in part


def _seconds(description: str, *, minimum: int = 0) -> Schema:
    """A year at most: sums of them fit the 32 bits that Kubernetes has for some."""
    return _whole(description, minimum=minimum, maximum=YEAR_S)


def _choice(description: str, *values: str) -> Schema:
    return {"enum": [*values], "description": description}


def _switch(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def _list(description: str, items: Schema) -> Schema:
    return {"type": "array", "items": items, "description": description}


def _name(description: str, **constraints: Any) -> Schema:
    """Of an object in the cluster."""
    return _text(DNS_SUBDOMAIN, description, maxLength=253, **constraints)


def _optional_name(description: str, longest: int = 253) -> Schema:
    return _text(DNS_SUBDOMAIN.replace("^", "^(").replace("$", ")?$"), description, maxLength=longest)


def _image(description: str, further: Schema | None = None) -> Schema:
    properties = {
        "repository": _text(REPOSITORY, "Where the image is, without the tag."),
        "tag": _text(TAG, "Tag, also with a digest: 0.1.0@sha256:..."),
        "pullPolicy": _choice("When it is pulled.", "IfNotPresent", "Always", "Never"),
    }
    return _record(description, properties | (further or {}))


def _resources(description: str) -> Schema:
    amount = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": QUANTITY}]}
    names = {"pattern": QUALIFIED_NAME}
    amounts = {"type": "object", "additionalProperties": amount, "propertyNames": names}
    return _record(description, {"requests": amounts, "limits": amounts}, required=())


def _analysis() -> Schema:
    return _record(
        "The Job that waits for the end of the run and analyses it.",
        {
            "enabled": _switch("Whether there is one."),
            "image": _image("The image of stratlab/."),
            "serviceAccount": _optional_name('May read the run\'s resource; "" = look at the results only.'),
            "queue": _optional_name("Kueue's LocalQueue, where Kueue holds back Jobs without one.", 63),
            "resources": _resources("Requests and limits of its containers."),
            "ttlSecondsAfterFinished": _seconds("When the ended Job goes; its results stay."),
        },
    )


def _workload() -> Schema:
    apis = ("pytorchjob", "mpijob-v1", "mpijob-v2beta1", "trainjob")
    properties = {
        "api": _choice("Who starts the pods.", *apis),
        "topology": _choice("Whether a pytorchjob has a master.", "worker-only", "master-worker"),
    }
    return _record("The custom resource of the training.", properties)


def _scheduling() -> Schema:
    toleration = {
        "key": _text(QUALIFIED_NAME, "Taint."),
        "operator": _choice("How it is compared.", "Exists", "Equal"),
        "value": _text(LABEL_VALUE, "Of the taint.", maxLength=63),
        "effect": _choice("Of the taint.", "NoSchedule", "PreferNoSchedule", "NoExecute"),
        "tolerationSeconds": _seconds("How long NoExecute is tolerated."),
    }
    labels = {
        "type": "object",
        "additionalProperties": _text(LABEL_VALUE, "Of the label.", maxLength=63),
        "propertyNames": {"pattern": QUALIFIED_NAME},
        "description": "Labels of the nodes for the training pods.",
    }
    properties = {
        "gang": _choice("All pods or none.", "none", "kueue", "volcano", "scheduler-plugins"),
        "queue": _optional_name("Kueue's LocalQueue, or Volcano's Queue.", 63),
        "priorityClass": _optional_name("PriorityClass."),
        "nodeSelector": labels,
        "tolerations": _list("Of the training pods.", _record("As of a pod.", toleration, required=())),
        "waitSeconds": _seconds("How long the run may wait for its nodes."),
    }
    return _record("Where and when the pods run.", properties)


def _rdma() -> Schema:
    properties = {
        "enabled": _switch("Whether the pods get it; their namespace must be `privileged` then."),
        "resource": _text(EXTENDED_RESOURCE.replace(")?$", ")$"), "Extended resource of the device plugin."),
        "count": _whole("How many for a pod.", maximum=1000),
    }
    return _record("A network card with RDMA.", properties)


def _env() -> Schema:
    value = {"type": ["string", "number", "boolean"], "description": "Value."}
    entry = {"name": _text(ENV_NAME, "Name."), "value": value}
    items = _record("One variable. TRAINER_* names belong into run.config.", entry)
    return _list("Further variables of the training container.", items)


def _secrets() -> Schema:
    entry = {
        "name": _text(ENV_NAME, "Of the variable."),
        "secret": _name("Of the Secret."),
        "key": _text(SECRET_KEY, "In the Secret.", maxLength=253),
    }
    items = _record("One variable.", entry)
    return _list("Variables of the training container out of Secrets that exist.", items)


def values_schema() -> Schema:
    """Of what stands under `run` in a strategy chart. `global` must be allowed: Helm adds it to every subchart."""
    results = {
        "claim": _name("PersistentVolumeClaim, ReadWriteMany."),
        "mountPath": _text(
            MOUNT_PATH,
            "Where the pods see it; no folder of the system.",
            **{"not": {"pattern": NO_MOUNT_PATH}},
        ),
    }
    shared_memory = {"sizeLimit": _text(QUANTITY, "Counted as memory of the pod.")}
    mlflow = {
        "trackingUri": _text(HTTP_URI, 'MLflow server; "" = metrics stay on the results volume.'),
        "existingSecret": _optional_name("Secret with the keys username and password."),
    }
    pull_secrets = {"pullSecrets": _list("Secrets to pull the images with.", _name("Of a Secret."))}
    properties = {
        "global": {"type": "object"},
        "image": _image("The image of trainer/.", pull_secrets),
        "nodes": _whole("Pods.", maximum=1000),
        "processesPerNode": _whole("Processes in each pod.", maximum=1000),
        "accelerator": _text(EXTENDED_RESOURCE, 'Device that every process gets one of; "" = none.'),
        "resources": _resources("Further requests and limits of a training pod."),
        "sharedMemory": _record("/dev/shm", shared_memory),
        "rdma": _rdma(),
        "workload": _workload(),
        "suspend": _switch("Whether the run has no pods for now."),
        "graceSeconds": _whole(
            "From SIGTERM to the end of a training pod.", minimum=GRACE_S[0], maximum=GRACE_S[1]
        ),
        "scheduling": _scheduling(),
        "allowFaults": _switch("Whether run.config.fault may be set."),
        "results": _record("Volume of the results; the claim exists already.", results),
        "mlflow": _record("Tracking server.", mlflow),
        "analysis": _analysis(),
        "config": schema() | {"description": "Settings of the trainer, TRAINER_* in the pod."},
        "env": _env(),
        "secrets": _secrets(),
    }
    draft = "https://json-schema.org/draft/2020-12/schema"
    values = _record("One training run.", properties)
    values["required"].remove("global")
    return {"$schema": draft, **values}


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
