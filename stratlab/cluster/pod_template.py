"""The pod that stratlab starts itself: what it mounts, what it may do, which is little, and what it may use.

Both cpu and memory have a request and a limit, since a quota on either refuses a pod without one. `PodRequest` also
says where runs lie on a cluster: the claim, where the runs see it, and the image that reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratlab.user_error import UserError

OPTION = "--pod-resources (or STRATLAB_POD_RESOURCES)"
ENTRY = re.compile(r"(requests|limits)\.([A-Za-z0-9][A-Za-z0-9._/-]*)=(.+)")


@dataclass(frozen=True)
class PodResources:
    """Amounts as Kubernetes writes them, by the name of the resource."""

    requests: Mapping[str, str] = field(default_factory=lambda: {"cpu": "20m", "memory": "128Mi"})
    limits: Mapping[str, str] = field(default_factory=lambda: {"cpu": "1", "memory": "1Gi"})


def check_pod_resources(text: str) -> str:
    """The same text; a callback of typer.

    Raises:
        UserError: it is no list of amounts, or asks for more than it limits.
    """
    parse_pod_resources(text)
    return text


def parse_pod_resources(text: str) -> PodResources:
    """From `limits.cpu=500m,requests.memory=64Mi`: what it does not name stays, but no request above a limit it names.

    Raises:
        UserError: as `check_pod_resources`.
    """
    if not text:
        return PodResources()
    from kubernetes.utils.quantity import parse_quantity  # half a second: only who gives amounts pays

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
                f"{OPTION}: {entry!r}: no amount; expected one of Kubernetes, such as 500m, 1 or 256Mi "
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
                "a request must not be above its limit [SL-pod-resources-above-limit]"
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
    """What a pod has beside its command. Without a claim `mount` is an empty folder.

    Attributes:
        component: decides which network policies apply; all but `volume` may reach MLflow.
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
        """Path of a comparison, or of COMPARISON/RUN, in the pod."""
        return f"{self.mount.rstrip('/')}/{name}"


def build_pod(
    command: Sequence[str], request: PodRequest, resources: PodResources | None = None
) -> dict[str, Any]:
    """The pod as the API server gets it. It has no token and nothing of the namespace but the claim."""
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
                        *({"name": v["name"], "mountPath": CERTIFICATES, "readOnly": True} for v in trusted),
                    ],
                }
            ],
            "volumes": [{"name": "results", **claim}, {"name": "tmp", "emptyDir": {}}, *trusted],
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
