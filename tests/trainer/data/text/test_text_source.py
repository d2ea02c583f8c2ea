from __future__ import annotations

import datasets
import pytest

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import Config
from tests.codes import find_codes
from tests.trainer.data.text.token_caches import text_config, write_jsonl
from trainer.data.text.text_source import load_questions
from trainer.launch.batch_validation import check_run


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
    """Whatever the seed and the length of rows."""
    found = splits(tmp_path, numbered(1000))
    parts = {name: read(split) for name, split in found.items()}
    assert [len(parts[name]) for name in ("train", "validation", "test")] == [855, 95, 50]
    assert sorted(q for part in parts.values() for q in part) == sorted(f"q{i}" for i in range(1000))
    assert parts["train"] != sorted(parts["train"])
    other = splits(tmp_path, numbered(1000), seed=5, seq_len=64, train_samples=20)
    assert read(other["test"]) == parts["test"] and read(other["validation"]) == parts["validation"]
    assert read(other["train"]) == parts["train"][:20]


def test_ways_to_ask_one_question_stay_together(tmp_path):
    found = splits(tmp_path, numbered(1000, originals=90))
    originals = {name: {int(query[1:]) % 90 for query in read(split)} for name, split in found.items()}
    assert sum(map(len, originals.values())) == 90 == len(set.union(*originals.values()))
    assert 39 < len(found["test"]) <= 50 and 84 < len(found["validation"]) <= 96
    often = [{**row, "original_question": "x"} for row in numbered(900)]
    assert [len(split) for split in splits(tmp_path, numbered(100) + often).values()] == [900, 50, 50]


def test_splits_that_are_there_are_used(tmp_path):
    write_jsonl(tmp_path / "math" / "test.jsonl", numbered(7))
    found = splits(tmp_path, numbered(100))
    assert sorted(read(found["test"])) == [f"q{i}" for i in range(7)]
    assert len(found["validation"]) == 10 and len(found["train"]) == 90
    write_jsonl(tmp_path / "math" / "validation.jsonl", numbered(5))
    found = splits(tmp_path, numbered(100))
    assert {name: len(split) for name, split in found.items()} == {"train": 100, "validation": 5, "test": 7}


def test_every_form_gives_the_same_questions(tmp_path):
    rows = numbered(60)
    reference, table = splits(tmp_path / "reference", rows), datasets.Dataset.from_list(rows)
    (tmp_path / "files").mkdir()
    table.to_parquet(str(tmp_path / "files" / "train.parquet"))
    table.to_json(str(tmp_path / "MetaMathQA-395K.json"), lines=False)
    write_jsonl(tmp_path / "some.jsonl", rows)
    table.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": table}).save_to_disk(str(tmp_path / "split"))
    for name in ("files", "MetaMathQA-395K.json", "some.jsonl", "saved", "split"):
        found = load_questions(text_config(tmp_path, dataset_path=str(tmp_path / name)))
        for part, wanted in reference.items():
            assert read(found[part]) == read(wanted), (name, part)


def test_what_is_not_there_is_data_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    few = write_jsonl(tmp_path / "few.jsonl", numbered(2))
    for config, code, told in (
        (text_config(tmp_path, dataset_path=str(tmp_path / "nowhere")), "SL-text-data-absent", "nowhere"),
        (text_config(tmp_path, dataset_path=str(tmp_path / "empty")), "SL-text-data-unloadable", "empty"),
        (Config(run="x", model="qwen_tiny", dataset="metamath_qa"), "SL-text-data-unloadable", "metamathqa"),
        (text_config(tmp_path, dataset_path=str(few)), "SL-text-split-empty", " 2 "),
    ):
        with pytest.raises(DataMissing) as failure:
            load_questions(config)
        assert find_codes(failure.value) == [code] and told in str(failure.value)


@pytest.mark.parametrize(
    ("rows", "code", "told"),
    [
        ([{"prompt": "a", "completion": "b"}], 2, ["SL-text-column-absent"]),
        (None, 3, ["SL-text-data-absent"]),
        (numbered(20), 0, []),
    ],
    ids=["other columns", "not there", "as expected"],
)
def test_given_documents_are_looked_at_before_anything_starts(rows, code, told, tmp_path):
    """Where no token cache is there yet, and none is made for the check."""
    path = tmp_path / "qa" / "train.jsonl"
    if rows:
        write_jsonl(path, rows)
    given = {"model": "qwen_tiny", "seq_len": 128, "micro_batch_size": 1, "global_batch_size": 1}
    given |= {"results": tmp_path, "run": "r", "dataset_path": path}
    env = {f"TRAINER_{name.upper()}": str(value) for name, value in given.items()}
    found = check_run(env, elsewhere=False, replaces=False, opened=set())
    assert found["code"] == code and find_codes(found["problems"]) == told, found
    assert not list(tmp_path.rglob("tokens-*"))
