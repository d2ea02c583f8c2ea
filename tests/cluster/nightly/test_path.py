"""What a user does, from `kubectl apply -k` to the report: two pods, eight pods, an analysis in shares, a check."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import HELM3, MOUNT, Lab, wait_until
from tests.cluster.path import Run, check_comparison, install, walk_path

pytestmark = pytest.mark.cluster

MPI = {"run.workload.api": "mpijob-v1"}
RUNS = {
    "restricted": [Run("ddp"), Run("fsdp", helm=HELM3), Run("zero2")],
    "baseline": [Run("ddp", "ddp-mpi", "baseline", MPI, resource="mpijobs.v1.kubeflow.org")],
}


@pytest.mark.parametrize("place", RUNS)
def test_from_install_to_uninstall(labs: dict[str, Lab], place: str, tmp_path: Path) -> None:
    walk_path(labs[place], RUNS[place], tmp_path / "report")


PODS = 8
LAYOUTS = {
    "llm-1d": {"dp_replicate": 8}, "llm-2d": {"pp": 2, "dp_shard": 4},
    "llm-3d": {"pp": 2, "dp_shard": 2, "tp": 2}, "llm-4d": {"pp": 2, "dp_shard": 2, "tp": 2},
    "llm-5d": {"pp": 2, "dp_shard": 2, "tp": 2, "ep": 4},
}  # fmt: skip
VALUES = {
    "run.nodes": PODS,
    "run.processesPerNode": 1,
    "run.config.comparison": "llm",
    "run.config.model": "qwen_moe_tiny",  # one model for all five, so that they may be compared
}


def test_a_layout_runs_on_eight_pods(lab: Lab) -> None:
    for chart, wanted in LAYOUTS.items():
        lab.install(chart, chart, VALUES, files=("llm_tiny.yaml",))
        lab.watch(chart, timeout_s=900)
        assert len(lab.on_volume("ls", f"{MOUNT}/llm/{chart}/pods").split()) == PODS
        summary, report = lab.read(f"llm/{chart}/summary.json"), lab.read(f"llm/{chart}/analysis/report.json")
        axes = {name: summary[name] for name in ("pp", "dp_replicate", "dp_shard", "tp", "cp", "ep")}
        assert {name: size for name, size in axes.items() if size > 1} == wanted
        assert not summary["degenerate"] and summary["nodes"] == PODS
        assert report["merged"]["ranks"] == list(range(PODS)) and len(report["phases_present"]) == PODS
    lab.test("llm-5d")


def test_the_five_layouts_are_compared(lab: Lab, tmp_path: Path) -> None:
    lab.stratlab("compare", "llm", "--on-cluster", "--output", tmp_path / "report")
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    losses = {row["run"]: row["test_loss"] for row in report["runs"]}
    assert sorted(losses) == sorted(LAYOUTS) and report["fairness"]["verdict"] == "comparable"
    assert max(losses.values()) - min(losses.values()) < 1e-3, "the same model on the same data"
    for chart in LAYOUTS:
        lab.uninstall(chart)


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
    values = SHARED.values | {f"run.analysis.{name}": value for name, value in analysis.items()}
    lab.helm("upgrade", SHARED.name, SHARED.chart, values)


def wait_for_analysis(lab: Lab, shares: int) -> dict[str, Any]:
    lab.watch(SHARED.name)
    (job,) = lab.get("jobs", "-l", COMPONENT)["items"]
    assert job["status"].get("succeeded") == shares, job["status"]
    return dict(job)


def lose_a_share(lab: Lab) -> None:
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


CHECK = {
    "run.config.mode": "check",
    "run.config.collective_timeout_s": 120,
    "run.scheduling.waitSeconds": 300,
}


def test_two_healthy_pods_lack_nothing(lab: Lab) -> None:
    printed = lab.install("check", "ddp", CHECK)
    assert "stratlab watch check" in printed and "_environment/check.json" in printed
    assert "stratlab logs check" in lab.watch("check")
    kept = lab.read("_environment/check.json")
    assert {each["state"] for each in kept["findings"]} == {"ok"}, kept["findings"]
    assert sorted(kept["ranks"]) == ["0", "1"]
    assert not lab.get("jobs", "-l", "app.kubernetes.io/instance=check")["items"], "no analysis"
    folders = [f"{MOUNT}/{each}" for each in lab.on_volume("ls", MOUNT).split()]
    assert "check" not in lab.on_volume("ls", *folders).split(), "a check is no run"
    lab.uninstall("check")


def test_too_little_shared_memory_is_named(lab: Lab) -> None:
    lab.install("check-shm", "ddp", CHECK | {"run.sharedMemory.sizeLimit": "32Mi"})
    lab.watch("check-shm", code=1)
    findings = lab.read("_environment/check-shm.json")["findings"]
    wrong = [(each["subject"], each["seen"]) for each in findings if each["state"] != "ok"]
    assert [subject for subject, _ in wrong] == ["shared memory"] * 2, wrong
    for index, (_, seen) in enumerate(wrong):
        assert f"check-shm-worker-{index}" in seen and "/dev/shm" in seen
    lab.uninstall("check-shm")
