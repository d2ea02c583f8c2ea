"""The schema of the library chart's values: a typo under `run` is refused before anything reaches the cluster.

    python -m charts.values_schema                                  # print it
    python -m charts.values_schema charts/run/values.schema.json      # write it there: make schema

`run.config` is the trainer's own schema (stratlab_spec/settings/config.py), so that a setting is declared once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from charts import schema_parts as parts
from charts.pod_schema import pod, pod_security
from charts.schema_parts import Schema
from stratlab_spec.settings.fields import GRACE_S
from stratlab_spec.settings.files import schema


def _analysis() -> Schema:
    return parts.record(
        "The Jobs that wait for the end of the run and analyse it.",
        {
            "enabled": parts.switch("Whether there is one."),
            "image": parts.image("The image of stratlab/."),
            "serviceAccount": parts.optional_name(
                'May read the run\'s resource and start the analysis; "" = look at the results only.'
            ),
            "queue": parts.optional_name("Kueue's LocalQueue, where Kueue holds back Jobs without one.", 63),
            "resources": parts.resources("Requests and limits of the pods that analyse."),
            "wait": parts.record(
                "The pod that waits for the end of the run.",
                {"resources": parts.resources("Its requests and limits.")},
            ),
            "shares": parts.whole("Pods that each read a share of the ranks' traces.", maximum=1000),
            "ttlSecondsAfterFinished": parts.seconds("When the ended Job goes; its results stay."),
        },
    )


def _workload() -> Schema:
    apis = ("pytorchjob", "mpijob-v1", "mpijob-v2beta1", "trainjob", "auto")
    properties = {
        "api": parts.choice("Who starts the pods.", *apis),
        "topology": parts.choice("Whether a pytorchjob has a master.", "worker-only", "master-worker"),
        "launcherResources": parts.resources("Requests and limits of an MPIJob's launcher pod."),
    }
    return parts.record("The custom resource of the training.", properties)


def _scheduling() -> Schema:
    toleration = {
        "key": parts.text(parts.QUALIFIED_NAME, "Taint."),
        "operator": parts.choice("How it is compared.", "Exists", "Equal"),
        "value": parts.text(parts.LABEL_VALUE, "Of the taint.", maxLength=63),
        "effect": parts.choice("Of the taint.", "NoSchedule", "PreferNoSchedule", "NoExecute"),
        "tolerationSeconds": parts.seconds("How long NoExecute is tolerated."),
    }
    no_value = {"properties": {"value": {"maxLength": 0}}}
    any_taint = parts.depending("operator", ["Exists"], no_value, {"required": ["key"]})
    labels = {
        "type": "object",
        "additionalProperties": parts.text(parts.LABEL_VALUE, "Of the label.", maxLength=63),
        "propertyNames": {"pattern": parts.QUALIFIED_NAME},
        "description": "Labels of the nodes for the training pods.",
    }
    properties = {
        "gang": parts.choice("All pods or none.", "none", "kueue", "volcano", "scheduler-plugins"),
        "queue": parts.optional_name("Kueue's LocalQueue, or Volcano's Queue.", 63),
        "priorityClass": parts.optional_name("PriorityClass."),
        "nodeSelector": labels,
        "tolerations": parts.list_of(
            "Of the training pods.", parts.record("As of a pod.", toleration, required=(), **any_taint)
        ),
        "waitSeconds": parts.seconds("How long the run may wait for its nodes."),
    }
    return parts.record("Where and when the pods run.", properties)


def _rdma() -> Schema:
    properties = {
        "enabled": parts.switch("Whether the pods get it."),
        "resource": parts.text(
            parts.EXTENDED_RESOURCE.replace(")?$", ")$"), "Extended resource of the device plugin."
        ),
        "count": parts.whole("How many for a pod.", maximum=1000),
        "lockMemory": parts.switch("Whether the pods get the capability IPC_LOCK: the level `privileged`."),
    }
    return parts.record("A network card with RDMA.", properties)


def _env() -> Schema:
    value = {"type": ["string", "number", "boolean"], "pattern": parts.ENV_VALUE, "description": "Value."}
    entry = {"name": parts.text(parts.ENV_NAME, "Name."), "value": value}
    items = parts.record("One variable. TRAINER_* names belong into run.config.", entry)
    return parts.list_of("Further variables of the training container.", items)


def _secrets() -> Schema:
    entry = {
        "name": parts.text(parts.ENV_NAME, "Of the variable."),
        "secret": parts.name("Of the Secret."),
        "key": parts.text(parts.SECRET_KEY, "In the Secret.", maxLength=253),
    }
    items = parts.record("One variable.", entry)
    return parts.list_of("Variables of the training container out of Secrets that exist.", items)


def values_schema() -> Schema:
    """Of what stands under `run` in a strategy chart. `global` must be allowed: Helm adds it to every subchart."""
    results = {
        "claim": parts.name("PersistentVolumeClaim, ReadWriteMany."),
        "mountPath": parts.text(
            parts.MOUNT_PATH,
            "Where the pods see it; no folder of the system.",
            **{"not": {"pattern": parts.NO_MOUNT_PATH}},
        ),
    }
    shared_memory = {"sizeLimit": parts.text(parts.SIZE, "Counted as memory of the pod.")}
    mlflow = {
        "trackingUri": parts.text(parts.HTTP_URI, 'MLflow server; "" = metrics stay on the results volume.'),
        "existingSecret": parts.optional_name("Secret with the keys username and password."),
    }
    pull_secrets = {
        "pullSecrets": parts.list_of("Secrets to pull the images with.", parts.name("Of a Secret."))
    }
    properties = {
        "global": {"type": "object"},
        "image": parts.image("The image of trainer/.", pull_secrets),
        "nodes": parts.whole("Pods.", maximum=1000),
        "processesPerNode": parts.whole("Processes in each pod.", maximum=1000),
        "accelerator": parts.text(
            parts.EXTENDED_RESOURCE, 'Device that every process gets one of; "" = none.'
        ),
        "resources": parts.resources("Further requests and limits of a training pod."),
        "sharedMemory": parts.record("/dev/shm", shared_memory),
        "rdma": _rdma(),
        "pod": pod(),
        "podSecurity": pod_security(),
        "tmp": parts.record(
            "/tmp of every pod",
            {"sizeLimit": parts.text(parts.SIZE, "Of the node's disk; beyond it a pod is evicted.")},
        ),
        "workload": _workload(),
        "suspend": parts.switch("Whether the run has no pods for now."),
        "graceSeconds": parts.whole(
            "From SIGTERM to the end of a training pod.", minimum=GRACE_S[0], maximum=GRACE_S[1]
        ),
        "scheduling": _scheduling(),
        "allowFaults": parts.switch("Whether run.config.fault may be set."),
        "results": parts.record("Volume of the results; the claim exists already.", results),
        "mlflow": parts.record("Tracking server.", mlflow),
        "certificates": parts.record(
            "Of the authority that has signed MLflow's certificate.",
            {
                "configMap": parts.optional_name("That holds it."),
                "secret": parts.optional_name("That holds it, instead."),
                "key": parts.text(parts.SECRET_KEY, "In it.", maxLength=253),
            },
        ),
        "analysis": _analysis(),
        "config": schema() | {"description": "Settings of the trainer, TRAINER_* in the pod."},
        "env": _env(),
        "secrets": _secrets(),
    }
    draft = "https://json-schema.org/draft/2020-12/schema"
    values = parts.record("One training run.", properties)
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
