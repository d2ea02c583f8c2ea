"""The pod that a chart renders, where no GPU is to be seen, as on a node with a broken driver or no device plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from stratlab.helm import find_helm, render_chart
from stratlab.pod_commands import build_pod

QUICK = (
    "run.processesPerNode=1,run.config.model=cnn,run.config.image_size=8,run.config.steps=12,"
    "run.config.global_batch_size=8,run.config.micro_batch_size=8"
)


def test_a_pod_that_does_not_get_its_gpus_does_not_train(tmp_path: Path) -> None:
    literals = [f"run.results.mountPath={tmp_path}", "run.mlflow.trackingUri="]
    objects = render_chart(
        find_helm(), Path("charts/ddp"), "ddp", settings=[QUICK], values=[], literals=literals
    )
    job = next(each for each in objects if each["kind"] == "PyTorchJob")
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert template["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    injected = {"PET_NPROC_PER_NODE": "1"}
    pod = build_pod("ddp-worker-0", "node0", template, namespace="default", injected=injected)
    command = pod.commands[-1]
    path = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *command.arguments[1:]]
    done = subprocess.run(words, env={**command.env, **path}, capture_output=True, text=True, timeout=200)
    assert done.returncode == 4, done.stdout[-1000:] + done.stderr[-1000:]
    assert "run.accelerator=nvidia.com/gpu" in done.stderr
