"""Paths on the results volume: a run that names one finds it below a folder of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stratlab.rendering.pod_commands import Command, Pod


def find_mount(objects: Sequence[Mapping[str, Any]]) -> str:
    """Where the rendered `objects` have their results volume, "" where none says."""
    for entry in objects:
        for replica in (entry.get("spec") or {}).get("pytorchReplicaSpecs", {}).values():
            for container in replica["template"]["spec"]["containers"]:
                for variable in container.get("env", []):
                    if variable["name"] == "TRAINER_RESULTS":
                        return str(variable.get("value", "")).rstrip("/")
    return ""


def place_on_volume(pod: Pod, mount: str, results: Path) -> Pod:
    """The pod, whose variables name what lies below `mount` on a cluster (a prepared data set or model, TORCH_HOME)
    below `results` instead."""
    if mount in ("", str(results)):
        return pod
    return replace(pod, commands=tuple(_place(command, mount, results) for command in pod.commands))


def _place(command: Command, mount: str, results: Path) -> Command:
    env = {name: place_value(value, mount, results) for name, value in command.env.items()}
    return replace(command, env=env)


def place_value(value: str, mount: str, results: Path) -> str:
    """`value`, below `results` if it names what lies below `mount`."""
    there = value.startswith(f"{mount}/") and not Path(value).is_relative_to(results)
    return str(results) + value.removeprefix(mount) if there else value
