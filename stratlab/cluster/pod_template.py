"""The pod that stratlab starts itself: what it may do, which is little, and what it mounts.

What the pods that stratlab starts may use: small amounts of its own, in whose place a user gives others.

Both cpu and memory have a request and a limit: a quota on either refuses a pod without.

How a Job ended, and what became of an analysis, which is two Jobs: the one that waits starts the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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
        found = ENTRY.fullmatch(entry.strip())
        if not found:
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


COMPONENT = "app.kubernetes.io/component"
ANALYSIS, WAITER = "analysis", "waiter"


def read_job_end(job: Mapping[str, Any]) -> str | None:
    """ "" = complete, text = why it failed, None = not ended."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition["status"] == "True" and condition["type"] == "Complete":
            return ""
        if condition["status"] == "True" and condition["type"] == "Failed":
            return (
                f"{condition.get('reason', '')} {condition.get('message', '')}".strip() or "no reason given"
            )
    return None


def pick_jobs(jobs: Iterable[Mapping[str, Any]], component: str) -> list[Mapping[str, Any]]:
    """Those of a component, the newest last."""
    found = [job for job in jobs if (job["metadata"].get("labels") or {}).get(COMPONENT) == component]
    return sorted(found, key=lambda job: str(job["metadata"].get("creationTimestamp") or ""))


def find_failed_waiter(
    analysis: Mapping[str, Any], jobs: Iterable[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """The Job that should have started `analysis` and has failed: nothing will. None as long as something may."""
    waiters = pick_jobs(jobs, WAITER)[-1:]
    if not (analysis.get("spec") or {}).get("suspend") or read_job_end(analysis) is not None:
        return None
    return next((waiter for waiter in waiters if read_job_end(waiter)), None)
