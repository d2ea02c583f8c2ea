"""reports/memory.json: what was counted, what was expected, by whom, and by how much they differ."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.memory.arithmetic import TOLERANCE_PCT as ARITHMETIC_PCT
from benchmarks.memory.arithmetic import reckon
from benchmarks.memory.configurations import BEFORE, Configuration

RECORD = Path(__file__).with_name("expected.json")
RECORD_PCT = 1.0
LAST_DIGIT = 0.0051
"""GiB: a small figure cannot be met more closely."""


class Report:
    """The file, written anew after every count.

    Args:
        code: of describe_code; counts of other code are dropped.
        record: the figures of `--record`: {"gib": {name: {cause: GiB}}, ...}.
    """

    def __init__(self, path: Path, code: dict[str, str], record: dict[str, Any]) -> None:
        self._path, self._code, self._record = path, code, record
        before = json.loads(path.read_text()) if path.exists() else {}
        same = before.get("code") == code
        self._rows: dict[str, dict[str, Any]] = before["configurations"] if same else {}

    def has(self, one: Configuration) -> bool:
        """Whether it is counted already, for the same settings."""
        row = self._rows.get(one.name)
        return row is not None and "failed" not in row and row["settings"] == one.settings

    def add(self, one: Configuration, found: dict[str, Any]) -> str:
        """Keeps a count; gives a line about it."""
        row = {"settings": one.settings, "ranks": one.ranks, "rank": one.rank, "before_gib": one.before_gib}
        self._rows[one.name] = row | found
        self._write()
        if "failed" in found:
            return f"{one.name}: failed: {found['failed'].splitlines()[-1]}"
        before = f", {one.before_gib:.2f} before" if one.before_gib else ""
        return f"{one.name}: peak {found['gib']['peak']:.2f} GiB{before}; {found['cpu_s']} s of CPU"

    def judge(self, chosen: Sequence[Configuration]) -> int:
        """Compares, and prints what is out of tolerance; 0 if nothing is."""
        for one in chosen:
            self._rows[one.name] |= self._compare(one)
        self._write()  # also where nothing had to be counted: the commit is today's
        bad = [line for one in chosen for line in self._complaints(one)]
        print("\n".join(bad) or f"{len(chosen)} configurations as expected")
        return 1 if bad else 0

    def recorded(self) -> dict[str, Any]:
        """What `--record` writes."""
        gib = {name: row["gib"] for name, row in sorted(self._rows.items()) if "gib" in row}
        return {"commit": _read_commit(), "code": self._code, "gib": gib}

    def _compare(self, one: Configuration) -> dict[str, Any]:
        row = self._rows[one.name]
        if "failed" in row:
            return {}
        expected = self._record["gib"].get(one.name, {})
        found = {"figures": compare(expected, row["gib"])}
        if one.at_most_gib:
            found["at_most_gib"] = one.at_most_gib
        if one.alone and "gib" in self._rows.get(one.alone, {}):
            reckoned = reckon(one, self._rows[one.alone]["gib"])
            found["arithmetic"] = _differ(reckoned, row["gib"]["peak"], ARITHMETIC_PCT)
        return found

    def _complaints(self, one: Configuration) -> Iterator[str]:
        row = self._rows[one.name]
        if "failed" in row:
            yield f"{one.name}: failed"
            return
        if not row["figures"]:
            yield f"{one.name}: nothing is recorded in {RECORD.name}; if its figures are right: --record"
        against = {**{f"{name}, recorded": f for name, f in row["figures"].items()}}
        against |= {"peak, by arithmetic": row["arithmetic"]} if "arithmetic" in row else {}
        for name, figure in against.items():
            if not figure["inside"]:
                yield (
                    f"{one.name}: {name}: {figure['counted']:.3f} GiB counted, {figure['expected']:.3f} expected "
                    f"({figure['difference_pct']} %)"
                )
        if one.at_most_gib and row["gib"]["peak"] > one.at_most_gib:
            yield f"{one.name}: peak {row['gib']['peak']:.2f} GiB, at most {one.at_most_gib:g} promised"
        if one.alone and "arithmetic" not in row:
            yield f"{one.name}: {one.alone!r} is not counted, of which the arithmetic takes its activations"

    def _write(self) -> None:
        content = {
            "schema_version": 2,
            "what": "peak memory of one rank in its second step, counted on fake tensors; no device took part",
            "before": BEFORE,
            "recorded_at": self._record.get("commit", ""),
            "tolerance_pct": {"recorded": RECORD_PCT, "arithmetic": ARITHMETIC_PCT},
            "commit": _read_commit(),
            "date": date.today().isoformat(),
            "code": self._code,
            "configurations": self._rows,
        }
        write_json(self._path, content)


def compare(expected: dict[str, float], gib: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Each recorded figure with the counted one."""
    return {name: _differ(figure, gib[name], RECORD_PCT) for name, figure in expected.items()}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(temporary, path)


def _differ(expected: float, counted: float, tolerance_pct: float) -> dict[str, Any]:
    difference = counted - expected
    return {
        "expected": round(expected, 4),
        "counted": counted,
        "difference_pct": round(100 * difference / expected, 2) if expected else None,
        "inside": abs(difference) <= max(expected * tolerance_pct / 100, LAST_DIGIT),
    }


def _read_commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
