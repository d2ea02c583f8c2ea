"""Text files as people have them: what the model reads of them, and what of it it learns."""

import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import tokenizers
import transformers

from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import refuses
from tests.trainer.data.text.token_caches import build, find_documents, text_config
from trainer.data.text.documents import Tally, encode_texts
from trainer.data.text.text_source import check_given, load_texts
from trainer.data.text.token_rows import IGNORED
from trainer.data.text.tokenizer import build_byte_tokenizer, load_tokenizer
from trainer.launch.batch_validation import check_run

COUNT = 40
Row = Callable[[int], Any]
BYTE_TOKENS = {256: b"<pad>", 257: b"<start>", 258: b"<end>"}


def show(documents: list[Any]) -> list[str]:
    """The bytes of each document, with what is learned in brackets."""
    found = []
    for document in documents:
        text = ""
        for learned, pairs in groupby(zip(document.ids, document.learned, strict=True), lambda pair: pair[1]):
            said = b"".join(BYTE_TOKENS.get(i) or bytes([i]) for i, _ in pairs).decode()
            text += f"[{said}]" if learned else said
        found.append(text)
    return found


def read(config: Config, tokenizer: Any = None) -> tuple[dict[str, list[str]], Tally]:
    """Every document by split, as `show` has it, and what is counted."""
    tally, tokenizer = Tally(), tokenizer or load_tokenizer(config)
    splits = {
        name: show([d for each in encode_texts(texts, tokenizer, config, tally) for d in each])
        for name, texts in load_texts(config).items()
    }
    return splits, tally


def every(splits: dict[str, list[str]]) -> list[str]:
    return [document for documents in splits.values() for document in documents]


def put(folder: Path, files: dict[str, Any]) -> Path:
    """The folder, or the only file; rows become parquet."""
    for name, content in files.items():
        path = folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            datasets.Dataset.from_list(content).to_parquet(str(path))
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / "data" / (next(iter(files)) if len(files) == 1 else "")


def lines(row: Row, first: int = 0, count: int = COUNT) -> str:
    return "".join(json.dumps(row(n), ensure_ascii=False) + "\n" for n in range(first, first + count))


def table(rows: list[list[str]], **how: Any) -> str:
    written = io.StringIO(newline="")
    csv.writer(written, **how).writerows(rows)
    return written.getvalue()


def user(text: str) -> str:
    return f"<start>user\n{text}<end>\n"


def answer(text: str) -> str:
    return f"<start>assistant\n[{text}<end>]"


def chat(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


def alpaca(n: int) -> dict[str, str]:
    return {"instruction": "Add.", "input": f"{n} 3", "output": f"{n + 3}"}


BOM = b"\xef\xbb\xbf"
PAIR: Row = lambda n: {"query": f"q{n}", "response": f"a{n}"}  # noqa: E731
READ_PAIR: Row = lambda n: user(f"q{n}") + answer(f"a{n}")  # noqa: E731
READ_ALPACA: Row = lambda n: user(f"Add.\n{n} 3") + answer(f"{n + 3}")  # noqa: E731
PAIRS = [[f"q{n}", f"a{n}"] for n in range(COUNT)]
NUMBERS = [[f"{n};0?", "007"] for n in range(COUNT)]
PERSIAN = "سلام می\u200cخواهم 👩\u200d🔬"  # right to left, zero-width joiners

FORMS: dict[str, tuple[dict[str, Any], dict[str, str], Row]] = {
    "1 alpaca": ({"a.jsonl": lines(alpaca)}, {}, READ_ALPACA),
    "2 alpaca, empty input": (
        {
            "a.jsonl": lines(
                lambda n: {"instruction": f"Colour {n}?", "input": ("", None)[n % 2], "output": "red"}
            )
        },
        {},
        lambda n: user(f"Colour {n}?") + answer("red"),
    ),
    "2 alpaca, no input": (
        {"a.jsonl": lines(lambda n: {"instruction": f"Colour {n}?", "output": "red"})},
        {},
        lambda n: user(f"Colour {n}?") + answer("red"),
    ),
    "3 chat": (
        {
            "a.jsonl": lines(
                lambda n: chat(("system", "Be short."), ("user", f"Hi {n}"), ("assistant", "Hello"))
            )
        },
        {},
        lambda n: "<start>system\nBe short.<end>\n" + user(f"Hi {n}") + answer("Hello"),
    ),
    "4 chat of four turns": (
        {
            "a.jsonl": lines(
                lambda n: chat(
                    ("user", f"Hi {n}"), ("assistant", "Hello"), ("user", "Go"), ("assistant", "No")
                )
            )
        },
        {},
        lambda n: user(f"Hi {n}") + answer("Hello") + "\n" + user("Go") + answer("No"),
    ),
    "5 sharegpt": (
        {
            "a.jsonl": lines(
                lambda n: {
                    "conversations": [{"from": "human", "value": f"Hi {n}"}, {"from": "gpt", "value": "Yes"}]
                }
            )
        },
        {},
        lambda n: user(f"Hi {n}") + answer("Yes"),
    ),
    "5 sharegpt with a system column": (
        {
            "a.jsonl": lines(
                lambda n: {
                    "system": "Be short.",
                    "conversations": [{"from": "human", "value": f"Hi {n}"}, {"from": "gpt", "value": "Yes"}],
                }
            )
        },
        {},
        lambda n: "<start>system\nBe short.<end>\n" + user(f"Hi {n}") + answer("Yes"),
    ),
    "6 prompt and completion": (
        {"a.jsonl": lines(lambda n: {"prompt": f"{n}+3=", "completion": f" {n + 3}"})},
        {},
        lambda n: f"{n}+3=[ {n + 3}<end>]",
    ),
    "6 by setting": (
        {"a.jsonl": lines(lambda n: {"prompt": f"{n}+3=", "completion": f" {n + 3}"})},
        {"text_columns": "query=prompt,response=completion"},
        lambda n: user(f"{n}+3=") + answer(f" {n + 3}"),
    ),
    "7 more columns": (
        {"a.jsonl": lines(lambda n: {"question": f"{n}+3?", "answer": "5", "type": "easy", "id": n})},
        {"text_columns": "query=question,response=answer"},
        lambda n: user(f"{n}+3?") + answer("5"),
    ),
    "7 system and context": (
        {"a.jsonl": lines(lambda n: {"frage": f"{n}?", "antwort": "5", "wer": "Du.", "text": "mehr"})},
        {"text_columns": "query=frage,response=antwort,system=wer,context=text"},
        lambda n: "<start>system\nDu.<end>\n" + user(f"{n}?\nmehr") + answer("5"),
    ),
    "8 lines": ({"a.txt": "".join(f"text {n}\r\n" for n in range(COUNT))}, {}, lambda n: f"t[ext {n}<end>]"),
    "8 text": ({"a.jsonl": lines(lambda n: {"text": f"text {n}"})}, {}, lambda n: f"t[ext {n}<end>]"),
    "9 csv": (
        {
            "a.csv": table(
                [["query", "response"], *([f'Say "hi", please\r\n{n}', "NA"] for n in range(COUNT))]
            )
        },
        {},
        lambda n: user(f'Say "hi", please\r\n{n}') + answer("NA"),
    ),
    "9 csv of numbers": (
        {"a.csv": BOM + table([["Question", "Answer"], *NUMBERS], delimiter=";").encode()},
        {},
        lambda n: user(f"{n};0?") + answer("007"),
    ),
    "10 array": (
        {"a.json": BOM + json.dumps([PAIR(n) for n in range(COUNT)]).encode()},
        {},
        READ_PAIR,
    ),
    "11 structs in shards": (
        {
            f"data/train-0000{part}-of-00002.parquet": [
                {"qa": {"q": f"q{n}", "a": f"a{n}"}, "id": n} for n in range(part * 20, part * 20 + 20)
            ]
            for part in (0, 1)
        },
        {"text_columns": "query=qa.q,response=qa.a"},
        READ_PAIR,
    ),
    "12 gz": ({"a.jsonl.gz": gzip.compress(lines(alpaca).encode())}, {}, READ_ALPACA),
    "12 xz of tab-separated values": (
        {"a.tsv.xz": lzma.compress(table([["query", "response"], *PAIRS], delimiter="\t").encode())},
        {},
        READ_PAIR,
    ),
    "15 what looks special": (
        {
            "a.jsonl": lines(
                lambda n: {"query": f"{n}<|im_end|>", "response": f"{PERSIAN}<|im_start|>user\nno"}
            )
        },
        {},
        lambda n: user(f"{n}<|im_end|>") + answer(f"{PERSIAN}<|im_start|>user\nno"),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_read_and_learned_is_what_stands_there(form, tmp_path):
    files, settings, row = FORMS[form]
    splits, tally = read(text_config(tmp_path, dataset_path=str(put(tmp_path, files)), **settings))
    assert sorted(every(splits)) == sorted(row(n) for n in range(COUNT))
    assert tally.documents == COUNT and {*tally.counts} <= {"control"}


@pytest.mark.parametrize("packing", [True, False])
def test_the_rows_of_a_rank_have_these_labels(packing, tmp_path):
    files, _, row = FORMS["4 chat of four turns"]
    data = build(text_config(tmp_path, dataset_path=str(put(tmp_path, files)), packing=packing, seq_len=256))
    found = []
    for rows in (data.train, data.validation, data.test):
        for document in find_documents(rows):
            learned = [False, *(label != IGNORED for label in document.labels[:-1])]
            assert all(
                label in (IGNORED, after)
                for label, after in zip(document.labels, [*document.ids[1:], None], strict=True)
            )
            found += show([SimpleNamespace(ids=document.ids, learned=learned)])
    texts = [text.replace("<pad>", "") for text in found]
    assert sorted(filter(None, texts)) == sorted(row(n) for n in range(COUNT))


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
    3: {"query": "q", "response": ""},
    9: {"query": "q", "response": " \n"},
    12: {"query": "q", "response": None},
    20: {"query": "q20", "response": "a" * 50_000},
}


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


ALTERNATES = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REFUSED = {
    "two users": ([("user", "a"), ("user", "b"), ("assistant", "c")], 1, user("a\n\nb") + answer("c")),
    "assistant first": ([("assistant", "a"), ("user", "b"), ("assistant", "c")], 0, user("b") + answer("c")),
    "tool": (
        [("user", "a"), ("assistant", "b"), ("tool", "c"), ("assistant", "d")],
        2,
        user("a") + answer("b") + "\n" + user("c") + answer("d"),
    ),
    "two systems": (
        [("system", "a"), ("system", "b"), ("user", "c"), ("assistant", "d")],
        1,
        "<start>system\na\n\nb<end>\n" + user("c") + answer("d"),
    ),
}


@pytest.mark.parametrize("turns", REFUSED)
@pytest.mark.parametrize("template", ["own", "alternates"])
def test_roles_that_a_template_refuses_are_named_or_merged(turns, template, tmp_path):
    given, place, merged = REFUSED[turns]
    chats = [chat(("user", f"{n}"), ("assistant", "x")) for n in range(COUNT)]
    chats[7] = chat(*given)
    path = put(tmp_path, {"a.jsonl": lines(chats.__getitem__)})
    tokenizer = build_byte_tokenizer()
    if template == "alternates":
        tokenizer.chat_template = ALTERNATES
        place = 0 if given[0][0] == "system" else place
        merged = merged.replace("<end>\n", "<end>").replace("]\n", "]")
    config = text_config(tmp_path, dataset_path=str(path))
    with refuses(
        ConfigError, "SL-chat-template-refuses", f"row 7: turn {place} has the role {given[place][0]}"
    ):
        read(config, tokenizer)
    splits, tally = read(config.model_copy(update={"chat_roles": "merge"}), tokenizer)
    if template == "alternates" and given[0][0] == "system":  # it knows none: the question takes the text
        merged = user("a\n\nb\n\nc").rstrip("\n") + answer("d")
    assert merged in every(splits)
    assert tally.counts == {"merged": 1} and tally.first == {"merged": 7}


def test_a_chat_without_the_assistant_has_nothing_to_learn_and_one_of_unknown_roles_is_refused(tmp_path):
    chats = [chat(("user", f"{n}"), ("assistant", "x")) for n in range(COUNT)]
    chats[3] = chat(("user", "a"))
    path = put(tmp_path, {"a.jsonl": lines(chats.__getitem__)})
    assert read(text_config(tmp_path, dataset_path=str(path)))[1].counts == {"empty": 1}
    chats[5] = chat(("user", "a"), ("narrator", "b"))
    path.write_text(lines(chats.__getitem__))
    with refuses(ConfigError, "SL-chat-template-refuses", "row 5: turn 1 "):
        read(text_config(tmp_path, dataset_path=str(path)))


USER_TURNS = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
)
FAMILIES = {
    "gemma": (
        "{{ bos_token }}{% for m in messages %}"
        + USER_TURNS
        + "<start_of_turn>{{ 'model' if m.role == 'assistant' "
        "else m.role }}\n{{ m.content | trim }}<end_of_turn>{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model{{ '\\n' }}{% endif %}",
        ["<start_of_turn>", "<end_of_turn>"],
        "<start_of_turn>user\nHi 1<end_of_turn>\n<start_of_turn>model\n[Hello<end_of_turn>]\n"
        "<start_of_turn>user\nGo<end_of_turn>\n<start_of_turn>model\n[No<end_of_turn>]",
    ),
    "mistral": (
        "{{ bos_token }}{% for m in messages %}"
        + USER_TURNS
        + "{% if m.role == 'user' %}[INST] {{ m.content }} "
        "[/INST]{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}",
        [],
        "[INST] Hi 1 [/INST][Hello<end>][INST] Go [/INST][No<end>]",
    ),
    "llama-3": (
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>{{ '\\n\\n' }}{{ m.content | trim }}"
        "<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>{{ '\\n\\n' }}{% endif %}",
        ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "<|start_header_id|>user<|end_header_id|>\n\nHi 1<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[Hello<|eot_id|>]"
        "<|start_header_id|>user<|end_header_id|>\n\nGo<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[No<|eot_id|>]",
    ),
    "phi-3": (
        "{% for m in messages %}<|{{ m.role }}|>{{ '\\n' }}{{ m.content }}<|end|>{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{{ '\\n' }}{% else %}{{ eos_token }}{% endif %}",
        ["<|user|>", "<|assistant|>", "<|end|>"],
        "<|user|>\nHi 1<|end|>\n<|assistant|>\n[Hello<|end|>]\n<|user|>\nGo<|end|>\n<|assistant|>\n[No<|end|>\n<end>]",
    ),
    "gpt-oss": (
        "{% for m in messages %}<|start|>{{ m.role }}{{ '<|channel|>final' if m.role == 'assistant' else '' }}"
        "<|message|>{{ m.content }}{{ '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"],
        "<|start|>user<|message|>Hi 1<|end|><|start|>assistant[<|channel|>final<|message|>Hello<|end|>]"
        "<|start|>user<|message|>Go<|end|><|start|>assistant[<|channel|>final<|message|>No<|return|>]",
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_turns_of_the_assistant_are_found_in_the_templates_of_other_families(
    family, tmp_path, monkeypatch
):
    template, tokens, wanted = FAMILIES[family]
    tokenizer = build_byte_tokenizer()
    tokenizer.chat_template = template
    tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=False, special=True) for token in tokens])
    for token in tokens:
        monkeypatch.setitem(BYTE_TOKENS, tokenizer.convert_tokens_to_ids(token), token.encode())
    files, _, _ = FORMS["4 chat of four turns"]
    splits, tally = read(text_config(tmp_path, dataset_path=str(put(tmp_path, files))), tokenizer)
    assert wanted in every(splits) and not tally.counts


def test_a_template_may_mark_what_is_learned(tmp_path):
    tokenizer = build_byte_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>"
        "{% endif %}{{ '\\n' }}"
        "{% endfor %}"
    )
    files, _, row = FORMS["4 chat of four turns"]
    splits, _ = read(text_config(tmp_path, dataset_path=str(put(tmp_path, files))), tokenizer)
    assert sorted(every(splits)) == sorted(row(n) for n in range(COUNT))


def test_a_template_may_write_the_last_answer_in_another_way(tmp_path):
    """As that of Qwen3, which begins the last one with an empty thought."""
    tokenizer = build_byte_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    files, _, row = FORMS["4 chat of four turns"]
    splits, _ = read(text_config(tmp_path, dataset_path=str(put(tmp_path, files))), tokenizer)
    thought = "<think>\n\n</think>\n\nNo<end>]"
    assert sorted(every(splits)) == sorted(row(n).replace("No<end>]", thought) for n in range(COUNT))


def test_a_tokenizer_that_adds_a_blank_to_each_text_adds_it_once(tmp_path):
    """As those of Llama-2 and Mistral: an answer has the tokens that it has in the whole text."""
    words = {word: i for i, word in enumerate(["<s>", "▁q", "▁a", ":", "a", "▁", "q"])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(words, [("▁", "q"), ("▁", "a")]))
    backend.normalizer = tokenizers.normalizers.Prepend("▁")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        chat_template="{% for m in messages %}{{ m.content }}{% endfor %}",
    )
    path = put(tmp_path, {"a.jsonl": lines(lambda n: {"query": "q" * (n + 1) + ":", "response": "a"})})
    config = text_config(tmp_path, dataset_path=str(path))
    for texts in load_texts(config).values():
        for (document,) in encode_texts(texts, tokenizer, config, Tally()):
            assert document.ids[0] == words["▁q"] and document.ids[-2:] == [words[":"], words["a"]]
            assert document.learned == [False] * (len(document.ids) - 1) + [True]


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
