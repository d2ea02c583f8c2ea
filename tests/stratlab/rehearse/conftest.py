"""A tiny chart whose job is a script that writes a run directory: real helm, real processes, no torch."""

import contextlib
import io
import json

import pytest
from rich.console import Console

from stratlab.progress import Display

JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: {{ .Release.Name }}, namespace: {{ .Release.Namespace }}}
spec:
  nprocPerNode: {{ .Values.run.processesPerNode | quote }}
  elasticPolicy: {minReplicas: {{ .Values.run.nodes }}, maxReplicas: {{ .Values.run.nodes }}, maxRestarts: 0}
  pytorchReplicaSpecs:
    Worker:
      replicas: {{ .Values.run.nodes }}
      restartPolicy: ExitCode
      template:
        spec:
          containers:
            - name: pytorch
              image: none
              command: [python, -c, {{ .Files.Get "train.py" | toJson }}]
              args: [{{ .Values.run.config.fault | quote }}]
              env:
                - {name: TRAINER_RUN, value: {{ .Release.Name }}}
                - {name: TRAINER_RESULTS, value: {{ .Values.run.results.mountPath | quote }}}
                - {name: TRAINER_COMPARISON, value: demo}
                - {name: MLFLOW_TRACKING_URI, value: {{ .Values.run.mlflow.trackingUri | quote }}}
              volumeMounts: [{name: results, mountPath: {{ .Values.run.results.mountPath | quote }}}]
          volumes: [{name: results, persistentVolumeClaim: {claimName: results}}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: {{ .Release.Name }}-analysis}
spec:
  template:
    spec:
      initContainers:
        - name: wait
          image: none
          command: [stratlab, wait, "{{ .Values.run.results.mountPath }}/demo/{{ .Release.Name }}"]
          args: [--deadline-s, "20", --poll-s, "0.1"]
      containers:
        - name: analyze
          image: none
          command: [python, -c, {{ .Files.Get "analyze.py" | toJson }}]
          args: ["{{ .Values.run.results.mountPath }}/demo/{{ .Release.Name }}"]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: {{ .Release.Name }}}
"""

TRAIN = """
import json, os, subprocess, sys, time
fault = sys.argv[1]
run_dir = os.path.join(*(os.environ["TRAINER_" + name] for name in ("RESULTS", "COMPARISON", "RUN")))
if fault.startswith("refuse"):
    print("TRAINER_LR=-1: expected a number above 0")
    sys.exit(2)
os.makedirs(run_dir, exist_ok=True)
resolved = {"steps": 4, "device_type": "cpu", "backend": "gloo", "world_size": 1}
json.dump({"resolved": resolved, "environ": dict(os.environ)}, open(run_dir + "/config.json", "w"))
if fault == "hang":
    # as torch's launcher does: a worker in a session of its own, deaf to SIGTERM
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
    subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
    open(run_dir + "/hanging", "w").close()
    time.sleep(300)
with open(run_dir + "/metrics.jsonl", "a") as metrics:
    for step in range(1, 5):
        line = {"t": time.time(), "step": step, "kind": "train", "loss": 1 / step}
        line |= {"samples": 8, "step_time_ms": 10.0}
        metrics.write(json.dumps(line) + "\\n")
code = int(fault or 0)
reason = {"0": "done", "10": "accelerator out of memory"}.get(fault or "0", "other")
with open(run_dir + "/attempts.jsonl", "a") as attempts:
    attempts.write(json.dumps({"attempt": 1, "event": "started"}) + "\\n")
    attempts.write(json.dumps({"attempt": 1, "event": "ended", "exit_code": code, "reason": reason}) + "\\n")
if code == 0:
    json.dump({**resolved, "train_loss": 0.25, "samples_per_s": 800.0}, open(run_dir + "/summary.json", "w"))
print("\\n".join(f"line {number}" for number in range(40)))
sys.exit(code)
"""

ANALYZE = """
import os, sys
os.mkdir(sys.argv[1] + "/analysis")
open(sys.argv[1] + "/analysis/report.html", "w").close()
"""

VALUES = {"nodes": 1, "processesPerNode": 1, "config": {"fault": ""}, "results": {"mountPath": "/r"}}


def write_chart(folder, *, job=JOB, train=TRAIN, analyze=ANALYZE):
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text(f"{{apiVersion: v2, name: {folder.name}, version: 0.1.0}}")
    (folder / "values.yaml").write_text(json.dumps({"run": VALUES | {"mlflow": {"trackingUri": ""}}}))
    (folder / "values.schema.json").write_text(
        json.dumps({"properties": {"run": {"properties": {"nodes": {"type": "integer", "minimum": 1}}}}})
    )
    (folder / "templates" / "job.yaml").write_text(job)
    (folder / "train.py").write_text(train)
    (folder / "analyze.py").write_text(analyze)
    return folder


@pytest.fixture
def chart(tmp_path):
    return write_chart(tmp_path / "tiny")


@pytest.fixture
def screen():
    """A display that is no terminal, and what it has shown so far."""
    text = io.StringIO()
    with Display(Console(file=text, width=80)) as display:
        yield display, text.getvalue


@contextlib.contextmanager
def no_server(folder, port, **_):
    """In place of the MLflow server: leaves a file in the store, as the server does."""
    (folder / "mlflow.db").write_bytes(b"")
    yield f"http://127.0.0.1:{port}"
