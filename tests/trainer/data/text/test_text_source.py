"""Questions and answers as people have them: read whole, split once, or refused with the cure."""

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import datasets
import pytest

from stratlab_spec.exit_codes import DATA_MISSING, DataMissing, exit_code
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import refuses
from tests.trainer.data.text.token_caches import put, text_config, write_jsonl
from trainer.data.text.text_source import check_given, load_texts


def numbered(count, originals=None):
    return [
        {"query": f"q{i}", "response": f"a{i}", "original_question": f"o{i % originals if originals else i}"}
        for i in range(count)
    ]


def read(split):
    pairs = [(asked.text, answer.text) for asked, answer in split.read(split.indices)]
    assert all(query[1:] == response[1:] for query, response in pairs)
    return [query for query, _ in pairs]


def splits(tmp_path, rows, **settings):
    path = write_jsonl(tmp_path / "math" / "train.jsonl", rows)
    return load_texts(text_config(tmp_path, dataset_path=str(path.parent), **settings))


def test_train_is_split_in_three_and_nothing_is_lost(tmp_path):
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


def test_what_is_not_there_is_data_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    few = write_jsonl(tmp_path / "few.jsonl", numbered(2))
    silent = write_jsonl(tmp_path / "silent.jsonl", [{"query": f"q{i}", "response": ""} for i in range(40)])
    for config, code, told in (
        (text_config(tmp_path, dataset_path=str(tmp_path / "nowhere")), "SL-text-data-absent", "nowhere"),
        (text_config(tmp_path, dataset_path=str(tmp_path / "empty")), "SL-text-data-unloadable", "empty"),
        (Config(run="x", model="qwen_tiny", dataset="metamath_qa"), "SL-text-data-unloadable", "metamathqa"),
        (text_config(tmp_path, dataset_path=str(few)), "SL-text-split-empty", " 2 "),
        (text_config(tmp_path, dataset_path=str(silent)), "SL-text-none-whole", " 40 "),
    ):
        with refuses(DataMissing, code, told):
            load_texts(config)


ROWS = [{"query": f"wie groß ist {i}?", "response": f"a{i}"} for i in range(40)]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
CSV = 'query,response\r\n"Say ""hi"", please\r\nnow",hi\r\n'
BOM = b"\xef\xbb\xbf"


def config_of(tmp_path: Path, files: dict[str, Any]):
    """Of a file by its name, or the folder f where names begin with it; None = parquet."""
    put(tmp_path, {name: ROWS if content is None else content for name, content in files.items()})
    return text_config(tmp_path, dataset_path=str(tmp_path / "data" / next(iter(files)).split("/")[0]))


def texts_of(config) -> list[tuple[str, str]]:
    found = load_texts(config).values()
    return [(asked.text, answer.text) for split in found for asked, answer in split.read(split.indices)]


@pytest.mark.parametrize(
    ("files", "code", "told"),
    [
        ({"a.JSONL": LINES}, "SL-text-file-kind", "rename it to a.jsonl"),
        ({"a.jsonl.zip": gzip.compress(LINES.encode())}, "SL-text-file-kind", "unpack"),
        ({"a.CSV.gz": gzip.compress(CSV.encode())}, "SL-text-file-kind", "a.csv.gz"),
        ({"a.xlsx": CSV}, "SL-text-file-kind", "docs/text_data.md"),
        (
            {"f/a.csv": CSV, "f/b.csv": CSV.replace("query", "q")},
            "SL-files-columns-differ",
            "another file has q",
        ),
        ({"a": LINES}, "SL-text-file-kind", "docs/text_data.md"),
        ({"a.jsonl": ""}, "SL-text-file-empty", "/a.jsonl"),
        ({"a.jsonl": LINES.encode("utf-16")}, "SL-text-file-utf-16", "iconv -f utf-16"),
        ({"a.jsonl": LINES.encode("latin1")}, "SL-text-not-utf-8", "row 0 "),
        ({"a.csv": "query,response\nü,a\n".encode("latin1")}, "SL-text-data-unloadable", "iconv -f latin1"),
        ({"a.jsonl": LINES[:-9]}, "SL-text-data-unloadable", "/a.jsonl"),
        ({"f/train.jsonl": LINES, "f/test.csv": CSV}, "SL-text-kinds-mixed", "test.csv"),
        ({"f/train.md": "one\ntwo\n"}, "SL-folder-without-data", "train.md"),
        ({"f/a.jsonl": LINES, "f/b.parquet": None}, "SL-text-kinds-mixed", "a.jsonl"),
        ({"f/train.jsonl": LINES, "f/rest.jsonl": LINES}, "SL-data-files-unread", "rest.jsonl"),
        ({"f/train.jsonl": LINES, "f/Test.jsonl": LINES}, "SL-split-name-case", "Test.jsonl"),
        ({"f/train/a.jsonl": LINES, "f/Validation/a.jsonl": LINES}, "SL-split-name-case", "Validation"),
        ({"f/data/train-00000-of-00003.parquet": None}, "SL-data-parts-absent", "train-00001-of-00003"),
        ({"f/train-a.jsonl": LINES, "f/train-b.jsonl": '{"q": "a"}\n'}, "SL-files-columns-differ", "'train'"),
    ],
)
def test_what_is_not_read_is_refused_with_the_cure(files, code, told, tmp_path):
    config = config_of(tmp_path, files)
    looks = [load_texts, check_given]
    for look in looks[: 1 if code == "SL-text-not-utf-8" else 2]:  # texts are not read before they are needed
        with refuses(DataMissing, code, told) as failure:
            look(config)
        assert exit_code(failure.value) == DATA_MISSING


@pytest.mark.parametrize(
    "files",
    [
        {"a.jsonl": BOM + LINES.encode()},
        {"a.json": BOM + json.dumps(ROWS, ensure_ascii=False).encode()},
        {"a.json": LINES},
        {"f/README.md": "# Ours", "f/train.jsonl": LINES, "f/notes.txt": "x", "f/.cache/old.csv": CSV},
        {"f/data/train-00000-of-00001.parquet": None},
    ],
    ids="+".join,
)
def test_what_is_read_is_read_whole(files, tmp_path):
    found = texts_of(config_of(tmp_path, files))
    assert sorted(found) == sorted((row["query"], row["response"]) for row in ROWS)


@pytest.mark.parametrize(
    ("row", "code", "told"),
    [
        (
            {"qa": {"q": "2+3?", "a": "5"}},
            "SL-text-form-unknown",
            "TRAINER_TEXT_COLUMNS=query=qa.q,response=qa.a",
        ),
        (
            {"talk": [{"role": "user", "content": "Hi"}]},
            "SL-text-form-unknown",
            "TRAINER_TEXT_COLUMNS=messages=talk",
        ),
        ({"body": "Hi", "n": 1}, "SL-text-form-unknown", "TRAINER_TEXT_COLUMNS=text=body"),
        ({"\ufeffquery": "a", "response": "b"}, "SL-text-form-unknown", "'\\ufeffquery'"),
        ({"query": "2+3?", "response": 5}, "SL-text-column-kind", "int64"),
        ({"query": ["2+3?"], "response": "5"}, "SL-text-column-kind", "List"),
        ({"messages": '[{"role": "user", "content": "Hi"}]'}, "SL-text-column-kind", "messages"),
    ],
)
def test_other_columns_are_refused_before_anything_starts(row, code, told, tmp_path):
    config = config_of(tmp_path, {"a.jsonl": (json.dumps(row) + "\n") * 20})
    with refuses(ConfigError, code, told, config.dataset_path):
        check_given(config)


def lines(answers: list[str], first: int = 0) -> str:
    rows = [{"query": f"q{first + i}", "response": answer, "n": i} for i, answer in enumerate(answers)]
    return "".join(json.dumps(row) + "\n" for row in rows)


DAYS = [f"20{i:02}-01-02" for i in range(40)]
MOMENTS = lines([f"{day}T03:04:05Z" for day in DAYS])
WORDS = [f"a{i}" for i in range(40)]


@pytest.mark.parametrize(
    "files",
    [
        {"train.jsonl": BOM + MOMENTS.encode()},
        {"f/train.jsonl": lines(WORDS), "f/test.jsonl": lines(DAYS, 40)},
        {"f/train-a.jsonl": lines(WORDS), "f/train-b.jsonl": lines(DAYS, 40)},
    ],
    ids=["moments", "test", "second file"],
)
def test_answers_that_look_like_dates_are_the_text_that_stands_in_the_file(files, tmp_path):
    config = config_of(tmp_path, files)
    texts = [answer for _, answer in texts_of(config)]
    written = json.dumps([c if isinstance(c, str) else c.decode() for c in files.values()])
    assert len(texts) in (40, 80) and all(text in written for text in texts)
    check_given(config)


@pytest.mark.parametrize(
    ("form", "indent"),
    [
        ({name: [row[name] for row in ROWS] for name in ("query", "response")}, None),
        ({name: {i: row[name] for i, row in enumerate(ROWS)} for name in ("query", "response")}, 1),
        ({"train": ROWS, "test": ROWS[:3], "version": 1}, None),
    ],
    ids=["columns", "numbered columns", "rows in fields"],
)
def test_a_file_of_one_object_is_refused_with_a_command_that_cures_it(form, indent, tmp_path, monkeypatch):
    config = config_of(tmp_path, {"f/train.json": json.dumps(form, indent=indent, ensure_ascii=False)})
    with refuses(ConfigError, "SL-json-one-object") as failure:
        load_texts(config)
    cure = shlex.split("python -c " + failure.value.problems[-1].split("python -c ", 1)[1])
    monkeypatch.chdir(config.dataset_path)
    exec(cure[2], {})
    Path("train.json").unlink()
    assert {*texts_of(config)} == {(row["query"], row["response"]) for row in ROWS}
