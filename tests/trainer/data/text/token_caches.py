"""Small token caches, and what a test reads out of their rows without the code that wrote them."""

import json
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
from numpy.typing import NDArray

from stratlab_spec.settings.config import Config
from trainer.data.text.documents import Document, Tally, encode_texts
from trainer.data.text.text_form import BUILT_IN
from trainer.data.text.text_source import Texts, load_texts
from trainer.data.text.token_rows import TextData, TokenRows, open_text
from trainer.data.text.tokenizer import load_tokenizer
from trainer.prepare.preparation import ensure_cache

PAD, START, END = 256, 257, 258
"""Of the byte tokenizer: behind the bytes <|endoftext|> <|im_start|> <|im_end|>."""
CHAT = re.compile(r"\x01user\n(.*)\x02\n\x01assistant\n(.*)\x02", re.DOTALL)


def text_config(results: Path, **settings: Any) -> Config:
    given = {"model": "qwen_tiny", "seq_len": 128, "results": str(results), **settings}
    if "dataset_path" not in given:
        given.setdefault("dataset", "arithmetic")
    return Config(run="x", **given)


def build(config: Config) -> TextData:
    ensure_cache(config, lambda text: None)
    return open_text(config)


def encode(
    pairs: Sequence[tuple[Any, Any]], tokenizer: Any, seq_len: int = 128
) -> tuple[list[Document | None], Tally]:
    """The documents of these questions and answers, and what was counted of them."""

    def read(wanted: NDArray[np.int64]) -> list[Any]:
        return BUILT_IN.read(
            {"query": [pairs[i][0] for i in wanted], "response": [pairs[i][1] for i in wanted]}
        )

    tally, config = Tally(), text_config(Path(), seq_len=seq_len)
    found = encode_texts(Texts(read, np.arange(len(pairs)), BUILT_IN, "pairs"), tokenizer, config, tally)
    return [documents[0] if documents else None for documents in found], tally


def put(folder: Path, files: dict[str, Any]) -> Path:
    """The folder `data` with these files, or the only file; rows become parquet."""
    for name, content in files.items():
        path = folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            datasets.Dataset.from_list(content).to_parquet(str(path))
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / "data" / (next(iter(files)) if len(files) == 1 else "")


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Found(NamedTuple):
    row: int
    ids: list[int]
    labels: list[int]

    @property
    def text(self) -> str:
        """Bytes as text; the special tokens as \\x00, \\x01, \\x02."""
        return bytes([i if i < PAD else i - PAD for i in self.ids]).decode()


def documents_of(inputs: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each place the column at which its document starts: what attention compares."""
    return np.arange(inputs.shape[-1]) - inputs[:, 1]


def find_documents(rows: TokenRows) -> list[Found]:
    """All documents and pieces of padding of a split, cut where the positions say so."""
    inputs, labels = rows.rows(np.arange(len(rows)))
    documents, found = documents_of(inputs), []
    for row in range(len(rows)):
        for start in np.unique(documents[row]):
            here = documents[row] == start
            assert np.flatnonzero(here).tolist() == list(range(start, start + here.sum())), (
                "torn, or reaching outside"
            )
            found.append(Found(row, inputs[row, 0, here].tolist(), labels[row, here].tolist()))
    return found


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


def lines(row: Row, first: int = 0, count: int = COUNT) -> str:
    return "".join(json.dumps(row(n), ensure_ascii=False) + "\n" for n in range(first, first + count))


def user(text: str) -> str:
    return f"<start>user\n{text}<end>\n"


def answer(text: str) -> str:
    return f"<start>assistant\n[{text}<end>]"


def chat(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


FOUR_TURNS = {
    "a.jsonl": lines(
        lambda n: chat(("user", f"Hi {n}"), ("assistant", "Hello"), ("user", "Go"), ("assistant", "No"))
    )
}
READ_FOUR_TURNS: Row = lambda n: user(f"Hi {n}") + answer("Hello") + "\n" + user("Go") + answer("No")  # noqa: E731
