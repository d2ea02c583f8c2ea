"""What cannot run is refused before training starts: by setting and value; nothing stays behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import datasets
import pytest

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
def test_it_is_refused_by_name_and_leaves_nothing(
    setting: str, code: int, names: tuple[str, ...], scribbles: Path, tmp_path: Path
) -> None:
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
