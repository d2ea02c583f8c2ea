"""What examples and README ask for passes the trainer's own check, so that it means something where it is installed."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from stratlab.rehearse.operator import build_training_pods
from stratlab.rendering.helm import find_helm, render_chart
from stratlab.sweep.definition import read_sweep
from stratlab.sweep.planned_release import Planned, build_plan
from tests.charts.rendering import discover_charts
from tests.documents.commands import ROOT, read_commands, split
from trainer.launch.preflight import check, check_elsewhere, read_pods
from trainer.settings.config import Config

SWEEP = ROOT / "examples" / "sweep.yaml"
INSTALLED = [c for c in sorted(read_commands()) if c.startswith("helm install") and "--values examples/" in c]


def options(command: str, name: str) -> list[str]:
    """The values of an option that may be repeated."""
    words = split(command)
    return [words[i + 1] for i, word in enumerate(words) if word == name]


def gpu_command() -> str:
    (found,) = [c for c in read_commands() if c.startswith("helm install") and "vit_huge" in c]
    return found


def own_command() -> str:
    """The README's comparison of one's own pictures."""
    (found,) = [c for c in read_commands() if "rehearse" in c and "image_column=photo" in c]
    return found


def write_own_photos(folder: Path, count: int = 120) -> Path:
    """In a column of another name, as the README's."""
    table = datasets.load_from_disk(str(write_photos(folder.with_name("raw"), count)))
    table.rename_column("image", "photo").save_to_disk(str(folder))
    return folder


def write_photos(folder: Path, count: int, edge: int = 64) -> Path:
    """A data set of `count` equal photos in two classes, with the columns of Food-101."""
    file = io.BytesIO()
    Image.new("RGB", (edge, edge), (200, 30, 40)).save(file, "PNG")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    rows = {
        "image": [{"bytes": file.getvalue(), "path": None}] * count,
        "label": [i % 2 for i in range(count)],
    }
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(folder))
    return folder


def render(
    chart: Path, release: str, settings: Sequence[str], values: Sequence[Path]
) -> list[dict[str, Any]]:
    return render_chart(find_helm(), chart, release, settings=settings, values=values)


def judge(job: Mapping[str, Any], **env: str) -> None:
    """As the first pod would, before torch is imported."""
    pod = build_training_pods(job, 29500)[0].commands[-1].env
    config = Config.from_env({**pod, **env})
    check(config, read_pods(pod).world_size, {**pod, **env})


def find_job(objects: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next(entry for entry in objects if entry["kind"] == "PyTorchJob")


@pytest.mark.parametrize("command", INSTALLED)
def test_the_trainer_takes_it(command: str, tmp_path: Path) -> None:
    _, _, release, chart, *_ = split(command)
    files = [ROOT / name for name in options(command, "--values")]
    settings = [*options(command, "--set"), "run.pod.volumes=null"]  # of the nodes of a cluster
    judge(find_job(render(ROOT / chart, release, settings, files)), TRAINER_RESULTS=str(tmp_path))


@pytest.mark.parametrize("chart", discover_charts(ROOT / "charts"))
def test_every_chart_as_it_is_means_something(chart: str, tmp_path: Path) -> None:
    job = find_job(render(ROOT / "charts" / chart, chart, [], []))
    if not chart.startswith("llm-"):
        asked = {"TRAINER_INIT": "scratch"} if chart == "lora" else {}  # which weights is for the user to say
        judge(job, TRAINER_RESULTS=str(tmp_path), **asked)
        return
    env = build_training_pods(job, 29500)[0].commands[-1].env
    check_elsewhere(Config.from_env(env), read_pods(env))  # its data is on the hub


def sweep_plan() -> list[Planned]:
    return build_plan(read_sweep(SWEEP), SWEEP.parent, find_helm(), lambda text: None)


def test_the_trainer_takes_every_release_of_the_sweep(tmp_path: Path) -> None:
    plan = sweep_plan()
    assert len(plan) == 10
    for planned in plan:
        judge(planned.workload.object, TRAINER_RESULTS=str(tmp_path))


def test_the_gpu_command_of_the_readme_means_something(tmp_path: Path) -> None:
    command = gpu_command()
    _, _, release, chart, *_ = split(command)
    job = find_job(render(ROOT / chart, release, options(command, "--set"), []))
    photos = write_photos(tmp_path / "food101", 4000)
    judge(job, TRAINER_RESULTS=str(tmp_path), TRAINER_DATASET_PATH=str(photos))


@pytest.mark.parametrize("chart", ["ddp", "fsdp"])
def test_the_readme_s_own_comparison_is_whole(tmp_path: Path, chart: str) -> None:
    command = own_command()
    settings = options(command, "--set")
    named = {setting.partition("=")[0].removeprefix("run.config.") for setting in settings}
    assert {"comparison", "model", "image_size", "global_batch_size", "micro_batch_size", "steps"} <= named
    assert f"charts/{chart}" in split(command)
    job = find_job(render(ROOT / "charts" / chart, chart, settings, []))
    photos = write_own_photos(tmp_path / "pets")
    judge(job, TRAINER_RESULTS=str(tmp_path / "results"), TRAINER_DATASET_PATH=str(photos))
