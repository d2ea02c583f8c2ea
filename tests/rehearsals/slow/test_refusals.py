"""What cannot run is refused by its name before training starts, also where no GPU is seen; nothing stays behind."""

import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from stratlab.helm import find_helm, render_chart
from stratlab.pod_commands import build_pod
from tests.programs import find_python


@pytest.fixture(scope="module")
def scribbles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set whose image column cannot be decoded."""
    features = datasets.Features({"image": datasets.Value("binary"), "label": datasets.Value("int64")})
    rows = {"image": [b"no picture"] * 200, "label": [0, 1] * 100}
    folder = tmp_path_factory.mktemp("data") / "scribbles"
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(folder))
    return folder


@pytest.mark.parametrize(
    ("setting", "code", "names"),
    [
        ("run.config.tpp=2", 2, ("/config", "tpp")),
        ("run.config.global_batch_size=50", 2, ("run.config.global_batch_size=50", "micro_batch_size=32")),
        ("run.config.dataset_path=/nowhere/pets", 3, ("run.config.dataset_path='/nowhere/pets'",)),
        ("run.config.dataset_path={scribbles}", 3, ("run.config.dataset_path='", "'image'")),
    ],
)
def test_it_is_refused_by_name_and_leaves_nothing(setting, code, names, scribbles, tmp_path):
    options = [
        "charts/ddp",
        "--results",
        tmp_path / "out" / "runs",
        "--set",
        setting.format(scribbles=scribbles),
    ]
    command = [find_python(), "-m", "stratlab", "rehearse", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    text = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == code and [name for name in names if name not in text] == [], text
    assert not (tmp_path / "out").exists()


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
