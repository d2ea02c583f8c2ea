"""Names of runs as a page shows them: a sweep puts the comparison's name before each, which tells none from another."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stratlab.run_directory.record import RunRecord

SHORT = "Names of runs are shown without {}, which begins all of them"
PLACES = ("run_dir", "folder")
"""Keys of the report that hold paths."""
LEAST = 8
"""Letters to be taken off: what little is gained else does not pay for names that are not those of the runs."""


def shorten_names(
    report: Mapping[str, Any], runs: Sequence[RunRecord]
) -> tuple[Mapping[str, Any], Sequence[RunRecord], str]:
    """(the report, its runs, what was taken off): as they are, and "", unless every name begins with the comparison's,
    which has LEAST letters or more.

    Names are shortened wherever they stand by themselves, as keys, as values and in sentences; not in paths (PLACES
    among them) and links.
    """
    names = [row["run"] for row in report["runs"]]
    prefix = _find_prefix(str(report["comparison"]), names)
    if not prefix:
        return report, runs, ""
    short = {name: name.removeprefix(prefix) for name in names}
    words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w/.=-])(?:{words})(?![\w/-])")

    def change(node: Any) -> Any:
        if isinstance(node, str):
            return pattern.sub(lambda found: short[found[0]], node)
        if isinstance(node, Mapping):
            return {change(key): each if key in PLACES else change(each) for key, each in node.items()}
        return [change(each) for each in node] if isinstance(node, list | tuple) else node

    shown = {name: node if name == "comparison" else change(node) for name, node in report.items()}
    return shown, [replace(run, name=short.get(run.name, run.name)) for run in runs], prefix


def _find_prefix(comparison: str, names: Sequence[str]) -> str:
    """The comparison's name as it begins all of them: its own, or as a sweep writes it into names."""
    slug = re.sub(r"[^a-z0-9]+", "-", comparison.lower()).strip("-")
    for begin in dict.fromkeys((comparison, slug, f"s-{slug}")):
        prefix = f"{begin}-"
        if len(prefix) >= LEAST and all(name.startswith(prefix) and name != prefix for name in names):
            return prefix if len(names) > 1 else ""
    return ""
