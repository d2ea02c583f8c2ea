"""What a user does, from `kubectl apply -k` to the report: four runs of two pods each, nothing started by hand."""

from __future__ import annotations

import json

import pytest

from tests.cluster.lab import HELM, HELM3, KUBECTL, MOUNT, ROOT, STRATLAB, Lab, run, wait_until
from tests.cluster.steps import Steps

pytestmark = pytest.mark.cluster

# release -> namespace, chart, values, the helm that installs it
RUNS = {
    "ddp": ("restricted", "ddp", {}, HELM),
    "fsdp": ("restricted", "fsdp", {}, HELM3),
    "zero2": ("restricted", "zero2", {}, HELM),
    "ddp-mpi": ("baseline", "ddp", {"run.workload.api": "mpijob-v1"}, HELM),
}
RESOURCES = {"ddp-mpi": "mpijobs.v1.kubeflow.org"}

QUERY = """
import json, urllib.request as u
def get(path, body=None):
    data = json.dumps(body).encode() if body else None
    request = u.Request("http://mlflow:5000/" + path, data, {"Content-Type": "application/json"})
    return json.load(u.urlopen(request, timeout=30))
experiment = get("api/2.0/mlflow/experiments/get-by-name?experiment_name=e2e")["experiment"]["experiment_id"]
runs = get("api/2.0/mlflow/runs/search", {"experiment_ids": [experiment]})["runs"]
found = {}
for run in runs:
    uuid = run["info"]["run_id"]
    points = get(f"api/2.0/mlflow/metrics/get-history?run_id={uuid}&metric_key=loss&max_results=25000")["metrics"]
    files = get(f"api/2.0/mlflow/artifacts/list?run_id={uuid}&path=analysis").get("files", [])
    found[run["info"]["run_name"]] = {
        "status": run["info"]["status"], "steps": sorted(p["step"] for p in points),
        "files": [f["path"] for f in files], "metrics": [m["key"] for m in run["data"].get("metrics", [])],
    }
print(json.dumps(found))
"""


@pytest.mark.parametrize("release", RUNS)
def test_a_run_succeeds_by_helm_install_alone(labs: dict[str, Lab], steps: Steps, release: str) -> None:
    place, chart, values, helm = RUNS[release]
    lab = labs[place]
    resource = RESOURCES.get(release, "pytorchjobs.v1.kubeflow.org")
    with steps.step(f"{release}: helm install, two pods, Succeeded, analysed") as notes:
        printed = lab.install(release, chart, values, helm=helm)
        assert f"stratlab watch {release}" in printed
        done = lab.watch(release)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        assert lab.conditions(f"{resource}/{release}").get("Succeeded") == "True"
        ledgers = lab.on_volume(
            "ls", f"{MOUNT}/e2e/{release}/pods"
        ).split()  # MPI's worker pods are gone by now
        assert ledgers == [f"{release}-worker-0.jsonl", f"{release}-worker-1.jsonl"]
        jobs = lab.get("jobs", "-l", f"app.kubernetes.io/instance={release}")["items"]
        assert [job["status"].get("succeeded") for job in jobs] == [1]
        summary = json.loads(lab.on_volume("cat", f"{MOUNT}/e2e/{release}/summary.json"))
        assert (summary["world_size"], summary["nodes"]) == (2, 2)
        assert summary["test_accuracy_pct"] >= 95
        notes.append(f"test accuracy {summary['test_accuracy_pct']:.2f} %")


@pytest.mark.parametrize("place", ["restricted", "baseline"])
def test_mlflow_holds_metrics_and_reports(labs: dict[str, Lab], steps: Steps, place: str) -> None:
    with steps.step(f"{place}: MLflow, asked through its Service, holds every metric and report"):
        found = json.loads(labs[place].on_volume("python", "-c", QUERY, component="test"))
        expected = [release for release, run in RUNS.items() if run[0] == place]
        assert sorted(found) == sorted(expected)
        for release in expected:
            lines = labs[place].read_lines(f"e2e/{release}/metrics.jsonl")
            trained = sorted(line["step"] for line in lines if line["kind"] == "train")
            assert found[release]["status"] == "FINISHED"
            assert found[release]["steps"] == trained and len(trained) >= 200
            assert "analysis/report.html" in found[release]["files"]
            assert "trace/step_ms" in found[release]["metrics"]


@pytest.mark.parametrize("release", RUNS)
def test_helm_test(labs: dict[str, Lab], steps: Steps, release: str) -> None:
    with steps.step(f"{release}: helm test"):
        labs[RUNS[release][0]].test(release)


def test_the_runs_are_compared_over_the_volume(lab: Lab, steps: Steps, tmp_path) -> None:
    with steps.step("stratlab compare --on-cluster") as notes:
        output = tmp_path / "report"
        done = run([STRATLAB, "compare", "e2e", "--on-cluster", "-n", lab.namespace, "--output", output])
        report = json.loads((output / "report.json").read_text())
        assert [r["run"] for r in report["runs"]] == ["ddp", "fsdp", "zero2"]
        assert "comparable" in done.stdout
        assert (output / "report.html").stat().st_size > 10_000
        notes.append(done.stdout.strip().splitlines()[-1])


def test_a_person_needs_only_the_user_role(lab: Lab, steps: Steps) -> None:
    with steps.step("the Role stratlab-user is enough to install, and for nothing else"):
        account = f"system:serviceaccount:{lab.namespace}:ada"
        lab.kubectl("create", "serviceaccount", "ada")
        lab.kubectl(
            "create", "rolebinding", "ada", "--role=stratlab-user", f"--serviceaccount={lab.namespace}:ada"
        )
        command = [
            HELM,
            "-n",
            lab.namespace,
            "--kube-as-user",
            account,
            "install",
            "by-ada",
            ROOT / "charts" / "single",
        ]
        run(
            [
                *command,
                "--set",
                "run.accelerator=",
                "--set",
                "run.suspend=true",
                "--set",
                "run.analysis.enabled=false",
            ]
        )
        run([HELM, "-n", lab.namespace, "--kube-as-user", account, "uninstall", "by-ada"])
        for refused in (
            ["create", "deployments"],
            ["create", "rolebindings"],
            ["delete", "persistentvolumeclaims"],
        ):
            assert lab.kubectl("auth", "can-i", *refused, f"--as={account}", check=False).strip() == "no"
        lab.kubectl("delete", "rolebinding/ada", "serviceaccount/ada")


@pytest.mark.parametrize("release", RUNS)
def test_uninstall_leaves_the_results_and_nothing_else(
    labs: dict[str, Lab], steps: Steps, release: str
) -> None:
    lab = labs[RUNS[release][0]]
    with steps.step(f"{release}: helm uninstall leaves the results and nothing else"):
        lab.uninstall(release)
        kinds = run([KUBECTL, "api-resources", "--namespaced", "--verbs=list", "-o", "name"]).stdout.split()
        kinds = [kind for kind in kinds if not kind.startswith("events")]

        def left() -> list[str]:
            names = lab.kubectl("get", ",".join(kinds), "-o", "name", check=False).split()
            return [name for name in names if f"/{release}-" in f"{name}-" and "mlflow" not in name]

        wait_until(lambda: not left(), f"nothing of {release} is left, there is {left()}", timeout_s=60)
        assert "report.html" in lab.on_volume("ls", f"{MOUNT}/e2e/{release}/analysis")
