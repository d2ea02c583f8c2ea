"""`examples/tuned.yaml` by the rehearsal way: tuned, run, compared; a second start repeats nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.documents.commands import ROOT

STRATLAB = Path(sys.executable).with_name("stratlab")


def sweep(folder: Path) -> None:
    command = [STRATLAB, "sweep", "examples/tuned.yaml", "--rehearse", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_best_of_each_is_compared_and_the_report_says_how(tmp_path: Path) -> None:
    sweep(tmp_path)
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["fairness"]["verdict"] == "comparable" and report["fairness"]["same"]["tuning"] == "tuned"
    assert [len(search["tried"]) for search in report["tuning"]["searches"]] == [3, 3]
    tried = [each for search in report["tuning"]["searches"] for each in search["tried"]]
    assert all(len(each["values"]) == 2 for each in tried)
    assert len(report["runs"]) == 4, "the candidates are a comparison of their own"
    assert len(list((tmp_path / "runs" / "digits-tuned-tuning").glob("*/summary.json"))) == 12
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/summary.json")}
    sweep(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/summary.json")} == before
