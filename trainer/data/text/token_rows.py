"""Read the token cache in the ranks: rows of token ids, positions and labels from memory-mapped files.

`open_text` opens the cache. `text_problems` reports settings that prevent training on text, before the ranks start.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.decoder_config import SHAPES, read_shape, too_long
from stratlab_spec.settings.config import Config
from trainer.data.text.documents import refuse_altered
from trainer.data.text.token_cache import ARRAYS, INDEX, TOKENIZER, array_path, cache_folder
from trainer.data.text.tokenizer import (
    count_vocabulary,
    load_tokenizer,
    read_tokenizer,
    tokenizer_source,
)

IGNORED = -100
"""Label of a place whose next token is not learned: question or padding."""
DOCUMENTS, TOKENS, LABELS = 0, 1, 2  # columns of `rows`: running totals before each row
LENGTH = 1  # column of `documents`; the others are the index in the source and the learned tokens


class TokenRows:
    """One split; rows are read on demand, and reading a row takes the same time at any position.

    Args:
        ids: [tokens] of all documents, in the order of the rows, without padding.
        learned: bool [tokens]: whether each token is learned; never the first of a document.
        documents: int64 [documents, 3]: index in the source, tokens, learned tokens.
        rows: int64 [rows + 1, 3]: documents, tokens and labels before each row.
        packed: several documents per row.
        pad_id: token at places without a document.
    """

    def __init__(
        self,
        ids: NDArray[Any],
        learned: NDArray[np.bool_],
        documents: NDArray[np.int64],
        rows: NDArray[np.int64],
        *,
        seq_len: int,
        packed: bool,
        pad_id: int,
    ) -> None:
        self.seq_len = seq_len
        self.packed = packed
        self.documents = documents
        self._ids = ids
        self._learned = learned
        self._rows = rows
        self._pad_id = pad_id

    def __len__(self) -> int:
        return len(self._rows) - 1

    def label_counts(self, indices: NDArray[np.int64]) -> int:
        """Return the number of tokens with a label in these rows."""
        return self._count(indices, LABELS)

    def token_counts(self, indices: NDArray[np.int64]) -> int:
        """Return the number of places of these rows that hold a document."""
        return self._count(indices, TOKENS)

    def pair_counts(self, indices: NDArray[np.int64]) -> int:
        """Return the pairs of tokens within documents of these rows: the sum of the documents' squared lengths."""
        return int(np.square(self._places(indices)[1]).sum())

    def most_documents(self) -> int:
        """Return the largest number of documents in a row; padding counts as one."""
        return int((np.diff(self._rows[:, DOCUMENTS]) + (self._padding() > 0)).max())

    def longest_document(self) -> int:
        """Return the tokens of the longest document or padding."""
        return int(max(self.documents[:, LENGTH].max(), self._padding().max()))

    def _padding(self) -> NDArray[np.int64]:
        return self.seq_len - np.diff(self._rows[:, TOKENS])

    def _count(self, indices: NDArray[np.int64], column: int) -> int:
        return int((self._rows[indices + 1, column] - self._rows[indices, column]).sum())

    def rows(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (inputs [row, 2, token], labels [row, token]), int64.

        inputs[:, 0] are token ids, inputs[:, 1] positions in the document. In packed rows the padding is a document of
        its own; otherwise positions continue through it. Labels are the next token if it is learned, elsewhere IGNORED.
        """
        count, seq_len = len(indices), self.seq_len
        ids = np.full((count, seq_len), self._pad_id, np.int64)
        learned = np.zeros(
            (count, seq_len + 1), np.bool_
        )  # of each place, and of the token after the last place
        spans = zip(self._rows[indices, TOKENS], self._rows[indices + 1, TOKENS], strict=True)
        for row, (first, last) in enumerate(spans):
            ids[row, : last - first] = self._ids[first:last]
            learned[row, : last - first] = self._learned[first:last]
        begins, _ = self._places(indices)
        inputs = np.stack((ids, self._positions(indices, begins)), axis=1)
        following = np.append(ids[:, 1:], np.full((count, 1), self._pad_id), axis=1)
        return inputs, np.where(learned[:, 1:], following, IGNORED)

    def _places(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first place and the tokens of each document in these rows, concatenated."""
        first = self._rows[indices, DOCUMENTS]
        counts = self._rows[indices + 1, DOCUMENTS] - first
        row = np.repeat(np.arange(len(indices)), counts)
        before = np.cumsum(counts) - counts
        lengths = self.documents[np.arange(len(row)) - before[row] + first[row], LENGTH]
        ends = np.cumsum(lengths)
        used = np.append(0, ends)[before]  # tokens in the rows before this one
        return ends - lengths - used[row] + row * self.seq_len, lengths

    def _positions(self, indices: NDArray[np.int64], begins: NDArray[np.int64]) -> NDArray[np.int64]:
        count, seq_len = len(indices), self.seq_len
        if not self.packed:
            return np.tile(np.arange(seq_len), (count, 1))
        used = self._rows[indices + 1, TOKENS] - self._rows[indices, TOKENS]
        padding = (np.arange(count) * seq_len + used)[used < seq_len]
        columns = np.arange(count * seq_len)
        starts = np.zeros(count * seq_len, np.int64)
        starts[begins] = begins
        starts[padding] = padding
        return (columns - np.maximum.accumulate(starts)).reshape(count, seq_len)


@dataclass(frozen=True)
class TextData:
    """A data set as token rows; `sha256` identifies tokens, split and row layout."""

    train: TokenRows
    validation: TokenRows
    test: TokenRows
    sha256: str
    tokenizer_sha256: str
    vocab: int
    """rows of the embedding that the tokenizer needs"""
    facts: dict[str, Any]
    """by split: documents, rows, tokens, labels, useful_pct, ... (docs/text_data.md)"""
    folder: Path

    @property
    def tokenizer(self) -> Any:
        """Return the PreTrainedTokenizerFast of the cache; loading a large one takes a second."""
        return read_tokenizer(str(self.folder / TOKENIZER))


def open_text(config: Config) -> TextData:
    """Return the rows of a run, without torch and without opening its data set or tokenizer.

    Raises:
        DataMissing: the cache of these settings does not exist, or its files are damaged.
    """
    folder = cache_folder(config)
    index = read_index(folder)
    if index is None:
        raise DataMissing(
            f"{folder}: no token cache for these settings [SL-token-cache-absent]; the launcher builds it before the "
            "ranks start; to build it now, run python -m trainer.prepare --tokenize"
        )
    splits = {name: _open_split(folder, name, index) for name in index["splits"]}
    digest = hashlib.sha256("".join(facts["sha256"] for facts in index["splits"].values()).encode())
    return TextData(
        **splits,
        sha256=digest.hexdigest(),
        tokenizer_sha256=index["tokenizer_sha256"],
        vocab=index["vocab"],
        facts=index["splits"],
        folder=folder,
    )


def read_index(folder: Path) -> dict[str, Any] | None:
    """Return the content of index.json; None without a complete cache."""
    try:
        index: dict[str, Any] = json.loads((folder / INDEX).read_text())
    except FileNotFoundError:
        return None
    except ValueError as failure:
        raise DataMissing(
            f"{folder / INDEX}: cannot be read: {failure}; remove {folder} [SL-token-index-damaged]"
        ) from failure
    return index


def _open_split(folder: Path, split: str, index: dict[str, Any]) -> TokenRows:
    try:
        ids, learned, documents, rows = (
            np.load(array_path(folder, split, array), mmap_mode="r", allow_pickle=False) for array in ARRAYS
        )
    except (OSError, ValueError) as failure:
        raise DataMissing(
            f"{folder}: the {split} split cannot be read: {failure}; remove the folder [SL-token-cache-damaged]"
        ) from failure
    facts = index["splits"][split]
    wanted = (facts["tokens"], facts["tokens"], facts["documents"], facts["rows"] + 1)
    if tuple(map(len, (ids, learned, documents, rows))) != wanted:
        raise DataMissing(
            f"{folder}: the {split} split does not match {INDEX}; remove the folder [SL-token-cache-differs]"
        )
    facts = {"seq_len": index["seq_len"], "packed": index["packing"], "pad_id": index["pad_id"]}
    return TokenRows(ids, learned, documents, rows, **facts)


IMAGES = ("digits", "synthetic", "cifar100", "food101")


def text_problems(config: Config) -> list[str]:
    """Return one sentence per unsuitable setting, without torch.

    Raises:
        DataMissing: the tokenizer or the model's shape is unavailable, or the chat template drops too many answers.
    """
    problems, index, shape = [], None, read_shape(config)
    if not config.dataset_path and config.dataset in IMAGES:
        problems.append(
            f"TRAINER_DATASET={config.dataset!r}: holds images, but {config.model_name} reads text; use arithmetic, "
            "metamathqa, the hub id of a data set of text, or TRAINER_DATASET_PATH "
            "[SL-images-for-text]"
        )
    else:
        if config.seq_len > shape.max_positions:
            problems.append(too_long(config, shape.max_positions))
        if index := read_index(cache_folder(config)):
            refuse_altered(config, index["fidelity"])
    needed = index["vocab"] if index else count_vocabulary(load_tokenizer(config))
    if needed > shape.vocab:
        widened = config.model in SHAPES and not config.model_path and config.init == "scratch"
        cure = f"set TRAINER_MODEL_VOCAB={needed}, or " if widened else ""
        problems.append(
            f"TRAINER_TOKENIZER={tokenizer_source(config)!r}: has {needed} tokens, {config.model_name} has room for "
            f"{shape.vocab}; {cure}use the model's own tokenizer [SL-tokenizer-above-model]"
        )
    return problems
