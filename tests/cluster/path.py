"""The path of a run on a cluster, step by step: installed, watched to its end, in MLflow, compared, uninstalled."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.lab import HELM, KUBECTL, MOUNT, Lab, run, wait_until

DIGITS = ("digits.yaml", "cpu.yaml")
PIPELINE: dict[str, Any] = {
    "run.nodes": 2, "run.processesPerNode": 2, "run.config.model": "qwen_tiny", "run.config.seq_len": 64,
    "run.config.micro_batch_size": 2, "run.config.train_samples": 256,
}  # fmt: skip
"""Of a language model in two stages, each on two devices: the smallest run with two axes."""
QUERY = """
import json, sys, urllib.request as u
def get(path, body=None):
    data = json.dumps(body).encode() if body else None
    request = u.Request("http://mlflow:5000/" + path, data, {"Content-Type": "application/json"})
    return json.load(u.urlopen(request, timeout=30))
by_name = "api/2.0/mlflow/experiments/get-by-name?experiment_name="
experiment = get(by_name + sys.argv[1])["experiment"]["experiment_id"]
runs = get("api/2.0/mlflow/runs/search", {"experiment_ids": [experiment]})["runs"]
found = {}
for run in runs:
    uuid = run["info"]["run_id"]
    points = get(f"api/2.0/mlflow/metrics/get-history?run_id={uuid}&metric_key=loss&max_results=25000")["metrics"]
    files = get(f"api/2.0/mlflow/artifacts/list?run_id={uuid}").get("files", [])
    found[run["info"]["run_name"]] = {
        "status": run["info"]["status"], "steps": sorted(p["step"] for p in points),
        "files": [f["path"] for f in files], "metrics": [m["key"] for m in run["data"].get("metrics", [])],
    }
print(json.dumps(found))
"""


def judge_digits(summary: dict[str, Any]) -> None:
    assert summary["test_accuracy_pct"] >= 95


@dataclass(frozen=True)
class Run:
    """One run on two pods.

    Attributes:
        chart: and the release's name, unless `release` is another.
        place: the kind of namespace: restricted or baseline.
        values, files: of helm install.
        helm: the program that installs it.
        resource, success: its custom resource, and the condition that ends it well.
        role: what the pods of its nodes are called behind the release's name.
        processes: of all pods together.
        steps: that it has to train at least.
        judge: looks at its summary.json.
    """

    chart: str
    release: str = ""
    place: str = "restricted"
    values: dict[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = DIGITS
    helm: Path = HELM
    resource: str = "pytorchjobs.v1.kubeflow.org"
    success: str = "Succeeded"
    role: str = "worker"
    processes: int = 2
    steps: int = 200
    judge: Callable[[dict[str, Any]], None] = judge_digits

    @property
    def name(self) -> str:
        return self.release or self.chart

    @property
    def folder(self) -> str:
        return f"{self.values.get('run.config.comparison', 'e2e')}/{self.name}"


def install(lab: Lab, each: Run) -> None:
    values = {"run.podSecurity.level": each.place, **each.values}
    printed = lab.install(each.name, each.chart, values, helm=each.helm, files=each.files)
    assert f"stratlab watch {each.name}" in printed


def check_success(lab: Lab, each: Run) -> None:
    """Succeeded, analysed, two pods' ledgers and a good summary are there."""
    lab.watch(each.name)
    assert lab.conditions(f"{each.resource}/{each.name}").get(each.success) == "True"
    ledgers = lab.on_volume("ls", f"{MOUNT}/{each.folder}/pods").split()  # MPI's worker pods are gone by now
    assert ledgers == [f"{each.name}-{each.role}-{index}.jsonl" for index in range(2)]
    analysis = f"app.kubernetes.io/instance={each.name},app.kubernetes.io/component=analysis"
    jobs = lab.get("jobs", "-l", analysis)["items"]
    assert [job["status"].get("succeeded") for job in jobs] == [1]
    summary = lab.read(f"{each.folder}/summary.json")
    assert (summary["world_size"], summary["nodes"]) == (each.processes, 2)
    each.judge(summary)


def read_store(lab: Lab, comparison: str) -> dict[str, Any]:
    """{run: its status, steps, files, metrics}, as MLflow tells it through its Service."""
    return dict(json.loads(lab.on_volume("python", "-c", QUERY, comparison, component="test")))


def check_mlflow(lab: Lab, runs: list[Run]) -> None:
    """MLflow holds every metric and report of the runs, and no other run."""
    for comparison in {each.folder.split("/")[0] for each in runs}:
        found = read_store(lab, comparison)
        expected = {each.name: each for each in runs if each.folder.startswith(f"{comparison}/")}
        assert sorted(found) == sorted(expected)
        for name, each in expected.items():
            lines = lab.read_lines(f"{each.folder}/metrics.jsonl")
            trained = sorted(line["step"] for line in lines if line["kind"] == "train")
            assert found[name]["status"] == "FINISHED"
            assert found[name]["steps"] == trained and len(trained) >= each.steps
            assert "report.html" in found[name]["files"]
            assert "detail/trace/step_ms" in found[name]["metrics"]


def check_comparison(lab: Lab, comparison: str, names: list[str], output: Path) -> None:
    """`stratlab compare --on-cluster`: a report of just these runs, which differ in nothing but who ran beside them."""
    lab.stratlab("compare", comparison, "--on-cluster", "--output", output)
    report = json.loads((output / "report.json").read_text())
    assert [row["run"] for row in report["runs"]] == names
    matters = {each["field"] for each in report["fairness"]["differences"] if each["matters"]}
    assert matters <= {"runs beside it"}  # they were installed at once
    assert (output / "report.html").stat().st_size > 10_000


def check_uninstall(lab: Lab, each: Run) -> None:
    lab.uninstall(each.name)
    kinds = run([KUBECTL, "api-resources", "--namespaced", "--verbs=list", "-o", "name"]).stdout.split()
    kinds = [kind for kind in kinds if not kind.startswith("events")]

    def left() -> list[str]:
        names = lab.kubectl("get", ",".join(kinds), "-o", "name", check=False).split()
        return [name for name in names if f"/{each.name}-" in f"{name}-" and "mlflow" not in name]

    wait_until(lambda: not left(), f"nothing of {each.name} is left, there is {left()}", timeout_s=60)
    assert "report.html" in lab.on_volume("ls", f"{MOUNT}/{each.folder}/analysis")


def walk_path(lab: Lab, runs: list[Run], output: Path) -> None:
    """Each run installed, analysed, tested; all of them in MLflow, compared, and uninstalled."""
    for each in runs:
        install(lab, each)
        check_success(lab, each)
    check_mlflow(lab, runs)
    for each in runs:
        lab.test(each.name)
    check_comparison(lab, runs[0].folder.partition("/")[0], sorted(each.name for each in runs), output)
    for each in runs:
        check_uninstall(lab, each)
