"""Of a planned release, and of what a sweep tells; used by several tests."""

from pathlib import Path

from stratlab.cluster.workloads import APIS, Workload
from stratlab.sweep.planned_release import Planned, Release


def plan(name, *, has_analysis=True, values=None, **notes):
    """A release of ddp; `notes`: annotations stratlab/... of its workload, `_` for `-`."""
    annotations = {f"stratlab/{key.replace('_', '-')}": value for key, value in notes.items()}
    workload = Workload(APIS["pytorchjob"], {"metadata": {"name": name, "annotations": annotations}})
    release = Release(name, "ddp", {"strategy": "ddp"}, 1, {})
    return Planned(release, Path("charts/ddp"), values or {}, f"asked {name}", workload, has_analysis)


class Heard:
    """A display; `lines` is what it said, `last` how each release ended."""

    def __init__(self):
        self.lines = []
        self.last = {}

    def say(self, text):
        self.lines.append(text)

    def pass_by(self, text):
        pass

    def show(self, name, text):
        pass

    def end(self, name, text):
        self.last[name] = text
