"""What the API server refuses in a pod template although the schema allows it, and what nobody refuses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")


def pod_problems(template: dict[str, Any]) -> list[str]:
    """One sentence per broken rule in a pod template{metadata, spec} of the right structure."""
    spec = template["spec"]
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    volumes = [volume["name"] for volume in spec.get("volumes", [])]
    problems = label_problems(template.get("metadata", {}).get("labels", {}))
    problems += [f"container {name} is there twice" for name in _repeated(c["name"] for c in containers)]
    problems += [f"volume {name} is there twice" for name in _repeated(volumes)]
    problems += [
        f"volume {v['name']} has {len(v) - 1} sources" for v in spec.get("volumes", []) if len(v) != 2
    ]
    for container in containers:
        problems += [f"{container['name']}: {text}" for text in _container_problems(container, volumes)]
    used = {mount["name"] for container in containers for mount in container.get("volumeMounts", [])}
    return problems + [f"volume {name} is not mounted" for name in sorted(set(volumes) - used)]


def _container_problems(container: dict[str, Any], volumes: list[str]) -> list[str]:
    problems = []
    if not LABEL.fullmatch(container["name"]) or len(container["name"]) > 63:
        problems.append("name is no DNS label")
    if not container.get("image"):
        problems.append("no image")
    if container.get("imagePullPolicy", "Always") not in PULL_POLICIES:
        problems.append(
            f"imagePullPolicy {container['imagePullPolicy']} is none of {', '.join(PULL_POLICIES)}"
        )
    mounts = container.get("volumeMounts", [])
    problems += [f"volumeMount {m['name']} has no volume" for m in mounts if m["name"] not in volumes]
    problems += [f"mountPath {path} is there twice" for path in _repeated(m["mountPath"] for m in mounts)]
    problems += [f"mountPath {m['mountPath']} has a colon" for m in mounts if ":" in m["mountPath"]]
    problems += [
        f"env {name} is there twice" for name in _repeated(e["name"] for e in container.get("env", []))
    ]
    return problems


def label_problems(labels: dict[str, str]) -> list[str]:
    return [
        f"label {name}={value!r}: at most 63 characters of A-Z, a-z, 0-9, -, _ and ."
        for name, value in labels.items()
        if len(value) > 63 or not LABEL_VALUE.fullmatch(value)
    ]


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
