"""The commands with arguments of their own name these, and no variable that their reader has not set."""

from __future__ import annotations

import json

import pytest

from stratlab_spec.settings.config import Config
from tests.codes import find_codes
from tests.trainer.data.pictures import pngs, write
from trainer.evaluation.command import main as evaluate
from trainer.prepare.preparation import main as prepare


@pytest.mark.parametrize(
    ("rows", "more", "code", "named", "cause"),
    [
        ([{"prompt": "a", "completion": "b"}], {}, 2, "--dataset", "SL-text-column-absent"),
        (None, {}, 3, "--dataset", "SL-text-data-absent"),
        (
            [{"query": f"{i}", "response": "b"} for i in range(20)],
            {"--tokenize": "/none"},
            3,
            "--tokenize",
            "SL-tokenizer-folder-absent",
        ),
        (
            [{"query": "q" * 20 + str(i), "response": "b"} for i in range(20)],
            {"--seq-len": "8"},
            2,
            "--seq-len",
            "SL-seq-len-too-short",
        ),
    ],
)
def test_of_a_token_cache(rows, more, code, named, cause, tmp_path, capsys):
    data, volume = tmp_path / "data", tmp_path / "volume"
    volume.mkdir()
    if rows:
        write(data, {"train.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode()})
    given = {"--dataset": data, "--tokenize": "bytes", "--to": volume, **more}
    assert prepare([str(part) for option in given.items() for part in option]) == code
    said = capsys.readouterr().err
    assert find_codes(said) == [cause] and named in said and "TRAINER_" not in said


@pytest.mark.parametrize(
    ("arguments", "code", "named", "cause"),
    [
        ([], 3, "--dataset-path", None),
        (["--weights", "none"], 2, "--weights=", None),
        (["--dataset-path", "pictures"], 3, "--dataset-path=", "SL-folder-unlabelled"),
        (["--dataset-path", "classes"], 2, "--weights=", "SL-exported-classes"),
    ],
)
def test_of_an_evaluation_and_of_pictures(arguments, code, named, cause, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "pictures", {f"{i}.png": content for i, content in enumerate(pngs(8))})
    write(tmp_path / "classes", {f"{name}/{i}.png": pngs(1, i)[0] for name in "cd" for i in range(9)})
    described = {"stratlab_model": "cnn", "class_names": ["a", "b"], "channels": 3}
    config = Config(run="try", model="cnn", dataset_path=str(tmp_path / "gone"))
    run = {"config": config.model_dump(), "resolved": {}}
    files = {"model/config.json": json.dumps(described).encode(), "config.json": json.dumps(run).encode()}
    folder = write(tmp_path / "default" / "try", files)
    assert evaluate([str(folder), *arguments, "--device", "cpu"]) == code
    said = capsys.readouterr().err
    assert named in said and "TRAINER_" not in said and cause in (None, *find_codes(said))
    if cause == "SL-folder-unlabelled":
        assert prepare(["--dataset", "./pictures", "--name", "x", "--to", str(tmp_path)]) == 3
        said = capsys.readouterr().err
        assert find_codes(said) == [cause] and f"--dataset '{tmp_path}/pictures'" in said
