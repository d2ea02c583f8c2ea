"""The analysis by an Indexed Job of two shares: what one process says, to the last digit, also where pods are lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import MOUNT, Lab, wait_until
from tests.cluster.path import Run, check_comparison, install

pytestmark = pytest.mark.cluster

SHARED = Run("ddp", "shared", values={"run.config.comparison": "shares", "run.analysis.shares": 2})
FOLDER = f"{MOUNT}/{SHARED.folder}"
COMPONENT = f"app.kubernetes.io/instance={SHARED.name},app.kubernetes.io/component=analysis"
READ = """
import hashlib, json, pathlib, sys
run = pathlib.Path(sys.argv[1])
report = json.loads((run / "analysis" / "report.json").read_text())
for row in report["hta"]:
    row["seconds"] = None
files = [path for path in (run / "analysis").rglob("*") if path.suffix in (".csv", ".gz")]
files = [path for path in files if path.name != "hta_status.csv"]
sums = {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
left = sorted(str(path.relative_to(run)) for path in run.glob(".analysis*/**/*") if path.is_file())
print(json.dumps({"report": report, "sums": sums, "left": left}))
"""


def read_analysis(lab: Lab) -> dict[str, Any]:
    """report.json, sums of tables and merged trace, without the seconds of HTA, and what is left of the shares."""
    return dict(json.loads(lab.on_volume("python", "-c", READ, FOLDER)))


def upgrade(lab: Lab, **analysis: Any) -> None:
    """Another analysis of the run, which has ended."""
    values = SHARED.values | {f"run.analysis.{name}": value for name, value in analysis.items()}
    lab.helm("upgrade", SHARED.name, SHARED.chart, values)


def wait_for_analysis(lab: Lab, shares: int) -> dict[str, Any]:
    """Its only Job, Complete."""
    lab.watch(SHARED.name)
    (job,) = lab.get("jobs", "-l", COMPONENT)["items"]
    assert job["status"].get("succeeded") == shares, job["status"]
    return dict(job)


def lose_a_share(lab: Lab) -> None:
    """Kills a pod whose traces are being read."""

    def find() -> str:
        pods = [
            pod for pod in lab.get("pods", "-l", COMPONENT)["items"] if pod["status"]["phase"] == "Running"
        ]
        return str(pods[0]["metadata"]["name"]) if pods else ""

    pod = wait_until(find, "a share's pod runs", timeout_s=180, poll_s=0.2)
    lab.kubectl("delete", "pod", pod, "--grace-period=1", "--wait=false")


def test_two_shares_say_what_one_process_says(lab: Lab, tmp_path: Path) -> None:
    install(lab, SHARED)
    job = wait_for_analysis(lab, 2)
    assert job["spec"]["completionMode"] == "Indexed" and job["status"]["completedIndexes"] == "0,1"
    shared = read_analysis(lab)
    check_left(shared, job)
    lab.test(SHARED.name)
    upgrade(lab, shares=1)
    wait_for_analysis(lab, 1)
    alone = read_analysis(lab)
    assert alone["report"] == shared["report"] and alone["sums"] == shared["sums"]
    upgrade(lab, ttlSecondsAfterFinished=3600)
    lose_a_share(lab)
    job = wait_for_analysis(lab, 2)
    assert job["status"]["failed"] == 1, job["status"]
    disturbed = read_analysis(lab)
    assert disturbed["report"] == alone["report"] and disturbed["sums"] == alone["sums"]
    check_left(disturbed, job)
    check_comparison(lab, "shares", [SHARED.name], tmp_path / "report")
    lab.uninstall(SHARED.name)


def check_left(found: dict[str, Any], job: dict[str, Any]) -> None:
    """Of the shares' own files only what the next merger asks for."""
    place = f".analysis-shares/job-{job['metadata']['uid']}/merger"
    assert found["left"] == [f"{place}/done", f"{place}/share"]
