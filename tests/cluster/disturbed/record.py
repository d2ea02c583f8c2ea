"""The rows of the table, written after each strategy: reports/raw/cluster-faults.json, which `make nightly` keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.disturbed.deeds import DEEDS
from tests.cluster.disturbed.runs import STRATEGIES
from tests.cluster.lab import ROOT
from tests.faults.outcome import write_table

FOUND = ROOT / "reports" / "raw" / "cluster-faults.json"
TABLE = ROOT / "reports" / "cluster-faults.md"
EXPECTED = len(STRATEGIES) * (len(DEEDS) + 1)


class Record:
    """Rows and facts of one session."""

    def __init__(self, found: Path = FOUND, table: Path = TABLE, expected: int = EXPECTED) -> None:
        self._found = found
        self._table = table
        self._expected = expected
        self.rows: list[dict[str, Any]] = []
        self.runs: list[dict[str, Any]] = []

    def add(self, rows: list[dict[str, Any]], run: dict[str, Any]) -> None:
        """Rows of a strategy, and what is known of its run; the table is that of all of them."""
        self.rows += rows
        self.runs.append(run)
        self._found.parent.mkdir(parents=True, exist_ok=True)
        new = self._found.with_suffix(".new")
        new.write_text(json.dumps({"faults": self.rows, "runs": self.runs}, indent=1) + "\n")
        new.replace(self._found)
        print(f"\n{write_table(rows)}", flush=True)
        if len(self.rows) == self._expected:
            self._table.write_text(write_table(self.rows))
