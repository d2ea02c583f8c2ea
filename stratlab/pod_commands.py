"""Turn a pod template into commands for this machine.

`build_pod` builds the commands. `place_on_volume` maps paths on the results volume to a folder of this machine.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stratlab import UserError

HERE = "127.0.0.1"
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")


@dataclass(frozen=True)
class Command:
    """Describe one container: its command, folder, and rendered and injected environment."""

    container: str
    arguments: tuple[str, ...]
    env: Mapping[str, str]
    folder: str | None


@dataclass(frozen=True)
class Pod:
    """Describe a pod: init containers and then the container, one after the other; `log` names its log file."""

    name: str
    log: str
    commands: tuple[Command, ...]
    claims: tuple[Path, ...]


def build_pod(
    name: str, log: str, spec: Mapping[str, Any], *, namespace: str, injected: Mapping[str, str] | None = None
) -> Pod:
    """Build a pod from the `spec` of a pod template.

    The operator appends `injected` to every container's environment, so that it overrides rendered variables.

    Raises:
        UserError: the template needs a feature that only a cluster has.
    """
    containers = spec["containers"]
    if len(containers) != 1:
        names = ", ".join(str(container["name"]) for container in containers)
        raise UserError(
            f"pod {name} has {len(containers)} containers ({names}): a rehearsal runs one [SL-pod-many-containers]"
        )
    claims = _check_volumes(name, spec)
    fields = {
        "metadata.name": name,
        "metadata.namespace": namespace,
        "status.podIP": HERE,
        "status.hostIP": HERE,
        "spec.nodeName": socket.gethostname(),
    }
    every = [*spec.get("initContainers", []), *containers]
    commands = tuple(_build_command(name, container, fields, injected or {}) for container in every)
    return Pod(name, log, commands, claims)


def _build_command(
    pod: str, container: Mapping[str, Any], fields: Mapping[str, str], injected: Mapping[str, str]
) -> Command:
    where = f"pod {pod}, container {container['name']}"
    if not container.get("command"):
        raise UserError(
            f"{where}: the chart renders no command, and the image's own is unknown here [SL-no-command]"
        )
    if container.get("envFrom"):
        raise UserError(f"{where}: a rehearsal does not support envFrom, use `env` [SL-env-from]")
    env: dict[str, str] = {}
    for entry in container.get("env", []):
        value = _resolve(where, entry, fields)
        if value is not None:
            env[entry["name"]] = expand(value, env)
    env |= injected
    arguments = [*container["command"], *container.get("args", [])]
    folder = container.get("workingDir")
    if folder and not Path(folder).is_dir():
        raise UserError(f"{where}: workingDir {folder} does not exist here [SL-working-dir]")
    arguments = [expand(str(part), env) for part in arguments]
    return Command(container["name"], tuple(arguments), {"HOSTNAME": pod, **env}, folder)


def _resolve(where: str, entry: Mapping[str, Any], fields: Mapping[str, str]) -> str | None:
    """Return the value of one `env` entry; None for an optional secret or config map, which never exists here."""
    source = entry.get("valueFrom")
    if not source:
        return str(entry.get("value", ""))
    kind, reference = next(iter(source.items()))
    if kind == "fieldRef" and reference["fieldPath"] in fields:
        return fields[reference["fieldPath"]]
    if kind in ("secretKeyRef", "configMapKeyRef") and reference.get("optional"):
        return None
    what = reference.get("fieldPath") or reference.get("resource") or reference.get("name")
    advice = ": rehearse without it, --set run.secrets=null" if kind == "secretKeyRef" else ""
    raise UserError(
        f"{where}: {entry['name']} comes from {kind} {what}, which only a cluster has{advice} [SL-value-of-cluster]"
    )


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace $(NAME) as Kubernetes does: an unknown name stays unchanged, $$ is one dollar sign."""

    def replace(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else env.get(found[1], found[0])

    return _REFERENCE.sub(replace, text)


def _check_volumes(pod: str, spec: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the folders that replace claims; a memory or scratch volume must exist at the same path here.

    A projected volume is left out: it carries the token of an API server, and a rehearsal has no API server.
    """
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    mounts = [mount for container in containers for mount in container.get("volumeMounts", [])]
    claims: dict[Path, None] = {}
    for volume in spec.get("volumes", []):
        kind = next((key for key in volume if key != "name"), "emptyDir")
        paths = [Path(mount["mountPath"]) for mount in mounts if mount["name"] == volume["name"]]
        if kind == "persistentVolumeClaim":
            claims |= dict.fromkeys(paths)
        elif kind == "emptyDir":
            for path in paths:
                if not path.is_dir():
                    raise UserError(
                        f"pod {pod}: volume {volume['name']} needs the folder {path}; create it [SL-scratch-absent]"
                    )
        elif kind != "projected":
            raise UserError(
                f"pod {pod}: volume {volume['name']} is a {kind}, "
                "a rehearsal supports persistentVolumeClaim, emptyDir and projected: "
                "leave the cluster's values file out, or --set run.pod.volumes=null [SL-volume-kind]"
            )
    return tuple(claims)


def find_mount(objects: Sequence[Mapping[str, Any]]) -> str:
    """Return the mount path of the results volume in the rendered `objects`, "" if they have no such volume."""
    for entry in objects:
        for replica in (entry.get("spec") or {}).get("pytorchReplicaSpecs", {}).values():
            for container in replica["template"]["spec"]["containers"]:
                for variable in container.get("env", []):
                    if variable["name"] == "TRAINER_RESULTS":
                        return str(variable.get("value", "")).rstrip("/")
    return ""


def place_on_volume(pod: Pod, mount: str, results: Path) -> Pod:
    """Return the pod with its variables' paths below `mount` on a cluster moved below `results`.

    This applies to a prepared data set or model, and TORCH_HOME.
    """
    if mount in ("", str(results)):
        return pod
    commands = []
    for command in pod.commands:
        env = {name: place_value(value, mount, results) for name, value in command.env.items()}
        commands.append(replace(command, env=env))
    return replace(pod, commands=tuple(commands))


def place_value(value: str, mount: str, results: Path) -> str:
    """Return `value`, moved below `results` if it is a path below `mount`."""
    there = value.startswith(f"{mount}/") and not Path(value).is_relative_to(results)
    return str(results) + value.removeprefix(mount) if there else value
