"""docs/operating.md on a cluster: store and volume lost and restored, a private authority, a tight quota, no MLflow."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import (
    KUBECTL,
    LAB_IMAGE,
    MOUNT,
    ROOT,
    TRAINER_IMAGE,
    Lab,
    build_object,
    run,
    wait_until,
)
from tests.cluster.path import read_store

pytestmark = pytest.mark.cluster

SHORT: dict[str, Any] = {
    "run.config.comparison": "operating",
    "run.config.checkpoint_every": 50,
    "run.config.lr_schedule": "constant",  # a cosine follows the length of the run, which then cannot be extended
}
LIMITED = SHORT | {
    "run.nodes": 2, "run.resources.limits.cpu": "500m", "run.resources.requests.cpu": "100m",
    "run.analysis.resources.limits.cpu": "1",
}  # fmt: skip
TOOL = "limits.cpu=200m"
HARD = "3400m"
"""Of limits.cpu: MLflow with 2, two workers, a waiter and a tool's pod. Beside an analysis that waits with 1 only one
worker fits."""
COPY = "import sqlite3; sqlite3.connect('/mlflow/{}').backup(sqlite3.connect('/mlflow/{}'))"


def in_server(lab: Lab, *words: str, **files: Any) -> None:
    """Runs a program beside MLflow; `files` are its stdin or stdout."""
    command = [KUBECTL, "-n", lab.namespace, "exec", "-i", "deployment/mlflow", "--", *words]
    files = {"stdin": subprocess.DEVNULL} | files
    subprocess.run([str(word) for word in command], check=True, timeout=120, **files)


def wait_for_server(lab: Lab) -> None:
    lab.kubectl("rollout", "status", "deployment/mlflow", "--timeout=300s")


def restart_server(lab: Lab) -> None:
    lab.kubectl("rollout", "restart", "deployment/mlflow")
    wait_for_server(lab)


def train(lab: Lab, release: str, values: dict[str, Any]) -> None:
    lab.install(release, "ddp", values)
    lab.watch(release)


def steps_of(lab: Lab, release: str) -> list[int]:
    lines = lab.read_lines(f"operating/{release}/metrics.jsonl")
    return sorted({line["step"] for line in lines if "loss" in line})


def check(lab: Lab, *options: str) -> dict[str, str]:
    """Subject -> what `stratlab check` says is wrong with it, and what to do; "" = nothing."""
    images = ["--image", LAB_IMAGE, "--trainer-image", TRAINER_IMAGE]
    found = json.loads(lab.stratlab("check", "--json", *images, *options, check=False).stdout)
    return {each["subject"]: (each["seen"] + each["fix"]) * (each["state"] != "ok") for each in found}


def test_a_store_that_was_lost_is_filled_again(lab: Lab, tmp_path: Path) -> None:
    archive = tmp_path / "mlflow-backup.tar.gz"
    train(lab, "kept", SHORT)
    in_server(lab, "python", "-c", COPY.format("mlflow.db", "backup.db"))
    in_server(lab, "tar", "-C", "/mlflow", "-czf", "/mlflow/backup.tar.gz", "backup.db", "artifacts")
    with archive.open("wb") as file:
        in_server(lab, "cat", "/mlflow/backup.tar.gz", stdout=file)
    train(lab, "later", SHORT)
    wanted = {release: steps_of(lab, release) for release in ("kept", "later")}
    in_server(lab, "sh", "-c", "rm -rf /mlflow/*")
    restart_server(lab)
    lab.stratlab("metrics", "replay", "operating/kept", "--on-cluster")
    found = read_store(lab, "operating")
    assert {*found} == {"kept"} and found["kept"]["status"] == "FINISHED"
    assert found["kept"]["steps"] == wanted["kept"]
    with archive.open("rb") as file:
        in_server(lab, "tar", "-C", "/mlflow", "-xzf", "-", stdin=file)
    in_server(lab, "python", "-c", COPY.format("backup.db", "mlflow.db"))
    restart_server(lab)
    found = read_store(lab, "operating")
    assert {*found} == {"kept"} and "report.html" in found["kept"]["files"]
    lab.stratlab("metrics", "replay", "operating/later", "--on-cluster")
    assert {name: each["steps"] for name, each in read_store(lab, "operating").items()} == wanted


def test_a_volume_that_was_lost_comes_back_whole(lab: Lab, tmp_path: Path) -> None:
    lab.stratlab("fetch", "operating", "--with", "traces,checkpoints,models", "--output", tmp_path)
    lab.uninstall("kept")
    lab.stratlab("remove", "operating/kept", "--on-cluster", "--yes")
    text = (ROOT / "manifests" / "data-pod.yaml").read_text()
    lab.kubectl(
        "apply", "-f", "-", text=text.replace("image: stratlab-trainer:0.1.0", f"image: {TRAINER_IMAGE}")
    )
    lab.kubectl("wait", "--for=condition=Ready", "pod/data", "--timeout=300s")
    lab.kubectl("cp", tmp_path / "operating" / "kept", f"data:{MOUNT}/operating/kept")
    lab.kubectl("delete", "pod", "data")
    train(lab, "on", SHORT | {"run.config.resume_from": "operating/kept", "run.config.epochs": 20})
    assert steps_of(lab, "on")[0] > 1
    assert "kept" in lab.stratlab("list", "--on-cluster").stdout


@contextmanager
def use_tls(lab: Lab, folder: Path) -> Iterator[None]:
    """MLflow speaks TLS on its port, with a certificate of an authority that nobody knows."""
    key, certificate = folder / "tls.key", folder / "tls.crt"
    names = [
        "-subj", "/CN=mlflow", "-addext", "subjectAltName=DNS:mlflow", "-keyout", key, "-out",
        certificate,
    ]  # fmt: skip
    run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names])
    lab.kubectl("create", "secret", "tls", "own-tls", f"--cert={certificate}", f"--key={key}")
    lab.kubectl("create", "configmap", "company-ca", f"--from-file=ca.crt={certificate}")
    before = lab.get("deployment", "mlflow")
    changed = json.loads(json.dumps(before))
    pod = changed["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = " --ssl-keyfile /tls/tls.key --ssl-certfile /tls/tls.crt"
    words = container["command"]
    container["command"] = [word + options * word.startswith("--uvicorn-opts") for word in words]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        container[probe]["httpGet"]["scheme"] = "HTTPS"
    container["volumeMounts"].append({"name": "tls", "mountPath": "/tls", "readOnly": True})
    pod["volumes"].append({"name": "tls", "secret": {"secretName": "own-tls", "defaultMode": 0o440}})
    try:
        replace(lab, changed)
        yield
    finally:
        replace(lab, before)
        lab.kubectl("delete", "secret/own-tls", "configmap/company-ca")


def replace(lab: Lab, deployment: dict[str, Any]) -> None:
    deployment["metadata"].pop("resourceVersion", None)
    lab.kubectl("replace", "-f", "-", text=json.dumps(deployment))
    wait_for_server(lab)


def test_a_private_authority_reaches_every_pod(lab: Lab, tmp_path: Path) -> None:
    uri, trust = "https://mlflow:5000", ("--certificates", "configMap/company-ca/ca.crt")
    with use_tls(lab, tmp_path):
        assert "--certificates" in check(lab, "--tracking-uri", uri)["MLflow"]
        assert not check(lab, "--tracking-uri", uri, *trust)["MLflow"]
        values = {"run.mlflow.trackingUri": uri, "run.certificates.configMap": "company-ca"}
        train(lab, "trusting", SHORT | values | {"run.config.comparison": "trusted"})
        lab.test("trusting")
        lab.stratlab("compare", "trusted", "--on-cluster", "--output", tmp_path / "report")
        lab.stratlab("metrics", "replay", "trusted/trusting", "--on-cluster")
        lab.uninstall("trusting")
        lab.stratlab("remove", "trusted/trusting", "--with-mlflow", "--on-cluster", "--yes", *trust)


@contextmanager
def limited(lab: Lab) -> Iterator[None]:
    ranges = {"limits": [{"type": "Container", "max": {"cpu": "2"}, "default": {"cpu": "2"}}]}
    try:
        lab.apply(
            build_object("ResourceQuota", "tight", {"hard": {"limits.cpu": HARD}}),
            build_object("LimitRange", "tight", ranges),
        )
        yield
    finally:
        lab.kubectl("delete", "resourcequota/tight", "limitrange/tight")


def test_a_run_fits_a_quota_that_its_pods_fill(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with limited(lab):
        about = " ".join(check(lab, "--pod-resources", "limits.cpu=3").values())
        assert "LimitRange" in about and "stratlab-user" not in about and "operator" not in about
        done = lab.stratlab("list", "--on-cluster", "--pod-resources", "limits.cpu=1500m", check=False)
        assert done.returncode == 1 and "quota: tight" in done.stderr
        monkeypatch.setenv("STRATLAB_POD_RESOURCES", TOOL)
        lab.install("tight", "ddp", LIMITED)
        wait_until(lambda: lab.pod_of("tight", 1), "the second worker", timeout_s=120)
        assert "tight" in lab.stratlab("list", "--on-cluster").stdout
        assert "analysis: Complete" in lab.watch("tight")
        lab.uninstall("tight")


def test_a_run_without_mlflow_is_sent_there_later(lab: Lab) -> None:
    train(lab, "alone", SHORT | {"run.mlflow.trackingUri": ""})
    lab.test("alone")
    options = ["--on-cluster", "--tracking-uri", "http://mlflow:5000"]
    lab.stratlab("metrics", "replay", "operating/alone", *options)
    assert read_store(lab, "operating")["alone"]["steps"] == steps_of(lab, "alone")
    lab.uninstall("alone")
