"""A pod as one row: what it does, and if it does not run, why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Names for a normal start, no reason to worry anyone.
NORMAL = ("ContainerCreating", "PodInitializing", "Completed")


@dataclass(frozen=True)
class PodRow:
    """`note` is a reason, "" as long as all is well; `restarts` counts containers started anew in this pod."""

    name: str
    phase: str
    ready: str
    restarts: int
    node: str
    note: str

    def __str__(self) -> str:
        parts = [f"pod {self.name}: {self.phase}"]
        parts += [f"on {self.node}"] if self.node else []
        parts += [f"{self.restarts} restarts"] if self.restarts else []
        return ", ".join(parts) + (f": {self.note}" if self.note else "")


def build_row(pod: Mapping[str, Any]) -> PodRow:
    """From a Pod as the API server gives it."""
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    phase = "Terminating" if pod["metadata"].get("deletionTimestamp") else str(status.get("phase", "Pending"))
    return PodRow(
        name=str(pod["metadata"]["name"]),
        phase=phase,
        ready=f"{sum(bool(each.get('ready')) for each in containers)}/{len(pod['spec']['containers'])}",
        restarts=sum(int(each.get("restartCount", 0)) for each in containers),
        node=str(pod["spec"].get("nodeName", "")),
        note=_note(status),
    )


def _note(status: Mapping[str, Any]) -> str:
    """The first of: what the kubelet or scheduler says about the pod, its init containers, its containers."""
    if status.get("reason"):
        return _join(status["reason"], status.get("message"))
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return _join(condition.get("reason"), condition.get("message"))
    for each in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        state = each.get("state") or {}
        waiting, terminated = state.get("waiting") or {}, state.get("terminated") or {}
        last = (each.get("lastState") or {}).get("terminated") or {}
        if waiting.get("reason") and waiting["reason"] not in NORMAL:
            why = _join(waiting["reason"], waiting.get("message"))
            return why + (f" (before: {_describe_end(last)})" if last else "")
        if terminated and terminated.get("exitCode"):
            return _describe_end(terminated)
        if last.get("reason") == "OOMKilled":
            return f"before: {_describe_end(last)}"
    return ""


def _describe_end(terminated: Mapping[str, Any]) -> str:
    return f"{terminated.get('reason', 'Error')}, exit code {terminated.get('exitCode')}"


def _join(reason: Any, message: Any) -> str:
    return f"{reason}: {message}" if message else str(reason)
