"""The sweep on the cluster of KUBECONFIG: real helm, real operator, real volume; the training is a small script.

The chart's script unpacks a run directory that was made beforehand, so that the comparison has something to compare.
$STRATLAB_TEST_LAB_IMAGE names the image of the lab (stratlab-lab:0.1.0).
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import CoreV1Api

from stratlab.rendering.helm import find_helm
from stratlab.sweep.helm_release import look_at, uninstall
from tests.cluster.parts.real_cluster import RealCluster, use_cluster
from tests.stratlab.example_run import build_run_dir

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
IMAGE = os.environ.get("STRATLAB_TEST_LAB_IMAGE", "stratlab-lab:0.1.0")

CHART = """
{{- define "pod" }}
securityContext: {runAsNonRoot: true, runAsUser: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
volumes: [{name: results, persistentVolumeClaim: {claimName: stratlab-results}}]
{{- end }}
{{- define "container" }}
image: IMAGE
securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
volumeMounts: [{name: results, mountPath: /results}]
{{- end }}
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: {{ .Release.Name }}
  annotations:
    stratlab/results-claim: stratlab-results
    stratlab/results-mount: /results
    stratlab/lab-image: IMAGE
spec:
  nprocPerNode: "1"
  runPolicy: {cleanPodPolicy: None}
  elasticPolicy: {minReplicas: 1, maxReplicas: 1, maxRestarts: 0}
  pytorchReplicaSpecs:
    Worker:
      replicas: 1
      restartPolicy: ExitCode
      template:
        metadata: {labels: {app.kubernetes.io/instance: {{ .Release.Name }}, app.kubernetes.io/component: training}}
        spec:
          {{- include "pod" . | nindent 10 }}
          containers:
            - name: pytorch
              command: [python, -c, {{ .Files.Get "train.py" | toJson }}]
              args: [{{ .Release.Name }}, {{ .Values.run.config.comparison }}, {{ .Values.run.seconds | quote }}]
              {{- include "container" . | nindent 14 }}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .Release.Name }}-analysis
  labels: {app.kubernetes.io/instance: {{ .Release.Name }}, app.kubernetes.io/component: analysis}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      {{- include "pod" . | nindent 6 }}
      containers:
        - name: analyze
          command: [python, -c, "print('analysed')"]
          {{- include "container" . | nindent 10 }}
"""

TRAIN = """
import base64, io, json, pathlib, sys, tarfile, time
name, comparison, seconds = sys.argv[1:]
time.sleep(float(seconds))
if float(seconds) == 0.5:
    sys.exit(10)
data = base64.b64decode("ARCHIVE")
folder = pathlib.Path("/results") / comparison
folder.mkdir(exist_ok=True)
with tarfile.open(fileobj=io.BytesIO(data)) as archive:
    archive.extractall(folder / ("." + name))  # Python 3.11.2 of Debian knows no filter
if not (folder / name).exists():
    (folder / ("." + name) / "run").rename(folder / name)
"""


def write_chart(charts: Path, strategy: str) -> None:
    run = build_run_dir(charts.parent / "made" / strategy, "run", strategy)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(run, arcname="run")
    chart = charts / strategy
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text(f"{{apiVersion: v2, name: {strategy}, version: 0.1.0}}")
    (chart / "values.yaml").write_text("{run: {seconds: 0, config: {comparison: none}}}")
    (chart / "templates" / "run.yaml").write_text(CHART.replace("IMAGE", IMAGE))
    (chart / "train.py").write_text(TRAIN.replace("ARCHIVE", base64.b64encode(buffer.getvalue()).decode()))


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    with use_cluster() as real:
        claim = {
            "metadata": {"name": "stratlab-results"},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        }
        CoreV1Api(real.connection.client).create_namespaced_persistent_volume_claim(real.namespace, claim)
        yield real


def write_sweep(folder: Path, cluster: RealCluster, comparison: str, seconds: list[float]) -> Path:
    for strategy in ("ddp", "fsdp"):
        write_chart(folder / "charts", strategy)
    content = {
        "comparison": comparison,
        "namespace": cluster.namespace,
        "matrix": {"strategy": ["ddp", "fsdp"], "run.seconds": seconds},
    }
    file = folder / "sweep.yaml"
    file.write_text(json.dumps(content))
    return file


def start(file: Path, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "stratlab",
        "sweep",
        str(file),
        "--output",
        str(file.parent / "report"),
        *options,
    ]
    log = open(file.parent / "log", "a")  # noqa: SIM115 - the process owns it
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def stages(file: Path) -> dict[str, str]:
    content = json.loads(file.with_name("sweep.yaml.state.json").read_text())
    return {name: entry["stage"] for name, entry in content["releases"].items()}


def mark_half_installed(cluster: RealCluster, name: str) -> None:
    """What a helm that was killed leaves behind: helm keeps a release as JSON, packed and twice in base64."""
    core, secret = CoreV1Api(cluster.connection.client), f"sh.helm.release.v1.{name}.v1"
    found: Any = core.read_namespaced_secret(secret, cluster.namespace)
    release = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(found.data["release"]))))
    release["info"]["status"] = "pending-install"
    packed = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(release).encode()))).decode()
    core.patch_namespaced_secret(secret, cluster.namespace, {"data": {"release": packed}})


def test_a_sweep_that_is_killed_goes_on_and_ends_with_a_report(cluster: RealCluster, tmp_path: Path) -> None:
    file = write_sweep(tmp_path, cluster, "killed", [0, 15])
    first = start(file)
    try:
        cluster.wait_until(lambda: stages_or_none(file).get("killed-ddp-seconds15") == "running", 240)
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    assert stages(file)["killed-ddp-seconds0"] == "succeeded"
    mark_half_installed(cluster, "killed-ddp-seconds15")
    cluster.delete("killed-ddp-seconds15")
    assert look_at(find_helm(), cluster.namespace, "killed-ddp-seconds15").status == "pending-install"
    assert start(file, "--parallel", "2").wait(timeout=500) == 0, (tmp_path / "log").read_text()
    log = (tmp_path / "log").read_text()
    assert "killed-ddp-seconds0 has succeeded already" in log
    assert "killed-ddp-seconds15 was only half installed (pending-install)" in log
    assert set(stages(file).values()) == {"succeeded"} and len(stages(file)) == 4
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert [row["run"] for row in report["runs"]] == sorted(stages(file))
    assert re.search(r"report: \S+/report/report.html", log)

    assert start(file, "--uninstall").wait(timeout=300) == 0, (tmp_path / "log").read_text()
    for name in stages(file):
        assert look_at(find_helm(), cluster.namespace, name).status == ""
    again = time.monotonic()
    assert start(file).wait(timeout=300) == 0, "the results stayed"
    assert time.monotonic() - again < 120


def test_a_run_that_fails_does_not_stop_the_rest_and_may_be_tried_again(
    cluster: RealCluster, tmp_path: Path
) -> None:
    file = write_sweep(tmp_path, cluster, "failing", [0.5, 0])
    assert start(file).wait(timeout=400) == 1
    assert stages(file) == {
        "failing-ddp-seconds0-5": "failed",
        "failing-ddp-seconds0": "succeeded",
        "failing-fsdp-seconds0-5": "failed",
        "failing-fsdp-seconds0": "succeeded",
    }
    log = (tmp_path / "log").read_text()
    assert "problem: failing-ddp-seconds0-5: PyTorchJob Failed" in log
    assert (tmp_path / "report" / "report.html").is_file()
    assert start(file, "--retry-failed", "--stop-on-failure").wait(timeout=300) == 1
    assert "failing-ddp-seconds0-5 has failed and is tried again" in (tmp_path / "log").read_text()
    for name in stages(file):
        uninstall(find_helm(), cluster.namespace, name)


def stages_or_none(file: Path) -> dict[str, str]:
    return stages(file) if file.with_name("sweep.yaml.state.json").exists() else {}
