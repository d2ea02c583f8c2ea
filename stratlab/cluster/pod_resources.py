"""What the pods that stratlab starts may use: small amounts of its own, in whose place a user gives others.

Both cpu and memory have a request and a limit: a quota on either refuses a pod without.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

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
