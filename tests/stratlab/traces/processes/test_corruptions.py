"""Whatever one file of a trace set holds: a report that names it and leaves the other ranks alone, or NoTraces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stratlab.traces.chunks import LIMITS
from tests.stratlab.traces.changes import VICTIM, Case
from tests.stratlab.traces.corruptions import MEMORY_BYTES, build_cases

ROOT = Path(__file__).resolve().parents[4]
# of a rank's numbers, those that another rank cannot change; waiting for others is theirs as well
OWN = (
    "steps",
    "step_ms",
    "host_step_ms",
    "compute_pct",
    "comm_pct",
    "copy_exposed_pct",
    "kernels_per_step",
    "forward_ms",
)
CASES = build_cases()
PARTS = 2


def _key(case: Case) -> str:
    return f"{case.base}: {case.name}"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """All cases, in one process of limited memory per core."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    running, found = [], {}
    for part in range(PARTS):
        folder = tmp_path_factory.mktemp("corruptions")
        command = [
            sys.executable,
            "-m",
            "tests.stratlab.traces.corruptions",
            str(folder),
            str(part),
            str(PARTS),
        ]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        running.append((folder, process))
    for folder, process in running:
        _, said = process.communicate(timeout=600)
        assert process.returncode == 0, said[-3000:]
        found |= json.loads((folder / "outcomes.json").read_text())
    return found


def test_there_are_enough_cases() -> None:
    assert len([case for case in CASES if case.expects == "named"]) >= 200


@pytest.mark.parametrize("case", CASES, ids=_key)
def test_corruption(case: Case, outcomes: dict[str, dict[str, Any]]) -> None:
    outcome, whole = outcomes[_key(case)], outcomes[f"{case.base}: unchanged"]
    assert not outcome["error"], outcome["error"]
    files = {case.also or None, f"rank{VICTIM}_trace.json{'.gz' if '-gz' in case.base else ''}"}
    if case.also == "manifest.json":
        files = {case.also}
    if outcome["said"]:  # no rank is left: every file is named
        assert case.limits is not LIMITS, "the other ranks are whole"
        assert all(f"rank{rank}_trace.json" in outcome["said"] for rank in range(3))
        return
    rows = outcome["rows"]
    for rank in {"0", "2"} - (set() if "swapped" not in case.name else {"2"}):
        if case.limits is LIMITS:
            assert {name: rows[rank][name] for name in OWN} == {
                name: whole["rows"][rank][name] for name in OWN
            }
    findings = [finding for finding in outcome["found"] if finding not in whole["found"]]
    named = [f for f in findings if f["file"] in files and (f["file"] or f["rank"] == VICTIM)]
    if case.expects == "named":
        assert named, findings
    if case.expects == "valid":
        assert not findings and rows == whole["rows"]
    for finding in named:
        assert finding["reason"] and finding["reason"].isprintable()


def test_memory_stays_far_below_the_limit(outcomes: dict[str, dict[str, Any]]) -> None:
    """The peak of the process beyond its start, after the last of all cases."""
    assert max(outcome["peak_mib"] for outcome in outcomes.values()) < MEMORY_BYTES / 2**21
