"""reports/memory.json: what was expected, what was counted, and by how much they differ."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.memory.expected import ORIGIN, Expected

TOLERANCE_PCT = 1.0
LAST_DIGIT = 0.0051
"""GiB. Expected figures have two digits after the point: a small one cannot be met more closely."""


class Report:
    """The file, written anew after every count.

    Args:
        code: of describe_code; counts of other code are dropped.
    """

    def __init__(self, path: Path, code: dict[str, str]) -> None:
        self._path, self._code = path, code
        before = json.loads(path.read_text()) if path.exists() else {}
        same = before.get("code") == code
        self._rows: dict[str, dict[str, Any]] = before["configurations"] if same else {}

    def has(self, one: Expected) -> bool:
        """Whether it is counted already, for the same settings."""
        row = self._rows.get(one.name)
        return row is not None and "failed" not in row and row["settings"] == one.settings

    def add(self, one: Expected, found: dict[str, Any]) -> str:
        """Keeps a count; gives a line about it."""
        row: dict[str, Any] = {"settings": one.settings, "ranks": one.ranks, "rank": one.rank}
        row |= {"claims": one.claims} if one.claims else {}
        row |= {"figures": compare(one, found["gib"])} if "gib" in found else {}
        self._rows[one.name] = row | found
        self._write()
        if "failed" in found:
            return f"{one.name}: failed: {found['failed'].splitlines()[-1]}"
        texts = [f"{name} {f['counted']:.2f} ({f['expected']:.2f})" for name, f in row["figures"].items()]
        return f"{one.name}: {', '.join(texts)}, {found['cpu_s']} s of CPU"

    def judge(self, chosen: list[Expected]) -> int:
        """Prints what is out of tolerance; 0 if nothing is."""
        self._write()  # also where nothing had to be counted: the commit is today's
        bad = []
        for one in chosen:
            row = self._rows[one.name]
            figures = row.get("figures", {})
            bad += [f"{one.name}: failed"] if "failed" in row else []
            bad += [
                f"{one.name}: {name} {f['counted']:.3f} GiB, expected {f['expected']:.3f} ({f['difference_pct']} %)"
                for name, f in figures.items()
                if not f["inside"]
            ]
        print("\n".join(bad) or f"{len(chosen)} configurations within {TOLERANCE_PCT:g} %")
        return 1 if bad else 0

    def _write(self) -> None:
        head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        content = {
            "schema_version": 1,
            "what": "peak memory of one rank in its second step, counted on fake tensors; no device took part",
            "expected_from": ORIGIN,
            "tolerance_pct": TOLERANCE_PCT,
            "commit": head,
            "date": date.today().isoformat(),
            "code": self._code,
            "configurations": self._rows,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        os.replace(temporary, self._path)


def compare(one: Expected, gib: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Each expected figure with the counted one."""
    rows = {}
    for name, expected in one.figures.items():
        difference = gib[name] - expected
        rows[name] = {
            "expected": expected,
            "counted": gib[name],
            "difference_pct": round(100 * difference / expected, 2) if expected else None,
            "inside": abs(difference) <= max(expected * TOLERANCE_PCT / 100, LAST_DIGIT),
        }
    return rows
