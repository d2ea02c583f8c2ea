"""docs/monitoring.md explains every status that a run or its resource can have."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from stratlab.cluster.workloads import CONDITIONS, NO_STATUS
from stratlab.run_directory.outcome import AT_WORK, Status

PAGE = Path("docs/monitoring.md")


def test_no_status_is_unexplained() -> None:
    text = PAGE.read_text().partition("## What a status means")[2].partition("\n## ")[0]
    told = {
        line.split("|")[1].strip().partition(" (")[0] for line in text.splitlines() if line.startswith("|")
    }
    of_runs = {*get_args(Status), AT_WORK} - {"not a run"}
    assert of_runs <= told, of_runs - told
    assert {NO_STATUS, *CONDITIONS.values()} <= told
