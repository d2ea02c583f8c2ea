"""Examples as they are, the README's command for GPUs at a tiny size, a job that SLURM stops at its limit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml

from experiments.network.two_nodes import wait_until
from stratlab_spec.schedule import FEW_STEPS
from tests.documents.commands import ROOT, read_commands, split
from tests.documents.examples import (
    gpu_command,
    options,
    sweep_plan,
    write_photos,
)
from tests.rehearsals.start.runs import last_step, render
from tests.rehearsals.start.slurm import ENDLESS, LACK, expect_another_start, open_slurm, submit

STRATLAB = Path(sys.executable).with_name("stratlab")


def stratlab(*arguments: str | Path) -> None:
    words = [str(STRATLAB), *map(str, arguments)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def read(run_dir: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run_dir / name).read_text())
    return content


def test_a_release_of_the_sweep_as_it_is(tmp_path: Path) -> None:
    planned = sweep_plan()[0]
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(dict(planned.values)))
    named = ("--name", planned.release.name, "--values", values, "--results", tmp_path / "runs")
    stratlab("rehearse", planned.chart, *named)
    run_dir = tmp_path / "runs" / "digits-sweep" / planned.release.name
    summary, report = read(run_dir, "summary.json"), read(run_dir, "analysis/report.json")
    assert summary["measured_steps"] >= FEW_STEPS and summary["step_time_ms_p50"] > 0
    assert report["mean"]["steps"] == 24 and report["mean"]["ranks"] == 2


def test_the_gpu_command_of_the_readme_at_a_tiny_size(tmp_path: Path) -> None:
    given = [f"--set={setting}" for setting in options(gpu_command(), "--set")]
    photos = write_photos(tmp_path / "food101", 120)
    tiny = {"nodes": 1, "processesPerNode": 2, "config.model": "vit_tiny", "config.dataset_path": photos}
    tiny |= {"config.global_batch_size": 8, "config.micro_batch_size": 4, "config.steps": 10}
    tiny |= {"config.profile_first_step": 8, "config.precision": "fp32"}
    smaller = [f"--set=run.{name}={value}" for name, value in tiny.items()]
    stores = ("--results", tmp_path / "runs", "--no-analysis")  # the other two tests analyse
    stratlab("rehearse", "charts/fsdp", "--name", "fsdp-1", *given, *smaller, *stores)
    run_dir = tmp_path / "runs" / "vit" / "fsdp-1"
    assert read(run_dir, "summary.json")["dataset"] == "food101"
    assert read(run_dir, "traces/manifest.json")["steps"] == 3


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    """README's line of `stratlab run` on photos of one's own: enough timed steps, and comparable."""
    (line,) = [each for each in read_commands() if " run resnet " in each]
    words = split(line.replace("/data/pets", str(write_own_photos(tmp_path / "pets"))))[1:]
    stratlab(*words, "--results", tmp_path / "results/runs")
    comparison = tmp_path / "results/runs/resnet-pets"
    for name in ("ddp", "fsdp"):
        assert read(comparison / name, "summary.json")["measured_steps"] >= FEW_STEPS
        assert read(comparison / name, "analysis/report.json")["mean"]["steps"] == 3
    check_report(comparison / "report")


def write_own_photos(folder: Path, count: int = 120) -> Path:
    """In the only column of images, which has another name."""
    table = datasets.load_from_disk(str(write_photos(folder.with_name("raw"), count)))
    table.rename_column("image", "photo").save_to_disk(str(folder))
    return folder


def check_report(folder: Path) -> None:
    """Both runs are finished and lack nothing, and may be compared."""
    report = read(folder, "report.json")
    found = [(run["run"], run["status"], run["missing"]) for run in report["runs"]]
    assert found == [("ddp", "finished", []), ("fsdp", "finished", [])]
    assert report["fairness"]["verdict"] == "comparable", report["fairness"]["reason"]


def test_without_a_profile_a_run_is_reported_and_compared_all_the_same(tmp_path: Path) -> None:
    photos = write_own_photos(tmp_path / "pets")
    smaller = {"model": "cnn", "image_size": 16, "micro_batch_size": 8, "global_batch_size": 16, "steps": 8}
    smaller |= {"profile_steps": 0, "dataset_path": photos, "image_column": "photo"}
    given = [f"--set=run.config.{name}={value}" for name, value in smaller.items()]
    stores = ("--processes", "1", "--results", tmp_path / "runs")
    stratlab("rehearse", "charts/ddp", "charts/fsdp", *given, *stores)
    for name in ("ddp", "fsdp"):
        assert read(tmp_path / "runs/default" / name, "analysis/report.json")["note"]
    stratlab("compare", tmp_path / "runs" / "default", "--output", tmp_path / "report")
    check_report(tmp_path / "report")


@pytest.mark.skipif(bool(LACK), reason=f"{LACK} (Debian: apt-get install slurm-wlm iproute2)")
def test_the_time_limit_loses_no_step(tmp_path: Path) -> None:
    """40 s before three minutes, and up to one minute earlier, as SLURM's manual says."""
    run_dir = tmp_path / "runs/demo/ddp"
    options = (*ENDLESS, "--set", "run.graceSeconds=40")
    with open_slurm(tmp_path / "slurm") as head:
        job = submit(head, render("slurm", tmp_path / "runs", tmp_path / "ddp.sbatch", *options), "--time=3")
        wait_until(lambda: last_step(run_dir) >= 20, "step 20", 120, 0.5)
        expect_another_start(head, job, run_dir)
