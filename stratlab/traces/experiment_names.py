"""Names of experiments, from the folders that they lie in: short, all different, fit for a folder."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stratlab.traces.archives import shorten

ODD = re.compile(r"[^\w.+=-]+")
LONGEST = 120  # bytes
TAKEN = {"report": "report-traces"}  # where `stratlab compare` puts its own

Folders = tuple[str, ...]


def name_experiments(paths: Sequence[Folders], whole: str) -> list[str]:
    """One name for each path, in order: its folders, joined, without those that all have in common at the beginning or
    the end. What two would share gets a number.

    Args:
        whole: the name of an experiment without a folder.
    """
    names: list[str] = []
    for path in _shorten(list(paths)):
        name = shorten(ODD.sub("_", "-".join(path) or whole).strip("._-"), LONGEST) or "traces"
        name = TAKEN.get(name.lower(), name)
        tried, number = name, 1
        while tried.lower() in {other.lower() for other in names}:  # some file systems know no case
            number += 1
            tried = f"{name}-{number}"
        names.append(tried)
    return names


def _shorten(paths: list[Folders]) -> list[Folders]:
    if len(paths) == 1:
        return [paths[0][-2:]]
    while all(len(path) > 1 for path in paths) and len({path[0] for path in paths}) == 1:
        paths = [path[1:] for path in paths]
    while all(len(path) > 1 for path in paths) and len({path[-1] for path in paths}) == 1:
        shorter = [path[:-1] for path in paths]
        if len(set(shorter)) < len(shorter):
            break
        paths = shorter
    return paths
