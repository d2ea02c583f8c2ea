"""What examples and README ask for passes the trainer's own check, so that it means something where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stratlab.helm import find_helm
from tests.charts.rendering import CHARTS, pick, render
from tests.documents.commands import split
from tests.documents.examples import (
    FROM_CHARTS,
    gpu_command,
    judge,
    options,
    own_command,
    render_told,
    write_own_photos,
    write_photos,
)


@pytest.mark.parametrize("command", FROM_CHARTS)
def test_charts_render_as_told_and_the_trainer_takes_it(command: str, tmp_path: Path) -> None:
    charts = [Path(word).name for word in split(command) if word.startswith("charts/")]
    release = charts[0] if "rehearse" in command else split(command)[2]
    job = render_told(command, charts[0], release)
    if charts[0] != "prepare" and "run.config.teacher" not in command:
        judge(job, TRAINER_RESULTS=str(tmp_path))


@pytest.mark.parametrize("chart", ["zeropp", "lora", "llm-5d"])
def test_a_chart_as_it_is_means_something(chart: str, tmp_path: Path) -> None:
    job = pick(render(find_helm(), CHARTS / chart), "PyTorchJob")
    asked = {"TRAINER_INIT": "scratch"} if chart == "lora" else {}  # which weights is for the user to say
    judge(job, TRAINER_RESULTS=str(tmp_path), **asked)


def test_the_readme_s_own_comparison_is_whole() -> None:
    settings = options(own_command(), "--set")
    named = {setting.partition("=")[0].removeprefix("run.config.") for setting in settings}
    assert {"comparison", "model", "image_size", "global_batch_size", "micro_batch_size", "steps"} <= named


@pytest.mark.parametrize(
    ("command", "write"),
    [(gpu_command(), lambda folder: write_photos(folder, 4000)), (own_command(), write_own_photos)],
    ids=["gpu", "own"],
)
def test_a_command_with_data_of_its_kind(command: str, write: Callable[[Path], Path], tmp_path: Path) -> None:
    (chart, *_) = [Path(word).name for word in split(command) if word.startswith("charts/")]
    job = render_told(command, chart, chart)
    judge(job, TRAINER_RESULTS=str(tmp_path / "results"), TRAINER_DATASET_PATH=str(write(tmp_path / "data")))
