"""Text files as people have them: what the model reads of them, and what of it it learns."""

import csv
import gzip
import io
import json
import lzma
from itertools import chain, pairwise
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from stratlab_spec.settings.config import ConfigError
from tests.codes import refuses
from tests.trainer.data.text.token_caches import (
    COUNT,
    FOUR_TURNS,
    READ_FOUR_TURNS,
    Row,
    answer,
    build,
    chat,
    every,
    find_documents,
    lines,
    put,
    read,
    show,
    text_config,
    user,
)
from trainer.data.text.text_source import check_given, load_texts
from trainer.data.text.token_rows import IGNORED
from trainer.launch.batch_validation import check_run


def table(rows: list[list[str]], **how: Any) -> str:
    written = io.StringIO(newline="")
    csv.writer(written, **how).writerows(rows)
    return written.getvalue()


def sharegpt(n: int) -> dict[str, Any]:
    return {"conversations": [{"from": "human", "value": f"Hi {n}"}, {"from": "gpt", "value": "Yes"}]}


ALPACA: Row = lambda n: {"instruction": "Add.", "input": f"{n} 3", "output": f"{n + 3}"}  # noqa: E731
PAIR: Row = lambda n: {"query": f"q{n}", "response": f"a{n}"}  # noqa: E731
SUM: Row = lambda n: {"prompt": f"{n}+3=", "completion": f" {n + 3}"}  # noqa: E731
READ_PAIR: Row = lambda n: user(f"q{n}") + answer(f"a{n}")  # noqa: E731
READ_ALPACA: Row = lambda n: user(f"Add.\n{n} 3") + answer(f"{n + 3}")  # noqa: E731
READ_COLOUR: Row = lambda n: user(f"Colour {n}?") + answer("red")  # noqa: E731
READ_TEXT: Row = lambda n: f"t[ext {n}<end>]"  # noqa: E731
BOM = b"\xef\xbb\xbf"
BRIEF = "<start>system\nBe short.<end>\n"
PAIRS = [[f"q{n}", f"a{n}"] for n in range(COUNT)]
QUOTED = [[f'Say "hi", please\r\n{n}', "NA"] for n in range(COUNT)]
NUMBERS = [[f"{n};0?", "007"] for n in range(COUNT)]
PERSIAN = "سلام می\u200cخواهم 👩\u200d🔬"  # right to left, zero-width joiners

ROWS: dict[str, tuple[Row, str, Row]] = {
    "1 alpaca": (ALPACA, "", READ_ALPACA),
    "2 alpaca, empty input": (
        lambda n: {"instruction": f"Colour {n}?", "input": ("", None)[n % 2], "output": "red"},
        "",
        READ_COLOUR,
    ),
    "2 alpaca, no input": (lambda n: {"instruction": f"Colour {n}?", "output": "red"}, "", READ_COLOUR),
    "3 chat": (
        lambda n: chat(("system", "Be short."), ("user", f"Hi {n}"), ("assistant", "Hello")),
        "",
        lambda n: BRIEF + user(f"Hi {n}") + answer("Hello"),
    ),
    "5 sharegpt": (sharegpt, "", lambda n: user(f"Hi {n}") + answer("Yes")),
    "5 sharegpt with a system column": (
        lambda n: {"system": "Be short.", **sharegpt(n)},
        "",
        lambda n: BRIEF + user(f"Hi {n}") + answer("Yes"),
    ),
    "6 prompt and completion": (SUM, "", lambda n: f"{n}+3=[ {n + 3}<end>]"),
    "6 by setting": (
        SUM, "query=prompt,response=completion", lambda n: user(f"{n}+3=") + answer(f" {n + 3}"),
    ),
    "7 more columns": (
        lambda n: {"question": f"{n}+3?", "answer": "5", "type": "easy", "id": n},
        "query=question,response=answer",
        lambda n: user(f"{n}+3?") + answer("5"),
    ),
    "7 system and context": (
        lambda n: {"frage": f"{n}?", "antwort": "5", "wer": "Be short.", "text": "mehr"},
        "query=frage,response=antwort,system=wer,context=text",
        lambda n: BRIEF + user(f"{n}?\nmehr") + answer("5"),
    ),
    "8 text": (lambda n: {"text": f"text {n}"}, "", READ_TEXT),
    "15 what looks special": (
        lambda n: {"query": f"{n}<|im_end|>", "response": f"{PERSIAN}<|im_start|>user\nno"},
        "",
        lambda n: user(f"{n}<|im_end|>") + answer(f"{PERSIAN}<|im_start|>user\nno"),
    ),
}  # fmt: skip
"""Rows of a.jsonl, the setting text_columns, and what is read of each row."""
SHARDS = {
    f"data/train-0000{part}-of-00002.parquet": [
        {"qa": {"q": f"q{n}", "a": f"a{n}"}, "id": n} for n in range(part * 20, part * 20 + 20)
    ]
    for part in (0, 1)
}
FORMS: dict[str, tuple[dict[str, Any], str, Row]] = {
    name: ({"a.jsonl": lines(row)}, columns, wanted) for name, (row, columns, wanted) in ROWS.items()
} | {
    "4 chat of four turns": (FOUR_TURNS, "", READ_FOUR_TURNS),
    "8 lines": ({"a.txt": "".join(f"text {n}\r\n" for n in range(COUNT))}, "", READ_TEXT),
    "9 csv": (
        {"a.csv": table([["query", "response"], *QUOTED])},
        "",
        lambda n: user(f'Say "hi", please\r\n{n}') + answer("NA"),
    ),
    "9 csv of numbers": (
        {"a.csv": BOM + table([["Question", "Answer"], *NUMBERS], delimiter=";").encode()},
        "",
        lambda n: user(f"{n};0?") + answer("007"),
    ),
    "10 array": ({"a.json": BOM + json.dumps([PAIR(n) for n in range(COUNT)]).encode()}, "", READ_PAIR),
    "11 structs in shards": (SHARDS, "query=qa.q,response=qa.a", READ_PAIR),
    "12 gz": ({"a.jsonl.gz": gzip.compress(lines(ALPACA).encode())}, "", READ_ALPACA),
    "12 xz of tab-separated values": (
        {"a.tsv.xz": lzma.compress(table([["query", "response"], *PAIRS], delimiter="\t").encode())},
        "",
        READ_PAIR,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_read_and_learned_is_what_stands_there(form, tmp_path):
    files, columns, row = FORMS[form]
    splits, tally = read(text_config(tmp_path, dataset_path=str(put(tmp_path, files)), text_columns=columns))
    assert sorted(every(splits)) == sorted(row(n) for n in range(COUNT))
    assert tally.documents == COUNT and {*tally.counts} <= {"control"}


@pytest.mark.parametrize("packing", [True, False])
def test_the_rows_of_a_rank_have_these_labels(packing, tmp_path):
    path = str(put(tmp_path, FOUR_TURNS))
    data = build(text_config(tmp_path, dataset_path=path, packing=packing, seq_len=256))
    found = []
    for _, ids, labels in chain(*map(find_documents, (data.train, data.validation, data.test))):
        assert all(label in (IGNORED, after) for label, after in zip(labels, [*ids[1:], None], strict=True))
        learned = [False, *(label != IGNORED for label in labels[:-1])]
        found += show([SimpleNamespace(ids=ids, learned=learned)])
    texts = [text.replace("<pad>", "") for text in found]
    assert sorted(filter(None, texts)) == sorted(map(READ_FOUR_TURNS, range(COUNT)))


@pytest.mark.parametrize(
    "files",
    [
        {"train.jsonl": lines(PAIR), "test.jsonl": lines(PAIR, 100, 3)},
        {
            f"{split}.csv.gz": gzip.compress(table([["query", "response"], *rows]).encode())
            for split, rows in (("train", PAIRS), ("test", [["q100", "a"], ["q101", "a"], ["q102", "a"]]))
        },
        {
            f"data/{split}-0000{part}-of-00002.parquet": [PAIR(first + part * half + n) for n in range(half)]
            for split, first, half in (("train", 0, 20), ("test", 100, 2))
            for part in (0, 1)
        },
    ],
    ids=["jsonl", "csv.gz", "parquet in shards"],
)
def test_splits_are_those_of_the_names(files, tmp_path):
    splits, _ = read(text_config(tmp_path, dataset_path=str(put(tmp_path, files))))
    assert {n[n.index("q") + 1 :].split("<")[0] for n in splits["test"]} >= {"100", "101", "102"}
    assert len(splits["train"]) + len(splits["validation"]) == COUNT


def test_splits_of_a_saved_data_set_may_have_other_usual_names(tmp_path):
    counts = {"training": COUNT, "dev": 7, "eval": 5}
    tables = {name: datasets.Dataset.from_list([*map(PAIR, range(count))]) for name, count in counts.items()}
    datasets.DatasetDict(tables).save_to_disk(str(tmp_path / "data"))
    found = load_texts(text_config(tmp_path, dataset_path=str(tmp_path / "data")))
    assert {name: len(texts) for name, texts in found.items()} == {"train": COUNT, "validation": 7, "test": 5}


ODD = {
    3: {"query": "q", "response": ""}, 9: {"query": "q", "response": " \n"},
    12: {"query": "q", "response": None}, 20: {"query": "q20", "response": "a" * 50_000},
}  # fmt: skip


@pytest.mark.parametrize(("long_documents", "kind"), [("cut", "cut"), ("drop", "over")])
def test_rows_without_a_text_and_rows_that_are_too_long_are_counted(long_documents, kind, tmp_path):
    path = put(tmp_path, {"a.jsonl": lines(lambda n: ODD.get(n) or PAIR(n), count=200)})
    config = text_config(tmp_path, dataset_path=str(path), long_documents=long_documents)
    splits, tally = read(config)
    assert tally.counts == {"empty": 3, kind: 1} and tally.documents == 200
    assert tally.first == {"empty": 3, kind: 20}
    found = every(splits)
    assert len(found) == (197 if kind == "cut" else 196)
    if kind == "cut":
        (long,) = [text for text in found if "aaaa" in text]
        assert long.startswith(user("q20") + "<start>assistant\n[aaa") and long.endswith("a]")
    data = build(config)
    assert sum(facts["documents_left_out"] for facts in data.facts.values()) == 200 - len(found)


def test_plain_text_continues_in_the_next_row_and_each_token_is_learned_once(tmp_path):
    text = "".join(chr(97 + i % 26) for i in range(1000))
    path = put(tmp_path, {"a.jsonl": lines(lambda n: {"text": text if n == 20 else f"text {n}"})})
    splits, tally = read(text_config(tmp_path, dataset_path=str(path)))
    parts = [document for documents in splits.values() for document in documents if len(document) > 100]
    assert len(parts) == 8 and tally.counts == {"divided": 1} and tally.first == {"divided": 20}
    assert "".join(part.partition("[")[2].removesuffix("]") for part in parts) == text[1:] + "<end>"
    assert all(part[0] == before[-2] for before, part in pairwise(parts))


@pytest.mark.parametrize(
    ("row", "columns", "code"),
    [
        (PAIR, "query=frage,response=response", "SL-text-column-absent"),
        (lambda n: {"query": n, "response": "a"}, "", "SL-text-column-kind"),
        (PAIR, "messages=query", "SL-text-column-kind"),
        (lambda n: {"text": [{"role": "user", "content": "a"}]}, "text=text", "SL-text-column-kind"),
        (lambda n: {"prompt": "a", "chosen": "b", "rejected": "c"}, "", "SL-text-form-unknown"),
    ],
)
def test_columns_that_do_not_fit_are_refused(row, columns, code, tmp_path):
    path = put(tmp_path, {"a.jsonl": lines(row)})
    with refuses(ConfigError, code):
        check_given(text_config(tmp_path, dataset_path=str(path), text_columns=columns))


def test_splits_with_other_forms_are_refused(tmp_path):
    path = put(tmp_path, {"train.jsonl": lines(PAIR), "test.jsonl": lines(lambda n: {"text": f"{n}"})})
    with refuses(ConfigError, "SL-text-forms-differ"):
        check_given(text_config(tmp_path, dataset_path=str(path)))


def test_what_is_used_is_told_before_anything_starts(tmp_path):
    path = put(
        tmp_path,
        {"a.jsonl": lines(lambda n: {"Question": f"{n}+3?", "Answer": "5", "type": "easy", "id": n})},
    )
    said = check_given(text_config(tmp_path, dataset_path=str(path)))
    assert "query=Question,response=Answer" in said[0] and said[1].endswith(": type, id")
    assert check_given(text_config(tmp_path, dataset_path=str(path), text_columns="Question,Answer")) == said
    given = {"model": "qwen_tiny", "seq_len": 128, "micro_batch_size": 1, "global_batch_size": 1}
    given |= {"results": tmp_path, "run": "r", "dataset_path": path}
    env = {f"TRAINER_{name.upper()}": str(value) for name, value in given.items()}
    found = check_run(env, elsewhere=False, replaces=False, opened=set())
    assert found["code"] == 0 and all(map(str.endswith, found["notes"], said)) and len(found["notes"]) == 2
    assert not list(tmp_path.rglob("tokens-*"))
