"""The commands with arguments of their own name these, and no variable that their reader has not set."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest
from PIL import Image

from trainer.evaluation.command import main as evaluate
from trainer.prepare.command import main as prepare
from trainer.settings.config import Config


def write_pictures(folder: Path, columns: tuple[str, ...] = ("image",)) -> Path:
    folder.mkdir()
    rows = {"image": [Image.new("RGB", (4, 4), (i, 0, 0)) for i in range(8)]}
    datasets.Dataset.from_dict(rows).to_parquet(str(folder / "train.parquet"))
    return folder


@pytest.mark.parametrize(
    ("rows", "more", "code", "named"),
    [
        ([{"prompt": "a", "completion": "b"}], {}, 2, "--dataset"),
        (None, {}, 3, "--dataset"),
        ([{"query": "a", "response": "b"}], {}, 3, "--dataset"),
        ([{"query": f"{i}", "response": "b"} for i in range(20)], {"--tokenize": "none"}, 3, "--tokenize"),
        (
            [{"query": "q" * 20 + str(i), "response": "b"} for i in range(20)],
            {"--seq-len": "8"},
            2,
            "--seq-len",
        ),
    ],
    ids=["columns", "not there", "too few", "tokenizer", "length"],
)
def test_of_a_token_cache(rows, more, code, named, tmp_path, capsys):
    data, volume = tmp_path / "data", tmp_path / "volume"
    volume.mkdir()
    if rows:
        data.mkdir()
        (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"--dataset": data, "--tokenize": "bytes", "--to": volume, **more}
    if "none" in more.values():
        given["--tokenize"] = tmp_path / "none"
    assert prepare([str(part) for option in given.items() for part in option]) == code
    said = capsys.readouterr().err
    assert named in said and "TRAINER_" not in said


def test_of_pictures_without_classes(tmp_path, capsys):
    data = write_pictures(tmp_path / "data")
    assert prepare(["--dataset", str(data), "--name", "x", "--to", str(tmp_path)]) == 3
    said = capsys.readouterr().err
    assert f"--dataset {str(data)!r}" in said and "TRAINER_" not in said and "digits" not in said


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["--dataset-path", "none"], 3, "--dataset-path="),
        ([], 3, "--dataset-path"),
        (["--weights", "none"], 2, "--weights="),
        (["--dataset-path", "pictures"], 3, "--dataset-path="),
        (["--dataset-path", "classes"], 2, "--weights="),
    ],
    ids=["data not there", "the run's data not there", "weights not there", "no classes", "other classes"],
)
def test_of_an_evaluation(arguments, code, named, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "pictures")
    for name in "cd":
        for number in range(9):
            file = tmp_path / "classes" / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4), (number, ord(name), 0)).save(file)
    run = tmp_path / "default" / "try"
    (run / "model").mkdir(parents=True)
    described = {"stratlab_model": "cnn", "class_names": ["a", "b"], "channels": 3}
    (run / "model" / "config.json").write_text(json.dumps(described))
    config = Config(run="try", model="cnn", dataset_path=str(tmp_path / "gone"))
    (run / "config.json").write_text(json.dumps({"config": config.model_dump(), "resolved": {}}))
    assert evaluate([str(run), *arguments, "--device", "cpu"]) == code
    said = capsys.readouterr().err
    assert named in said and "TRAINER_" not in said
