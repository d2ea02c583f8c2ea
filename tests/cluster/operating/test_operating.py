"""docs/operating.md on a cluster: store and volume lost and restored, a private authority, a tight quota, no MLflow."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import IMAGES, KUBECTL, MOUNT, ROOT, STRATLAB, Lab, run, wait_until
from tests.cluster.path import QUERY
from tests.cluster.steps import Steps

pytestmark = pytest.mark.cluster

SHORT: dict[str, Any] = {
    "run.config.comparison": "operating",
    "run.config.checkpoint_every": 50,
    "run.config.lr_schedule": "constant",  # a cosine follows the length of the run, which then cannot be extended
}
LIMITED = SHORT | {
    "run.nodes": 2,
    "run.resources.limits.cpu": "500m",
    "run.resources.requests.cpu": "100m",
    "run.analysis.resources.limits.cpu": "1",
}
TOOL = "limits.cpu=200m"
HARD = "1400m"
"""Of limits.cpu: two workers, a waiter and a tool's pod. Beside an analysis that waits with 1 only one worker fits."""
COPY = "import sqlite3; sqlite3.connect('/mlflow/{}').backup(sqlite3.connect('/mlflow/{}'))"


def stratlab(lab: Lab, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return run([STRATLAB, *words, "-n", lab.namespace], check=check)


def in_server(lab: Lab, *words: str) -> str:
    return lab.kubectl("exec", "deployment/mlflow", "--", *words)


def restart_server(lab: Lab) -> None:
    lab.kubectl("rollout", "restart", "deployment/mlflow")
    lab.kubectl("rollout", "status", "deployment/mlflow", "--timeout=300s")


def read_store(lab: Lab) -> dict[str, Any]:
    """{run: its status, steps, files} of the comparison, as MLflow tells it."""
    return dict(json.loads(lab.on_volume("python", "-c", QUERY, "operating", component="test")))


def train(lab: Lab, release: str, values: dict[str, Any]) -> None:
    lab.install(release, "ddp", values)
    done = lab.watch(release)
    assert done.returncode == 0, done.stdout[-3000:] + lab.describe(release)


def steps_of(lab: Lab, release: str) -> list[int]:
    """Those whose loss the run has recorded."""
    lines = lab.read_lines(f"operating/{release}/metrics.jsonl")
    return sorted({line["step"] for line in lines if "loss" in line})


def read_findings(lab: Lab, *options: str) -> list[dict[str, Any]]:
    images = ["--image", f"{IMAGES['run.analysis.image.repository']}:0.1.0"]
    images += ["--trainer-image", f"{IMAGES['run.image.repository']}:0.1.0"]
    done = stratlab(lab, "check", "--json", *images, *options, check=False)
    return list(json.loads(done.stdout))


def test_a_store_that_was_lost_is_filled_again(lab: Lab, steps: Steps, tmp_path: Path) -> None:
    archive = tmp_path / "mlflow-backup.tar.gz"
    with steps.step("operating: one run, MLflow copied, another run behind the copy"):
        train(lab, "kept", SHORT)
        in_server(lab, "python", "-c", COPY.format("mlflow.db", "backup.db"))
        in_server(lab, "tar", "-C", "/mlflow", "-czf", "/mlflow/backup.tar.gz", "backup.db", "artifacts")
        command = [
            KUBECTL,
            "-n",
            lab.namespace,
            "exec",
            "deployment/mlflow",
            "--",
            "cat",
            "/mlflow/backup.tar.gz",
        ]
        with archive.open("wb") as file:
            subprocess.run([str(word) for word in command], stdout=file, check=True, timeout=120)
        train(lab, "later", SHORT)
        wanted = {release: steps_of(lab, release) for release in ("kept", "later")}
    with steps.step("operating: the store is lost: one replay into the empty one gives every point"):
        in_server(lab, "sh", "-c", "rm -rf /mlflow/*")
        restart_server(lab)
        stratlab(lab, "metrics", "replay", "operating/kept", "--on-cluster")
        found = read_store(lab)
        assert {*found} == {"kept"} and found["kept"]["status"] == "FINISHED"
        assert found["kept"]["steps"] == wanted["kept"]
    with steps.step("operating: the copy is restored, and a replay gives what it lacks"):
        command = [
            KUBECTL,
            "-n",
            lab.namespace,
            "exec",
            "-i",
            "deployment/mlflow",
            "--",
            "tar",
            "-C",
            "/mlflow",
        ]
        with archive.open("rb") as file:
            subprocess.run([*map(str, command), "-xzf", "-"], stdin=file, check=True, timeout=120)
        in_server(lab, "python", "-c", COPY.format("backup.db", "mlflow.db"))
        restart_server(lab)
        assert {*read_store(lab)} == {"kept"} and "report.html" in str(read_store(lab)["kept"]["files"])
        stratlab(lab, "metrics", "replay", "operating/later", "--on-cluster")
        assert {name: each["steps"] for name, each in read_store(lab).items()} == wanted


def test_a_volume_that_was_lost_comes_back_whole(lab: Lab, steps: Steps, tmp_path: Path) -> None:
    with steps.step(
        "operating: a run is fetched with its checkpoints, removed, put back, and goes on from them"
    ):
        stratlab(lab, "fetch", "operating", "--with", "traces,checkpoints,models", "--output", str(tmp_path))
        lab.uninstall("kept")
        stratlab(lab, "remove", "operating/kept", "--on-cluster", "--yes")
        text = (ROOT / "manifests" / "data-pod.yaml").read_text()
        text = text.replace("image: stratlab-lab:", f"image: {IMAGES['run.analysis.image.repository']}:")
        lab.kubectl("apply", "-f", "-", text=text)
        lab.kubectl("wait", "--for=condition=Ready", "pod/data", "--timeout=300s")
        lab.kubectl("cp", str(tmp_path / "operating" / "kept"), f"data:{MOUNT}/operating/kept")
        lab.kubectl("delete", "pod", "data")
        train(lab, "on", SHORT | {"run.config.resume_from": "operating/kept", "run.config.epochs": 20})
        assert steps_of(lab, "on")[0] > 1
        assert "kept" in stratlab(lab, "list", "--on-cluster").stdout


@contextmanager
def use_tls(lab: Lab, folder: Path) -> Iterator[Path]:
    """MLflow speaks TLS on its port, with a certificate of an authority that nobody knows."""
    names = ["-subj", "/CN=mlflow", "-addext", "subjectAltName=DNS:mlflow"]
    places = ["-keyout", folder / "tls.key", "-out", folder / "tls.crt"]
    run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *places])
    lab.kubectl(
        "create", "secret", "tls", "own-tls", f"--cert={folder / 'tls.crt'}", f"--key={folder / 'tls.key'}"
    )
    lab.kubectl("create", "configmap", "company-ca", f"--from-file=ca.crt={folder / 'tls.crt'}")
    before = lab.get("deployment", "mlflow")
    changed = json.loads(json.dumps(before))
    pod = changed["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = "--ssl-keyfile /tls/tls.key --ssl-certfile /tls/tls.crt"
    container["command"] = [
        f"{word} {options}" if word.startswith("--uvicorn-opts") else word for word in container["command"]
    ]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        container[probe]["httpGet"]["scheme"] = "HTTPS"
    container["volumeMounts"].append({"name": "tls", "mountPath": "/tls", "readOnly": True})
    pod["volumes"].append({"name": "tls", "secret": {"secretName": "own-tls", "defaultMode": 0o440}})
    try:
        replace(lab, changed)
        yield folder / "tls.crt"
    finally:
        replace(lab, before)
        lab.kubectl("delete", "secret/own-tls", "configmap/company-ca")


def replace(lab: Lab, deployment: dict[str, Any]) -> None:
    deployment["metadata"].pop("resourceVersion", None)
    lab.kubectl("replace", "-f", "-", text=json.dumps(deployment))
    lab.kubectl("rollout", "status", "deployment/mlflow", "--timeout=300s")


def test_a_private_authority_reaches_every_pod(lab: Lab, steps: Steps, tmp_path: Path) -> None:
    uri = "https://mlflow:5000"
    with use_tls(lab, tmp_path):
        with steps.step("operating: without the authority check says the cause, with it MLflow is there"):
            (finding,) = [
                each for each in read_findings(lab, "--tracking-uri", uri) if each["subject"] == "MLflow"
            ]
            assert finding["state"] == "problem" and "--certificates" in finding["fix"]
            options = ["--tracking-uri", uri, "--certificates", "configMap/company-ca/ca.crt"]
            (finding,) = [each for each in read_findings(lab, *options) if each["subject"] == "MLflow"]
            assert finding["state"] == "ok"
        with steps.step("operating: a run, its analysis, its test, a comparison and a replay reach MLflow"):
            values = {"run.mlflow.trackingUri": uri, "run.certificates.configMap": "company-ca"}
            train(lab, "trusting", SHORT | values | {"run.config.comparison": "trusted"})
            lab.test("trusting")
            assert "report in MLflow" in stratlab(lab, "compare", "trusted", "--on-cluster").stderr
            stratlab(lab, "metrics", "replay", "trusted/trusting", "--on-cluster")
            lab.uninstall("trusting")
            options = [
                "--with-mlflow",
                "--on-cluster",
                "--yes",
                "--certificates",
                "configMap/company-ca/ca.crt",
            ]
            stratlab(lab, "remove", "trusted/trusting", *options)


@contextmanager
def limited(lab: Lab) -> Iterator[None]:
    """A quota of limits.cpu on top of what is there, and a LimitRange."""
    running = [pod for pod in lab.get("pods")["items"] if pod["status"]["phase"] in ("Pending", "Running")]
    assert len(running) == 1, "MLflow alone, whose limit is 2"
    quota = {"hard": {"limits.cpu": f"{2000 + int(HARD.removesuffix('m'))}m"}}
    ranges = {"limits": [{"type": "Container", "max": {"cpu": "2"}, "default": {"cpu": "2"}}]}
    kinds = {"ResourceQuota": quota, "LimitRange": ranges}
    objects = [
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": "tight"}, "spec": spec}
        for kind, spec in kinds.items()
    ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    try:
        lab.kubectl("apply", "-f", "-", text=text)
        yield
    finally:
        lab.kubectl("delete", "resourcequota/tight", "limitrange/tight")


def test_a_run_fits_a_quota_that_its_pods_fill(
    lab: Lab, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    with limited(lab):
        with steps.step("operating: a quota and a LimitRange that refuse pods are said as that"):
            refused = read_findings(lab, "--pod-resources", "limits.cpu=3")
            about = " ".join(each["seen"] + each["fix"] for each in refused if each["state"] != "ok")
            assert (
                "a LimitRange refuses" in about and "stratlab-user" not in about and "operator" not in about
            )
            done = stratlab(lab, "list", "--on-cluster", "--pod-resources", "limits.cpu=1500m", check=False)
            assert done.returncode == 1 and "exceeded quota: tight" in done.stderr
        with steps.step("operating: two workers come although the analysis needs as much as both"):
            monkeypatch.setenv("STRATLAB_POD_RESOURCES", TOOL)
            lab.install("tight", "ddp", LIMITED)
            wait_until(lambda: lab.pod_of("tight", 1), "the second worker", timeout_s=120)
            assert "tight" in stratlab(lab, "list", "--on-cluster").stdout
            done = lab.watch("tight")
            assert done.returncode == 0 and "analysis: Complete" in done.stdout, lab.describe("tight")
            lab.uninstall("tight")


def test_a_run_without_mlflow_is_sent_there_later(lab: Lab, steps: Steps) -> None:
    with steps.step(
        "operating: a run without MLflow succeeds, is tested, and is replayed into one afterwards"
    ):
        train(lab, "alone", SHORT | {"run.mlflow.trackingUri": ""})
        lab.test("alone")
        options = ["--on-cluster", "--tracking-uri", "http://mlflow:5000"]
        stratlab(lab, "metrics", "replay", "operating/alone", *options)
        assert read_store(lab)["alone"]["steps"] == steps_of(lab, "alone")
        lab.uninstall("alone")
