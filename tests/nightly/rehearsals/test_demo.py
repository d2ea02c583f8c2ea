"""`make demo`, as the README says it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

STRATEGIES = ["ddp", "fsdp", "zero2"]


def test_the_demo_ends_with_its_answer(tmp_path: Path) -> None:
    done = subprocess.run(["make", "demo", f"DEMO={tmp_path}"], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert done.stdout.count("stratlab mlflow ") == 1 and "stratlab compare " not in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert [run["strategy"] for run in report["runs"]] == STRATEGIES
    assert report["fairness"]["verdict"] == "comparable"
    assert all(run["test_accuracy_pct"] >= 95.0 for run in report["runs"])
    assert (tmp_path / "report.html").exists()
