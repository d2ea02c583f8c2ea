"""The pod that stratlab starts itself: what it may do, which is little, and what it mounts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratlab.cluster.pod_resources import PodResources
from stratlab.user_error import UserError

CLAIM, MOUNT, IMAGE = "stratlab-results", "/results", "stratlab-lab:0.1.0"
USER = 10001
CERTIFICATES = "/etc/stratlab/certificates"


@dataclass(frozen=True)
class PodRequest:
    """What `build_pod` needs beside the command.

    `component` decides which network policies apply. Without a claim `mount` is an empty folder.
    """

    claim: str | None = CLAIM
    mount: str = MOUNT
    image: str = IMAGE
    read_only: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    component: str = "volume"
    deadline_s: int = 900
    certificates: str = ""
    """configMap/NAME/KEY or secret/NAME/KEY: of an authority that its programs trust too."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Of further resources, as nvidia.com/gpu."""


def build_pod(
    command: Sequence[str], request: PodRequest, resources: PodResources | None = None
) -> dict[str, Any]:
    """The pod as the API server gets it. It has no token and nothing of the namespace but the claim."""
    resources = resources or PodResources()
    labels = {"name": "stratlab", "instance": "stratlab", "component": request.component}
    labels |= {"part-of": "stratlab", "managed-by": "stratlab"}
    claim = {"persistentVolumeClaim": {"claimName": request.claim}} if request.claim else {"emptyDir": {}}
    env = {"HOME": "/tmp", "MPLCONFIGDIR": "/tmp/matplotlib", "PYTHONUNBUFFERED": "1", **request.env}
    trusted = _build_certificates(request.certificates)
    env |= {"STRATLAB_CA_FILE": f"{CERTIFICATES}/ca.crt"} if trusted else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"stratlab-{request.component}-",
            "labels": {f"app.kubernetes.io/{name}": value for name, value in labels.items()},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": request.deadline_s,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "affinity": {"podAntiAffinity": _spread(labels)},
            "containers": [
                {
                    "name": "volume",
                    "image": request.image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": [part.replace("$", "$$") for part in command],  # $(NAME) would be replaced
                    "env": [
                        *({"name": k, "value": v.replace("$", "$$")} for k, v in env.items()),
                        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    ],
                    "resources": {
                        "requests": {**resources.requests},
                        "limits": {**resources.limits, **request.limits},
                    },
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": "results", "mountPath": request.mount, "readOnly": request.read_only},
                        {"name": "tmp", "mountPath": "/tmp"},
                        *(
                            {"name": each["name"], "mountPath": CERTIFICATES, "readOnly": True}
                            for each in trusted
                        ),
                    ],
                }
            ],
            "volumes": [
                {"name": "results", **claim},
                {"name": "tmp", "emptyDir": {}},
                *trusted,
            ],
        },
    }


def check_certificates(text: str) -> str:
    """The same text; a callback of typer.

    Raises:
        UserError: it names no key of a ConfigMap or a Secret.
    """
    if text and not re.fullmatch(r"(configMap|secret)/[a-z0-9][a-z0-9.-]*/[A-Za-z0-9._-]+", text):
        raise UserError(
            f"--certificates {text}: expected configMap/NAME/KEY or secret/NAME/KEY [SL-certificates-form]"
        )
    return text


def _build_certificates(named: str) -> list[dict[str, Any]]:
    """The volume, as the charts write it."""
    if not named:
        return []
    kind, name, key = named.split("/")
    source = {kind: {"name": name, "items": [{"key": key, "path": "ca.crt"}]}}
    return [{"name": "certificates", "projected": {"sources": [source]}}]


def _spread(labels: Mapping[str, str]) -> dict[str, Any]:
    """Two of these pods at once rather run on two nodes: that shows whether the volume is shared."""
    selector = {f"app.kubernetes.io/{name}": labels[name] for name in ("part-of", "component")}
    term = {"labelSelector": {"matchLabels": selector}, "topologyKey": "kubernetes.io/hostname"}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}
