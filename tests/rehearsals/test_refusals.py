"""What cannot run is refused before training starts: by setting, value and what is allowed; nothing stays behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import datasets
import pytest

from tests.programs import find_python


def rehearse(results: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        find_python(),
        "-m",
        "stratlab",
        "rehearse",
        "charts/ddp",
        "--results",
        results / "runs",
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def scribbles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set whose image column cannot be decoded."""
    features = datasets.Features({"image": datasets.Value("binary"), "label": datasets.Value("int64")})
    rows = {"image": [b"no picture"] * 200, "label": [0, 1] * 100}
    folder = tmp_path_factory.mktemp("data") / "scribbles"
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(folder))
    return folder


CASES = {
    "a setting that does not exist": (
        ["--set", "run.config.tpp=2"],
        2,
        ["at '/config'", "tpp: did you mean ", "allowed are the ", "run/values.schema.json"],
    ),
    "no nodes": (["--set", "run.nodes=0"], 2, ["at '/nodes': minimum: got 0, want 1"]),
    "no nodes, as an option": (["--nodes", "0"], 2, ["'--nodes'", "greater than or equal to 1"]),
    "a batch that does not divide": (
        ["--set", "run.config.global_batch_size=50"],
        2,
        [
            "run.config.global_batch_size=50",
            "run.config.micro_batch_size=32 x 2 processes = 64",
            "for example",
        ],
    ),
    "a path without data": (
        ["--set", "run.config.dataset_path=/nowhere/pets"],
        3,
        ["run.config.dataset_path='/nowhere/pets'", "no such folder"],
    ),
    "images that cannot be decoded": (
        ["--set", "run.config.dataset_path={scribbles}"],
        3,
        ["run.config.dataset_path='", "cannot be decoded", "(column 'image')"],
    ),
    "a column that is not there": (
        ["--set", "run.config.dataset_path={scribbles}", "--set", "run.config.image_column=photo"],
        2,
        ["run.config.image_column='photo'", "the data set has the columns image, label"],
    ),
    "three processes and two samples": (
        ["--processes", "3", "--set", "run.config.train_samples=2,run.config.global_batch_size=96"],
        2,
        ["run.config.global_batch_size=96", "there are only 2 training samples"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_with_a_reason_and_leaves_nothing(case: str, scribbles: Path, tmp_path: Path) -> None:
    options, code, words = CASES[case]
    done = rehearse(tmp_path / "out", *(option.format(scribbles=scribbles) for option in options))
    text = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == code, text
    for word in words:
        assert word in text
    assert not (tmp_path / "out").exists()
