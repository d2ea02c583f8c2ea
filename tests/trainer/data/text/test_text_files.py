"""Files as people have them: read whole, or refused in a sentence with the cure; never a part of them in silence."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from pathlib import Path

import datasets
import pytest

from tests.trainer.data.text.token_caches import text_config
from trainer import failures
from trainer.data.data_files import check_unread
from trainer.data.text.problems import text_problems
from trainer.data.text.text_source import check_given, load_questions
from trainer.failures import DataMissing
from trainer.launch.questions import check_run
from trainer.settings.config import ConfigError

ROWS = [{"query": f"wie groß ist {i}?", "response": f"a{i}"} for i in range(40)]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
ARRAY = json.dumps(ROWS, ensure_ascii=False)
CSV = 'query,response\r\n"Say ""hi"", please\r\nnow",hi\r\n'
BOM = b"\xef\xbb\xbf"


def parquet(path: Path) -> None:
    datasets.Dataset.from_list(ROWS).to_parquet(str(path))


def place(tmp_path: Path, files: dict[str, bytes | str | None]) -> Path:
    """A file by its name, or a folder where there are several, or one below it."""
    for name, content in files.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            parquet(path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    (only, *rest) = files
    return (
        tmp_path
        / "data"
        / (only if not rest and "/" not in only else only.split("/")[0] if "/" in only else "")
    )


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"a.JSONL": LINES}, "found .JSONL; rename it to a.jsonl"),
        ({"a.jsonl.gz": gzip.compress(LINES.encode())}, "unpack it: gunzip a.jsonl.gz"),
        ({"a.csv": CSV}, "found .csv; convert it: python -c "),
        ({"a.tsv": CSV}, r"sep='\\t'"),
        ({"a.txt": "one\ntwo\n"}, "found .txt; each row holds one question"),
        ({"a.docx": b"PK"}, "found .docx"),
        ({"a": LINES}, "a name without a suffix"),
        ({"a.jsonl": ""}, "is empty"),
        ({"a.jsonl": LINES.encode("utf-16")}, "UTF-16"),
        ({"a.jsonl": LINES.encode("latin1")}, "row 0 holds bytes that are no UTF-8"),
        ({"a.jsonl": LINES[:-9]}, "cannot be loaded"),
        ({"f/train.JSONL": LINES}, r"train\.JSONL: expected a json, jsonl or parquet file"),
        ({"f/train.jsonl": LINES, "f/more.JSONL": LINES}, "rename it to more.jsonl"),
        ({"f/train.jsonl.gz": gzip.compress(LINES.encode())}, "gunzip train.jsonl.gz"),
        ({"f/train.csv": CSV}, "convert it: python -c "),
        ({"f/train.txt": "one\ntwo\n"}, "holds train.txt, expected a json"),
        ({"f/train.jsonl": LINES, "f/test.csv": CSV}, r"test\.csv: expected"),
        ({"f/a.jsonl": LINES, "f/b.parquet": None}, "a.jsonl would not be read beside b.parquet"),
        ({"f/train.jsonl": LINES, "f/rest.jsonl": LINES}, "rest.jsonl would not be read beside train.jsonl"),
        ({"f/train.jsonl": LINES, "f/test.jsonl": ""}, r"test\.jsonl: is empty"),
        ({"f/train.jsonl": LINES, "f/Test.jsonl": LINES}, "Test.jsonl: rename Test.jsonl: .*, test$"),
        ({"f/train/a.jsonl": LINES, "f/Validation/a.jsonl": LINES}, "rename Validation: "),
        (
            {"f/data/train-00000-of-00003.parquet": None},
            "lacks data/train-00001-of-00003.parquet, data/train-00002",
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_what_is_not_read_is_refused_with_the_cure(files, sentence, tmp_path):
    config = text_config(tmp_path, dataset_path=str(place(tmp_path, files)))
    with pytest.raises(DataMissing, match=sentence) as failure:
        load_questions(config)
    assert failures.exit_code(failure.value) == 3
    if "no UTF-8" not in sentence:  # its texts are not read before they are needed
        with pytest.raises(DataMissing, match=sentence):
            check_given(config)


@pytest.mark.parametrize(
    "files",
    [
        {"a.jsonl": BOM + LINES.encode()},
        {"a.json": BOM + ARRAY.encode()},
        {"a.json": LINES},
        {"f/a.jsonl": LINES.replace("\n", "\r\n")},
        {"f/README.md": "# Ours", "f/train.jsonl": LINES, "f/notes.txt": "x", "f/LICENSE": "MIT"},
        {"f/data/train-00000-of-00001.parquet": None},
        {"f/.cache/old.csv": CSV, "f/train.jsonl": LINES},
    ],
    ids="+".join,
)
def test_what_is_read_is_read_whole(files, tmp_path):
    found = load_questions(text_config(tmp_path, dataset_path=str(place(tmp_path, files))))
    texts = [pair for split in found.values() for pair in zip(*split.read(split.indices), strict=True)]
    assert sorted(texts) == sorted((row["query"], row["response"]) for row in ROWS)


FORMS = {
    "alpaca": {"instruction": "Add.", "input": "2 3", "output": "5"},
    "chat": {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
    "sharegpt": {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
    "completion": {"prompt": "2+3=", "completion": " 5"},
    "answer": {"question": "2+3?", "answer": "5", "type": "easy", "id": 7},
    "plain": {"text": "a document"},
    "struct": {"qa": {"q": "2+3?", "a": "5"}},
    "mark in a name": {"\ufeffquery": "a", "response": "b"},
    "numbers": {"query": "2+3?", "response": 5},
}


@pytest.mark.parametrize("form", FORMS)
def test_other_columns_are_refused_before_anything_starts(form, tmp_path):
    path = place(tmp_path, {"a.jsonl": "".join(json.dumps(FORMS[form]) + "\n" for _ in range(20))})
    with pytest.raises(ConfigError) as failure:
        load_questions(text_config(tmp_path, dataset_path=str(path)))
    (said,) = failure.value.problems
    assert "expected" in said and str(path) in said
    assert ("docs/text_data.md" in said) == (form != "numbers")
    assert ("'\\ufeffquery'" in said) == (form == "mark in a name")


def test_a_question_without_an_original_is_one_of_its_own(tmp_path):
    """Else all of them were one group, and none could be held out."""
    rows = [{**row, "original_question": None} for row in ROWS[:-1]] + [
        {**ROWS[-1], "original_question": "o"}
    ]
    path = place(tmp_path, {"a.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    found = load_questions(text_config(tmp_path, dataset_path=str(path)))
    assert {name: len(split) for name, split in found.items()} == {"train": 34, "validation": 4, "test": 2}


def test_a_vocabulary_that_is_too_small_names_the_setting_that_widens_it(tmp_path):
    small = {"model": "qwen_tiny", "model_vocab": 200, "seq_len": 128}
    (said,) = text_problems(text_config(tmp_path, **small))
    assert "TRAINER_MODEL_VOCAB=259" in said and "has 259 tokens" in said and "room for 200" in said
    assert text_problems(text_config(tmp_path, **small | {"model_vocab": 259})) == []


def test_no_file_is_left_out_on_the_way_to_the_volume(tmp_path):
    """A folder of images may hold tables of its own."""
    folder = place(tmp_path, {"f/a.jsonl": LINES, "f/b.parquet": None})
    with pytest.raises(DataMissing, match="would not be read beside"):
        check_unread("--dataset", folder)
    (folder / "a.jsonl").unlink()
    check_unread("--dataset", folder)
    pictures = place(
        tmp_path, {"pictures/cat/1.png": "x", "pictures/dog/1.png": "x", "pictures/labels.csv": CSV}
    )
    check_unread("--dataset", pictures)


def test_a_file_of_another_kind_is_no_traceback_before_a_start(tmp_path):
    path = place(tmp_path, {"a.JSONL": LINES})
    env = {
        "RUN": "r",
        "RESULTS": str(tmp_path),
        "MODEL": "qwen_tiny",
        "DATASET_PATH": str(path),
        "SEQ_LEN": "128",
    }
    found = check_run(
        {f"TRAINER_{name}": value for name, value in env.items()},
        elsewhere=False,
        replaces=False,
        opened=set(),
    )
    assert found["code"] == 3 and "rename it to a.jsonl" in found["problems"][0]


DAYS = [f"20{i:02}-01-02" for i in range(40)]
MOMENTS = [f"{day}T03:04:05Z" for day in DAYS]
WORDS = [f"a{i}" for i in range(40)]


def lines(answers: list[str], first: int = 0) -> str:
    rows = [{"query": f"q{first + i}", "response": answer, "n": i} for i, answer in enumerate(answers)]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    "files",
    [
        {"train.jsonl": lines(DAYS)},
        {"train.jsonl": BOM + lines(MOMENTS).encode()},
        {"train.json": json.dumps([json.loads(line) for line in lines(DAYS).splitlines()], indent=1)},
        {"f/train.jsonl": lines(DAYS), "f/test.jsonl": lines(WORDS, 40)},
        {"f/train.jsonl": lines(WORDS), "f/test.jsonl": lines(DAYS, 40)},
        {"f/train-a.jsonl": lines(WORDS), "f/train-b.jsonl": lines(DAYS, 40)},
        {"f/train-a.jsonl": lines(DAYS), "f/train-b.jsonl": lines(WORDS, 40)},
    ],
    ids=["days", "moments", "array", "train", "test", "second file", "first file"],
)
def test_answers_that_look_like_dates_are_the_text_that_stands_in_the_file(files, tmp_path):
    said: list[str] = []
    config = text_config(tmp_path, dataset_path=str(place(tmp_path, files)))
    found = load_questions(config, tell=said.append)
    texts = [text for split in found.values() for text in split.read(split.indices)[1]]
    written = json.dumps(
        [content if isinstance(content, str) else content.decode() for content in files.values()]
    )
    assert len(texts) in (40, 80) and all(text in written for text in texts)
    assert [line for line in said if line.endswith(": n")]
    check_given(config)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"question": "q", "answer": "a"}, {"'test'", "question", "answer", "query", "response"}),
        ({"query": "q"}, {"'test'", "query", "response"}),
    ],
    ids=["other names", "one lacks"],
)
def test_a_split_with_other_columns_is_named_with_them(other, named, tmp_path):
    path = place(tmp_path, {"f/train.jsonl": LINES, "f/test.jsonl": json.dumps(other) + "\n"})
    with pytest.raises(ConfigError) as failure:
        load_questions(text_config(tmp_path, dataset_path=str(path)))
    (said,) = failure.value.problems
    assert named <= {*re.sub("[,;:]", "", said).split()}, said


def test_files_of_one_split_with_other_columns_are_both_named(tmp_path):
    other = json.dumps({"question": "q", "answer": "a"}) + "\n"
    path = place(tmp_path, {"f/train-a.jsonl": LINES, "f/train-b.jsonl": other})
    with pytest.raises(DataMissing) as failure:
        load_questions(text_config(tmp_path, dataset_path=str(path)))
    said = {*re.sub("[,;:]", "", str(failure.value)).split()}
    assert {"'train'", "question", "answer", "query", "response"} <= said, failure.value


def test_a_split_may_have_a_column_more(tmp_path):
    path = place(tmp_path, {"f/train.jsonl": LINES, "f/test.jsonl": lines(WORDS)})
    assert len(load_questions(text_config(tmp_path, dataset_path=str(path)))["test"]) == 40


COLUMNS = {name: [row[name] for row in ROWS] for name in ("query", "response")}
OBJECTS = {
    "columns": COLUMNS,
    "numbered columns": {name: dict(enumerate(texts)) for name, texts in COLUMNS.items()},
    "rows in a field": {"data": ROWS},
    "rows in several fields": {"train": ROWS, "test": ROWS[:3], "version": 1},
}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("form", OBJECTS)
def test_a_file_of_one_object_is_refused_with_a_command_that_cures_it(form, indent, tmp_path, monkeypatch):
    path = place(tmp_path, {"f/train.json": json.dumps(OBJECTS[form], indent=indent, ensure_ascii=False)})
    config = text_config(tmp_path, dataset_path=str(path))
    with pytest.raises(ConfigError) as failure:
        load_questions(config)
    cure = shlex.split("python -c " + failure.value.problems[-1].split("python -c ", 1)[1])
    monkeypatch.chdir(path)
    exec(cure[2], {})
    (path / "train.json").unlink()
    found = load_questions(config)
    texts = [pair for split in found.values() for pair in zip(*split.read(split.indices), strict=True)]
    assert {*texts} == {(row["query"], row["response"]) for row in ROWS}


@pytest.mark.parametrize(
    ("rows", "numbers"),
    [(ROWS[:2], {"2"}), ([ROWS[0]] * 50, {"50", "1"})],
    ids=["too few", "one question"],
)
def test_a_split_without_documents_says_how_many_there_are_and_of_how_many_questions(rows, numbers, tmp_path):
    path = place(tmp_path, {"a.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    with pytest.raises(DataMissing) as failure:
        load_questions(text_config(tmp_path, dataset_path=str(path)))
    assert numbers <= {*str(failure.value).split()}
    assert "TRAINER_VALIDATION_FRACTION" in str(failure.value)
