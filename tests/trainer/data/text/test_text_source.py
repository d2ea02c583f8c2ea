from __future__ import annotations

import datasets
import numpy as np
import pytest

from tests.trainer.data.text.token_caches import text_config, write_jsonl
from trainer.data.text.text_source import load_questions
from trainer.failures import DataMissing
from trainer.launch.questions import check_run
from trainer.settings.config import Config, ConfigError


def numbered(count, originals=None):
    """`originals` questions, each asked in several ways."""
    return [
        {"query": f"q{i}", "response": f"a{i}", "original_question": f"o{i % originals if originals else i}"}
        for i in range(count)
    ]


def read(split):
    queries, responses = split.read(split.indices)
    assert [query[1:] for query in queries] == [response[1:] for response in responses]
    return queries


def splits(tmp_path, rows, **settings):
    path = write_jsonl(tmp_path / "math" / "train.jsonl", rows)
    return load_questions(text_config(tmp_path, dataset_path=str(path.parent), **settings))


def test_train_is_split_in_three_and_nothing_is_lost(tmp_path):
    found = splits(tmp_path, numbered(1000))
    parts = {name: read(split) for name, split in found.items()}
    assert {name: len(part) for name, part in parts.items()} == {
        "train": 855, "validation": 95, "test": 50
    }  # fmt: skip
    assert sorted(q for part in parts.values() for q in part) == sorted(f"q{i}" for i in range(1000))
    assert parts["train"] != sorted(parts["train"])


def test_ways_to_ask_one_question_stay_together(tmp_path):
    found = splits(tmp_path, numbered(1000, originals=90))
    originals = {name: {int(query[1:]) % 90 for query in read(split)} for name, split in found.items()}
    assert not originals["train"] & originals["test"] and not originals["train"] & originals["validation"]
    assert not originals["validation"] & originals["test"]
    assert sum(map(len, originals.values())) == 90
    assert 39 < len(found["test"]) <= 50 and 84 < len(found["validation"]) <= 96


def test_a_question_asked_all_the_time_is_trained_on(tmp_path):
    found = splits(tmp_path, numbered(100) + [{**row, "original_question": "x"} for row in numbered(900)])
    assert len(found["test"]) == 50 and len(found["train"]) == 900


def test_the_split_depends_on_neither_seed_nor_row_length(tmp_path):
    rows = numbered(300)
    one, other = splits(tmp_path, rows), splits(tmp_path, rows, seed=5, seq_len=64, train_samples=20)
    assert read(one["test"]) == read(other["test"]) and read(one["validation"]) == read(other["validation"])
    assert read(other["train"]) == read(one["train"])[:20]


def test_splits_that_are_there_are_used(tmp_path):
    write_jsonl(tmp_path / "math" / "train.jsonl", numbered(100))
    write_jsonl(tmp_path / "math" / "test.jsonl", numbered(7))
    found = load_questions(text_config(tmp_path, dataset_path=str(tmp_path / "math")))
    assert sorted(read(found["test"])) == [f"q{i}" for i in range(7)]
    assert len(found["validation"]) == 10 and len(found["train"]) == 90
    write_jsonl(tmp_path / "math" / "validation.jsonl", numbered(5))
    found = load_questions(text_config(tmp_path, dataset_path=str(tmp_path / "math")))
    assert {name: len(split) for name, split in found.items()} == {"train": 100, "validation": 5, "test": 7}


@pytest.mark.parametrize("form", ["parquet", "json file", "jsonl file", "save_to_disk", "saved with splits"])
def test_every_form_gives_the_same_questions(tmp_path, form):
    rows = numbered(60)
    folder, table = tmp_path / "math", datasets.Dataset.from_list(rows)
    folder.mkdir()
    if form == "parquet":
        table.to_parquet(str(folder / "train.parquet"))
    elif form == "json file":
        folder = folder / "MetaMathQA-395K.json"
        table.to_json(str(folder), lines=False)
    elif form == "jsonl file":
        folder = write_jsonl(folder / "some.jsonl", rows)
    elif form == "save_to_disk":
        table.save_to_disk(str(folder))
    else:
        datasets.DatasetDict({"train": table}).save_to_disk(str(folder))
    found = load_questions(text_config(tmp_path, dataset_path=str(folder)))
    reference = splits(tmp_path / "reference", rows)
    for name in ("train", "validation", "test"):
        assert read(found[name]) == read(reference[name])


def test_missing_columns_are_all_named(tmp_path):
    rows = [{"query": "a", "answer": "b"}] * 3
    with pytest.raises(ConfigError) as error:
        splits(tmp_path, rows)
    (problem,) = error.value.problems
    assert (
        "TRAINER_DATASET_PATH=" in problem
        and "no column response" in problem
        and "found query, answer" in problem
    )
    with pytest.raises(ConfigError) as error:
        splits(tmp_path / "other", [{"query": 3, "response": ["b"]}] * 3)
    assert len(error.value.problems) == 2 and "query holds int64, expected string" in error.value.problems[0]


def test_what_is_not_there_is_data_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataMissing, match=r"TRAINER_DATASET_PATH='.*nowhere': no such folder or file"):
        load_questions(text_config(tmp_path, dataset_path=str(tmp_path / "nowhere")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataMissing, match="expected a data set in `datasets` format"):
        load_questions(text_config(tmp_path, dataset_path=str(tmp_path / "empty")))
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataMissing, match="json, jsonl or parquet"):
        load_questions(text_config(tmp_path, dataset_path=str(tmp_path / "notes.txt")))
    with pytest.raises(DataMissing, match=r"TRAINER_DATASET='metamath_qa': .* .*did you mean metamathqa\?"):
        load_questions(Config(run="try", model="qwen_tiny", dataset="metamath_qa"))
    with pytest.raises(DataMissing, match="no documents for the train split"):
        splits(tmp_path, numbered(2))


def test_the_built_in_set_needs_no_files():
    found = load_questions(Config(run="x", model="qwen_tiny", dataset="arithmetic"))
    assert sum(map(len, found.values())) == 4000
    assert np.unique(np.concatenate([split.indices for split in found.values()])).size == 4000


@pytest.mark.parametrize(
    ("rows", "code", "told"),
    [
        ([{"prompt": "a", "completion": "b"}], 2, "no column query and no column response"),
        (None, 3, "no such folder or file"),
        (numbered(20), 0, ""),
    ],
    ids=["other columns", "not there", "as expected"],
)
def test_given_documents_are_looked_at_before_anything_starts(rows, code, told, tmp_path):
    """Where no token cache is there yet, and none is made for the check."""
    path = tmp_path / "qa" / "train.jsonl"
    if rows:
        write_jsonl(path, rows)
    config = text_config(tmp_path, dataset_path=str(path))
    named = {"strategy": config.strategy, "model": config.model, "seq_len": config.seq_len}
    batch = {"micro_batch_size": 1, "global_batch_size": 1, "results": config.results, "run": "r"}
    given = named | batch | {"dataset_path": path, "tokenizer": config.tokenizer}
    env = {f"TRAINER_{name.upper()}": str(value) for name, value in given.items()}
    found = check_run(env, elsewhere=False, replaces=False, opened=set())
    assert found["code"] == code, found
    assert told in " ".join(found["problems"])
    assert not list(tmp_path.rglob("tokens-*"))
