"""Of a planned release, and of what a sweep tells; used by several tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratlab.cluster.workloads import APIS, Workload
from stratlab.sweep.planned_release import Planned, Release


def plan(
    name: str, *, has_analysis: bool = True, values: Mapping[str, Any] | None = None, **notes: str
) -> Planned:
    """A release of ddp; `notes`: annotations stratlab/... of its workload, `_` for `-`."""
    annotations = {f"stratlab/{key.replace('_', '-')}": value for key, value in notes.items()}
    workload = Workload(APIS["pytorchjob"], {"metadata": {"name": name, "annotations": annotations}})
    release = Release(name, "ddp", {"strategy": "ddp"}, 1, {})
    return Planned(release, Path("charts/ddp"), values or {}, f"asked {name}", workload, has_analysis)


class Heard:
    """A display; `lines` is what it said, `last` how each release ended."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.last: dict[str, str] = {}

    def say(self, text: str) -> None:
        self.lines.append(text)

    def pass_by(self, text: str) -> None:
        pass

    def show(self, name: str, text: str) -> None:
        pass

    def end(self, name: str, text: str) -> None:
        self.last[name] = text
