"""Build the pod that stratlab starts itself: its mounts, its few permissions and its resources.

Both cpu and memory have a request and a limit, because a quota on either refuses a pod without one. `PodRequest` also
locates runs on a cluster: the claim, its mount path in the runs, and the image that reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratlab import UserError

OPTION = "--pod-resources (or STRATLAB_POD_RESOURCES)"
ENTRY = re.compile(r"(requests|limits)\.([A-Za-z0-9][A-Za-z0-9._/-]*)=(.+)")


@dataclass(frozen=True)
class PodResources:
    """Hold amounts in Kubernetes' notation, by the name of the resource."""

    requests: Mapping[str, str] = field(default_factory=lambda: {"cpu": "20m", "memory": "128Mi"})
    limits: Mapping[str, str] = field(default_factory=lambda: {"cpu": "1", "memory": "1Gi"})


def check_pod_resources(text: str) -> str:
    """Return the same text after checking it; a callback of typer.

    Raises:
        UserError: the text is not a list of amounts, or a request exceeds its limit.
    """
    parse_pod_resources(text)
    return text


def parse_pod_resources(text: str) -> PodResources:
    """Parse `limits.cpu=500m,requests.memory=64Mi`.

    A resource that the text does not name keeps its default. A default request is lowered to a limit that the text
    names.

    Raises:
        UserError: as `check_pod_resources`.
    """
    if not text:
        return PodResources()
    from kubernetes.utils.quantity import (
        parse_quantity,
    )  # slow to import (0.5 s)  # the import takes half a second: only users of the option pay for it

    given: dict[str, dict[str, str]] = {"requests": {}, "limits": {}}
    for entry in filter(None, text.split(",")):
        if not (found := ENTRY.fullmatch(entry.strip())):
            raise UserError(
                f"{OPTION}: {entry!r}: expected requests.NAME=AMOUNT or limits.NAME=AMOUNT "
                "[SL-pod-resources-form]"
            )
        try:
            parse_quantity(found[3])
        except ValueError:
            raise UserError(
                f"{OPTION}: {entry!r}: not an amount; expected Kubernetes notation, such as 500m, 1 or 256Mi "
                "[SL-pod-resources-amount]"
            ) from None
        given[found[1]][found[2]] = found[3]
    own = PodResources()
    requests, limits = {**own.requests, **given["requests"]}, {**own.limits, **given["limits"]}
    for name in requests.keys() & limits.keys():
        if parse_quantity(requests[name]) <= parse_quantity(limits[name]):
            continue
        if name in given["requests"] and name in given["limits"]:
            raise UserError(
                f"{OPTION}: requests.{name}={requests[name]} is above limits.{name}={limits[name]}; "
                "lower the request or raise the limit [SL-pod-resources-above-limit]"
            )
        if name in given["requests"]:
            limits[name] = requests[name]
        else:
            requests[name] = limits[name]
    return PodResources(requests, limits)


CLAIM, MOUNT, IMAGE = "stratlab-results", "/results", "stratlab-lab:0.1.0"
GPU = "nvidia.com/gpu"
USER = 10001
CERTIFICATES = "/etc/stratlab/certificates"


@dataclass(frozen=True)
class PodRequest:
    """Describe a pod except for its command. Without a claim, `mount` is an empty folder.

    Attributes:
        component: decides which network policies apply; all components except `volume` may reach MLflow.
        certificates: configMap/NAME/KEY or secret/NAME/KEY of MLflow's authority, for components that may reach it.
        limits: of further resources, such as GPUs.
    """

    claim: str | None = CLAIM
    mount: str = MOUNT
    image: str = IMAGE
    read_only: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    component: str = "volume"
    deadline_s: int = 900
    certificates: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)

    def find_folder(self, name: str) -> str:
        """Return the path of a comparison, or of COMPARISON/RUN, in the pod."""
        return f"{self.mount.rstrip('/')}/{name}"


def build_pod(
    command: Sequence[str], request: PodRequest, resources: PodResources | None = None
) -> dict[str, Any]:
    """Build the pod object for the API server. It has no token, and of the namespace it mounts only the claim."""
    resources = resources or PodResources()
    labels = {"name": "stratlab", "instance": "stratlab", "component": request.component}
    labels |= {"part-of": "stratlab", "managed-by": "stratlab"}
    claim = {"persistentVolumeClaim": {"claimName": request.claim}} if request.claim else {"emptyDir": {}}
    env = {"HOME": "/tmp", "MPLCONFIGDIR": "/tmp/matplotlib", "PYTHONUNBUFFERED": "1", **request.env}
    trusted = _build_certificates(request.certificates if request.component != "volume" else "")
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
                    "command": [
                        part.replace("$", "$$") for part in command
                    ],  # Kubernetes would replace $(NAME)
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
                        *({"name": v["name"], "mountPath": CERTIFICATES, "readOnly": True} for v in trusted),
                    ],
                }
            ],
            "volumes": [{"name": "results", **claim}, {"name": "tmp", "emptyDir": {}}, *trusted],
        },
    }


def check_certificates(text: str) -> str:
    """Return the same text after checking it; a callback of typer.

    Raises:
        UserError: the text does not name a key of a ConfigMap or a Secret.
    """
    if text and not re.fullmatch(r"(configMap|secret)/[a-z0-9][a-z0-9.-]*/[A-Za-z0-9._-]+", text):
        raise UserError(
            f"--certificates {text}: expected configMap/NAME/KEY or secret/NAME/KEY [SL-certificates-form]"
        )
    return text


def _build_certificates(named: str) -> list[dict[str, Any]]:
    """Build the volume as the charts do."""
    if not named:
        return []
    kind, name, key = named.split("/")
    source = {kind: {"name": name, "items": [{"key": key, "path": "ca.crt"}]}}
    return [{"name": "certificates", "projected": {"sources": [source]}}]


def _spread(labels: Mapping[str, str]) -> dict[str, Any]:
    """Prefer different nodes for two pods of the same time, which shows whether the volume is shared."""
    selector = {f"app.kubernetes.io/{name}": labels[name] for name in ("part-of", "component")}
    term = {"labelSelector": {"matchLabels": selector}, "topologyKey": "kubernetes.io/hostname"}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}
