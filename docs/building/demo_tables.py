"""The demo's numbers in README.md and docs/start.md, from its kept runs (docs/pictures/demo.tar.xz)."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "docs/pictures/demo.tar.xz"
MIB_PER_GIB = 1024


def write_readme(text: str) -> str:
    """README.md with a line for each run, the fastest first."""
    runs = sorted(read_demo().items(), key=lambda run: -run[1]["samples_per_s"])
    rows = [
        f"| {name:5} | {run['samples_per_s']:,.0f} | {run['state_mib']:.2f} MiB | {run['test_accuracy_pct']:.2f} % |"
        for name, run in runs
    ]
    return _put(text, "| strategy | samples/s |", rows)


def write_start(text: str) -> str:
    """docs/start.md with a line for each run, by name."""
    rows = [
        f"| {name} | {run['samples_per_s']:,.1f} | {run['step_time_ms_p50']:.2f} | {run['state_mib']:.3f} | "
        f"{run['comm_exposed_pct']:.1f} | {run['test_accuracy_pct']:.2f} |"
        for name, run in read_demo().items()
    ]
    return _put(text, "| run | samples/s |", rows)


def read_demo() -> dict[str, dict[str, Any]]:
    """Run -> the numbers of its tables."""
    found = {}
    with tarfile.open(DEMO) as archive:
        for name in sorted(archive.getnames()):
            if name.endswith("/summary.json"):
                file = archive.extractfile(name)
                assert file is not None
                summary = json.load(file)
                state_mib = summary["state_memory_gib"] * MIB_PER_GIB
                found[name.split("/")[1]] = summary | {"state_mib": state_mib}
    return found


def _put(text: str, head: str, rows: Sequence[str]) -> str:
    """The text with `rows` below a table's head, up to the next empty line."""
    lines = text.split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith(head)) + 2
    last = lines.index("", first)
    return "\n".join([*lines[:first], *rows, *lines[last:]])


PAGES = {"README.md": write_readme, "docs/start.md": write_start}


def main() -> None:
    """Writes both."""
    for name, write in PAGES.items():
        (ROOT / name).write_text(write((ROOT / name).read_text()))


if __name__ == "__main__":
    main()
