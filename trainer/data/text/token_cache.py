"""Name and write the token cache.

`describe_cache` lists everything that the files depend on; `cache_name` hashes that list. `pack_lengths` assigns
documents to rows, and `write_cache` writes the files. docs/text_data.md describes the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import Config, ConfigError
from trainer.data.images import SPLIT_SEED
from trainer.data.text import text_source
from trainer.data.text.documents import ALTERED, CHUNK, CUT, EMPTY, LEFT_OUT, Tally, encode_texts
from trainer.data.text.text_source import (
    TEST_FRACTION,
    Texts,
    absent,
    describe_files,
    hub_id,
    is_built_in,
    load_texts,
)
from trainer.data.text.tokenizer import count_vocabulary, hash_tokenizer, identify_tokenizer, load_tokenizer

TRIES = 32  # lower fills of a row that are tried after the full one


def pack_lengths(lengths: NDArray[np.int64], seq_len: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (documents in the order of the rows, number of documents per row); no document is split.

    Uses the better of two methods, because each wastes 3 % of the places on some data. Best fit decreasing suits
    similar lengths (`arithmetic`), because it searches no sums. Sums suit about equally many long and short documents,
    because they use the short ones early. The result depends only on the lengths. Sets of lengths are bits of integers:
    finding a pair with a given sum is one shift and one AND, so a row takes microseconds.
    """
    assert len(lengths) and lengths.min() > 0 and lengths.max() <= seq_len
    rows = min(_fill_by_sums(lengths, seq_len), _fit_best(lengths, seq_len), key=len)
    return np.concatenate(rows).astype(np.int64), np.array([len(row) for row in rows], np.int64)


def _fill_by_sums(lengths: NDArray[np.int64], seq_len: int) -> list[list[int]]:
    """Fill rows one by one, each with the longest remaining document first.

    Then, while a document fits, add one or two documents that fill the row, else the longest that fits.
    """
    left = _Left(lengths, seq_len)
    rows = []
    while left.lengths:
        row: list[int] = []
        room = seq_len
        chosen = [left.longest(room)]
        while chosen:
            for length in chosen:
                row.append(left.take(length))
                room -= length
            chosen = left.fill(room)
        rows.append(row)
    return rows


def _fit_best(lengths: NDArray[np.int64], seq_len: int) -> list[list[int]]:
    """Pack by best fit decreasing: longest document first, each into the fullest row with enough room."""
    rows: list[list[int]] = []
    by_room: dict[int, list[int]] = defaultdict(list)
    rooms = 0
    for document in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[document])
        wide = rooms >> length
        if wide:
            room = length + (wide & -wide).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room, row = seq_len, len(rows)
            rows.append([])
        rows[row].append(document)
        by_room[room - length].append(row)
        rooms |= 1 << (room - length)
    return rows


class _Left:
    """Documents without a row, by length."""

    def __init__(self, lengths: NDArray[np.int64], seq_len: int) -> None:
        self._seq_len = seq_len
        self._documents: dict[int, list[int]] = defaultdict(list)
        for document in range(len(lengths) - 1, -1, -1):  # reversed, so that pop returns the first document
            self._documents[int(lengths[document])].append(document)
        self.lengths = sum(1 << length for length in self._documents)
        self._mirrored = sum(1 << (seq_len - length) for length in self._documents)

    def take(self, length: int) -> int:
        documents = self._documents[length]
        document = documents.pop()
        if not documents:
            self.lengths ^= 1 << length
            self._mirrored ^= 1 << (self._seq_len - length)
        return document

    def longest(self, room: int) -> int:
        """Return the longest length of at most `room`; 0 = nothing fits."""
        return max(0, (self.lengths & ((1 << (room + 1)) - 1)).bit_length() - 1)

    def fill(self, room: int) -> list[int]:
        """Return one or two lengths that nearly fill `room`, or the longest that fits; empty if nothing fits."""
        longest = self.longest(room)
        if not longest:
            return []
        for total in range(room, max(longest, room - TRIES), -1):
            if 2 * longest < total:
                break
            pair = self._pair(total)
            if pair:
                return pair
        return [longest]

    def _pair(self, total: int) -> list[int]:
        found = self.lengths & (self._mirrored >> (self._seq_len - total))
        if total % 2 == 0 and len(self._documents[total // 2]) < 2:
            found &= ~(1 << (total // 2))
        if not found:
            return []
        first = found.bit_length() - 1
        return [first, total - first]


VERSION = 4  # increment it when the same settings give other files
PREPARED = "_prepared"
"""Folder of `trainer.prepare` below the results; a reserved name, which no comparison can have."""
DONE = "DONE.json"
"""File that marks a prepared folder as complete."""
INDEX = "index.json"
TOKENIZER = "tokenizer"
ARRAYS = ("ids", "learned", "documents", "rows")


def describe_cache(config: Config) -> dict[str, Any]:
    """Return everything that the files depend on, without opening the data or the tokenizer, so every rank can call it.

    A local data set is identified by the names, sizes and times of its files, or by its hash if `trainer.prepare`
    wrote it. A tokenizer in a folder is identified by its content. Data and tokenizers from the hub are identified by
    their id: the cache keeps the version that was on the hub when it was built.

    Raises:
        DataMissing: the data set does not exist, or the folder has no tokenizer.
    """
    data: dict[str, Any] = {"name": data_name(config)}
    if is_built_in(config):
        data["version"] = text_source.VERSION
    elif config.dataset_path:
        path = Path(config.dataset_path)
        if not path.exists():
            raise absent(config)
        try:
            data["sha256"] = json.loads((path / DONE).read_text())["sha256"]
        except (OSError, ValueError, KeyError):
            data["files"] = describe_files(path)
    return {
        "version": VERSION,
        "data": data,
        "tokenizer": identify_tokenizer(config),
        "seq_len": config.seq_len,
        "packing": config.packing,
        "reading": [config.text_columns, config.chat_roles, config.long_documents],
        "split": [SPLIT_SEED, TEST_FRACTION, config.validation_fraction],
        "train_samples": config.train_samples,
    }


def data_name(config: Config) -> str:
    """Return the name of the data set in a cache: the same for a short name and its hub id."""
    return hub_id(config) if not config.dataset_path else config.dataset_name


def cache_name(config: Config) -> str:
    """Return tokens-<hash>; it does not depend on the world size."""
    text = json.dumps(describe_cache(config), sort_keys=True)
    return f"tokens-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def cache_folder(config: Config) -> Path:
    """Return the folder of the complete cache of these settings."""
    return Path(config.results) / PREPARED / cache_name(config)


def array_path(folder: Path, split: str, array: str) -> Path:
    """Return the path of one of the three arrays of a split."""
    return folder / f"{split}-{array}.npy"


def write_cache(
    config: Config, folder: Path, scratch: Path, note: Callable[[str], None], revision: str | None = None
) -> dict[str, Any]:
    """Write the arrays of every split, the tokenizer and index.json into `folder`; return the content of index.json.

    Args:
        scratch: folder for the tokens before they are sorted into the order of the rows.
        note: called from time to time with the progress.
        revision: of a data set on the hub.

    Raises:
        ConfigError: columns are missing, the chat template does not work, or rows are too short for any document.
        DataMissing: the data set or tokenizer does not exist, or a split has no text.
    """
    notes: list[str] = []
    splits, tokenizer = load_texts(config, revision, notes.append), load_tokenizer(config)
    vocab = count_vocabulary(tokenizer)
    facts, tallies = {}, {name: Tally() for name in splits}
    for name, texts in splits.items():
        facts[name] = _write_split(
            config, name, texts, tokenizer, vocab, folder, scratch, note, tallies[name]
        )
        notes += tallies[name].describe(name)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    index = {
        "schema_version": 1,
        "settings": describe_cache(config),
        "seq_len": config.seq_len,
        "packing": config.packing,
        "vocab": vocab,
        "pad_id": pad or 0,
        "tokenizer_sha256": hash_tokenizer(tokenizer),
        "splits": facts,
        "fidelity": {
            "documents": sum(tally.documents for tally in tallies.values()),
            ALTERED: sum(tally.counts[ALTERED] for tally in tallies.values()),
        },
        "notes": notes,
    }
    tokenizer.save_pretrained(folder / TOKENIZER)
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n")
    return index


def _write_split(
    config: Config,
    name: str,
    texts: Texts,
    tokenizer: Any,
    vocab: int,
    folder: Path,
    scratch: Path,
    note: Callable[[str], None],
    tally: Tally,
) -> dict[str, Any]:
    dtype = np.uint16 if vocab <= 1 << 16 else np.uint32
    scratched = {"ids": (scratch / f"{name}.ids", dtype), "learned": (scratch / f"{name}.learned", np.bool_)}
    kept: list[tuple[int, int, int]] = []  # index in the source, tokens, learned tokens
    with contextlib.ExitStack() as stack:
        files = {array: stack.enter_context(open(path, "wb")) for array, (path, _) in scratched.items()}
        for number, found in enumerate(encode_texts(texts, tokenizer, config, tally), 1):
            for document in found:
                kept.append((document.index, len(document.ids), sum(document.learned)))
                files["ids"].write(np.asarray(document.ids, dtype).tobytes())
                files["learned"].write(np.asarray(document.learned, np.bool_).tobytes())
            if number % CHUNK == 0 or number == len(texts):
                note(f"{name}: {number} of {len(texts)} documents tokenised")
    if tally.counts[EMPTY] == tally.documents:
        raise DataMissing(
            f"{config.dataset_setting}: no document of the {name} split has a text to learn "
            "[SL-text-split-unanswered]"
        )
    if not kept:
        raise ConfigError(
            f"TRAINER_SEQ_LEN={config.seq_len}: no row fits the question and one answer token of any document of the "
            f"{name} split; raise it [SL-seq-len-too-short]"
        )
    documents = np.array(kept, np.int64)
    lengths = documents[:, 1]
    order, counts = np.arange(len(lengths)), np.ones(len(lengths), np.int64)  # one document per row
    if config.packing:
        order, counts = pack_lengths(lengths, config.seq_len)
    ends = np.cumsum(counts)
    documents, begins = documents[order], (np.cumsum(lengths) - lengths)[order]
    rows = np.zeros((len(counts) + 1, 3), np.int64)
    rows[1:, 0] = ends
    rows[1:, 1] = np.cumsum(documents[:, 1])[ends - 1]
    rows[1:, 2] = np.cumsum(documents[:, 2])[ends - 1]
    note(f"{name}: {len(counts)} rows of {config.seq_len} tokens")
    for array, (path, kind) in scratched.items():
        source, done = np.memmap(path, kind, "r"), 0
        target = np.lib.format.open_memmap(array_path(folder, name, array), "w+", kind, (len(source),))
        for begin, length in zip(begins, documents[:, 1], strict=True):  # into the order of the rows
            target[done : done + length] = source[begin : begin + length]
            done += length
        assert done == len(source)
        target.flush()
        path.unlink()
    np.save(array_path(folder, name, "documents"), documents)
    np.save(array_path(folder, name, "rows"), rows)
    tokens, places = int(rows[-1, 1]), len(counts) * config.seq_len
    fewest = -(-tokens // config.seq_len) if config.packing else len(counts)
    return {
        "documents": len(documents),
        "documents_cut": tally.counts[CUT],
        "documents_left_out": sum(tally.counts[kind] for kind in LEFT_OUT),
        "rows": len(counts),
        "tokens": tokens,
        "labels": int(rows[-1, 2]),
        "useful_pct": 100 * tokens / places,
        "possible_useful_pct": 100 * tokens / (fewest * config.seq_len),
        "sha256": _hash_arrays(folder, name),
    }


def _hash_arrays(folder: Path, split: str) -> str:
    digest = hashlib.sha256()
    for array in ARRAYS:
        with open(array_path(folder, split, array), "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
