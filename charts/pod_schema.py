"""What a cluster asks of the pods, `run.pod`, and what their namespace allows, `run.podSecurity`.

The names are those of Kubernetes where they mean the same. There is no key for `privileged`, `hostPID` and the like.
What leaves Pod Security `restricted` is refused by charts/run/templates/_security.tpl unless the namespace allows it.
"""

from __future__ import annotations

from charts import schema_parts as parts
from charts.schema_parts import Schema

# Of the system and the image: hiding them breaks every program in the pod. Below /usr/local and /opt there is room.
NO_FOLDER = (
    r"^/(bin|boot|dev|lib|lib32|lib64|libx32|proc|sbin|sys|home/mpiuser|opt/venv|opt/package|opt/kube|run/secrets|"
    r"usr/bin|usr/lib|usr/lib32|usr/lib64|usr/libexec|usr/sbin|usr/local/bin|usr/local/lib|usr/local/sbin|var/run|"
    r"var/lib/kubelet|etc/(alternatives|group|gshadow|host\.conf|hostname|hosts|ld\.so\.[a-z.]+|mpi|nsswitch\.conf|"
    r"pam\.d|passwd|resolv\.conf|security|services|shadow|ssh|subgid|subuid))(/.*)?$|"
    r"^/(etc|home|opt|root|run|tmp|usr|usr/local|usr/share|var)/?$|/\.\.?(/|$)"
)
SUB_PATH = r"^[^/\x00-\x1f\x7f][^\x00-\x1f\x7f]*$"
NO_WAY_UP = r"(^|/)\.\.(/|$)"
LABEL_NAMED = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
CAPABILITY = r"^[A-Z][A-Z_]+$"
_PART = r"[A-Za-z0-9]+([._-]+[A-Za-z0-9]+)*"
IMAGE = rf"^({_PART}(:[0-9]+)?/)?{_PART}(/{_PART})*(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?$"
OF_LABELS = ("In", "NotIn", "Exists", "DoesNotExist")
HIGHEST_ID = 2**31 - 1
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


def pod() -> Schema:
    properties = {
        "labels": parts.map_of(
            "Of all objects and pods of the run.",
            parts.text(parts.LABEL_VALUE, "Of the label.", maxLength=63),
        ),
        "annotations": parts.map_of(
            "Of the pods that train: networks of the cluster, and what its webhooks read.",
            {"type": "string", "maxLength": 65536, "description": "Of the annotation."},
        ),
        "serviceAccount": parts.optional_name('Of the training pods; "" = `default` of the namespace.'),
        "runtimeClass": parts.optional_name("Of the pods that train."),
        "hostNetwork": parts.switch("Whether the pods that train share the node's network."),
        "hostIPC": parts.switch("Whether the pods that train share the node's IPC."),
        "affinity": _affinity(),
        "topologySpread": parts.list_of("The pods that train, over the nodes.", _spread()),
        "volumes": parts.list_of("Further volumes of the pods that train.", {"anyOf": _volumes()}),
        "initContainers": parts.list_of("Before the pods train, one after the other.", _init_container()),
        "securityContext": _security_context(),
    }
    return parts.record("What a cluster asks of the pods.", properties)


def pod_security() -> Schema:
    properties = {
        "level": parts.choice(
            "The Pod Security level that the namespace enforces.", "restricted", "baseline", "privileged"
        ),
        "hostPaths": parts.list_of(
            "Folders of the nodes that the namespace's pods may read, with all below.", _host_path("Folder.")
        ),
    }
    return parts.record("What the namespace allows.", properties)


def _host_path(description: str) -> Schema:
    return parts.text(parts.MOUNT_PATH, description, **{"not": {"pattern": r"/\.\.?(/|$)"}})


def _security_context() -> Schema:
    properties = {
        "runAsUser": _identity('User of all pods; "" = whom the cluster chooses.'),
        "runAsGroup": _identity('Their group; "" = which the cluster chooses.'),
        "fsGroup": _identity('Group of the volumes; "" = which the cluster chooses.'),
        "supplementalGroups": parts.list_of(
            "Further groups of all pods.", parts.whole("Group.", maximum=HIGHEST_ID)
        ),
        "seccompProfile": parts.choice("Of all pods.", "RuntimeDefault", "Unconfined"),
        "seLinuxType": parts.text(r"^([a-z0-9_]+)?$", 'Of all pods; "" = the cluster\'s own.', maxLength=63),
        "readOnlyRootFilesystem": parts.switch("Whether images cannot be written to."),
        "capabilities": parts.list_of(
            "Of the containers that train; all others are dropped.",
            parts.text(CAPABILITY, "Without CAP_.", maxLength=63),
        ),
    }
    return parts.record("In place of the charts' own.", properties)


def _identity(description: str) -> Schema:
    number = {"type": "integer", "minimum": 0, "maximum": HIGHEST_ID}
    return {"anyOf": [number, {"const": ""}], "description": description}


def _volumes() -> list[Schema]:
    """One schema for each source that a volume may have; each has exactly one."""
    sources = {
        "emptyDir": parts.record(
            "Gone with the pod.",
            {
                "sizeLimit": parts.text(parts.SIZE, "Of the disk, or of the pod's memory."),
                "medium": parts.choice("Where it lies.", "", "Memory"),
            },
            required=("sizeLimit",),
        ),
        "persistentVolumeClaim": parts.record(
            "A claim that exists.", {"claimName": parts.name("Of the claim.")}
        ),
        "configMap": parts.record(
            "A ConfigMap that exists.",
            {"name": parts.name("Of the ConfigMap."), "optional": parts.switch("Whether it may be missing.")},
            required=("name",),
        ),
        "secret": parts.record(
            "A Secret that exists.",
            {
                "secretName": parts.name("Of the Secret."),
                "optional": parts.switch("Whether it may be missing."),
            },
            required=("secretName",),
        ),
        "csi": parts.record(
            "A volume of a CSI driver, inline.",
            {
                "driver": parts.name("Of the driver."),
                "volumeAttributes": parts.map_of(
                    "What the driver reads.", {"type": "string", "description": "Of the attribute."}
                ),
            },
        ),
        "hostPath": parts.record(
            "A folder of the node, only to read, that run.podSecurity.hostPaths lists.",
            {
                "path": _host_path("On the node."),
                "type": parts.choice("What must be there.", "", "Directory", "File"),
            },
            required=("path",),
        ),
    }
    return [_volume(source, schema) for source, schema in sources.items()]


def _volume(source: str, schema: Schema) -> Schema:
    properties = {
        "name": parts.text(LABEL_NAMED, "Of the volume."),
        "mountPath": parts.text(
            parts.MOUNT_PATH, "Where the pods see it.", **{"not": {"pattern": NO_FOLDER}}
        ),
        "subPath": parts.text(SUB_PATH, "The part that they see.", **{"not": {"pattern": NO_WAY_UP}}),
        "readOnly": parts.switch("Whether it cannot be written to."),
        source: schema,
    }
    return parts.record(f"With the source {source}.", properties, required=("name", "mountPath", source))


def _init_container() -> Schema:
    text = parts.text(parts.ENV_VALUE, "As it is; no shell reads it.")
    value = parts.text(parts.ENV_VALUE, "Value.")
    variable = parts.record("One variable.", {"name": parts.text(parts.ENV_NAME, "Name."), "value": value})
    properties = {
        "name": parts.text(LABEL_NAMED, "Of the container."),
        "image": parts.text(IMAGE, "With its tag or digest.", maxLength=512),
        "pullPolicy": parts.choice("When it is pulled.", "IfNotPresent", "Always", "Never"),
        "command": parts.list_of("What it starts.", text),
        "env": parts.list_of("Its variables.", variable),
        "resources": parts.resources("Its requests and limits."),
    }
    return parts.record(
        "It sees the volumes of the pod, and is confined as the training is.",
        properties,
        required=("name", "image", "command"),
    )


def _spread() -> Schema:
    properties = {
        "topologyKey": parts.text(parts.QUALIFIED_NAME, "Label of the nodes."),
        "maxSkew": parts.whole("By how many pods two of its values may differ.", maximum=1000),
        "whenUnsatisfiable": parts.choice("What else.", "DoNotSchedule", "ScheduleAnyway"),
    }
    return parts.record("As of a pod; it counts the training pods of the run.", properties)


def _affinity() -> Schema:
    weight = parts.whole("Against the others.", maximum=100)
    # an empty term means no node
    conditions = _expressions("Of their labels.", *OF_LABELS, "Gt", "Lt") | {"minItems": 1}
    nodes = parts.record("Nodes.", {"matchExpressions": conditions}, required=("matchExpressions",))
    preferred_nodes = parts.record("Rather these.", {"weight": weight, "preference": nodes})
    near = _near()
    preferred_near = parts.record("Rather there.", {"weight": weight, "podAffinityTerm": near})
    node_affinity = {
        REQUIRED: parts.record(
            "Only these.",
            {"nodeSelectorTerms": parts.list_of("Any of them.", nodes, minItems=1)},
            required=("nodeSelectorTerms",),
        ),
        PREFERRED: parts.list_of("By weight.", preferred_nodes),
    }
    pod_affinity = {
        REQUIRED: parts.list_of("All of them.", near),
        PREFERRED: parts.list_of("By weight.", preferred_near),
    }
    properties = {
        "nodeAffinity": parts.record("Which nodes.", node_affinity, required=()),
        "podAffinity": parts.record("Beside which pods.", pod_affinity, required=()),
        "podAntiAffinity": parts.record("Away from which pods.", pod_affinity, required=()),
    }
    return parts.record("As of a pod, for those that train.", properties, required=())


def _near() -> Schema:
    labels = parts.map_of("All of them.", parts.text(parts.LABEL_VALUE, "Of the label.", maxLength=63))
    selector = parts.record(
        "Left out: the training pods of this run.",
        {"matchLabels": labels, "matchExpressions": _expressions("All of them.", *OF_LABELS)},
        required=(),
    )
    properties = {
        "topologyKey": parts.text(parts.QUALIFIED_NAME, "Label of the nodes: what is one place."),
        "labelSelector": selector,
    }
    return parts.record("One place with these pods.", properties, required=("topologyKey",))


def _expressions(description: str, *operators: str) -> Schema:
    """Exists and DoesNotExist compare with nothing, all others with something."""
    properties = {
        "key": parts.text(parts.QUALIFIED_NAME, "Label."),
        "operator": parts.choice("How it is compared.", *operators),
        "values": parts.list_of("With what.", parts.text(parts.LABEL_VALUE, "Value.", maxLength=63)),
    }
    nothing = {"properties": {"values": {"maxItems": 0}}}
    something = {"required": ["values"], "properties": {"values": {"minItems": 1}}}
    values = parts.depending("operator", ["Exists", "DoesNotExist"], nothing, something)
    return parts.list_of(description, parts.record("One condition.", properties, **values))
