"""Whatever one file of a trace set holds: it is named, and the numbers of the other ranks stay as they are."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis.measuring.measure import measure_traces
from stratlab.traces.discover import find_traces
from tests.codes import find_codes
from tests.stratlab.simulated.small import build_gpu_trace

VICTIM = 1
NAME = f"rank{VICTIM}_trace.json"
Change = Callable[[bytes], bytes]


def sub(pattern: str, replacement: str, count: int = 1) -> Change:
    return lambda data: re.sub(pattern.encode(), replacement.encode(), data, count=count)


def flip(seed: int, data: bytes) -> bytes:
    draw = random.Random(seed)
    at, bit = draw.randrange(10, len(data)), draw.randrange(8)
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


NAMED: dict[str, Change] = {
    "truncated": cut,
    "without its last 3 bytes": lambda data: data[:-3],
    "zeros in the middle": lambda data: data[:9000] + bytes(512) + data[9512:],
    "the middle third missing": lambda data: data[: len(data) // 3] + data[2 * len(data) // 3 :],
    "halves swapped": lambda data: data[len(data) // 2 :] + data[: len(data) // 2],
    "a picture": lambda data: b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(3000),
    "a web page": lambda data: b"<!doctype html><title>502 Bad Gateway</title>",
    "a million brackets": lambda data: b"[" * 1_000_000,
    "a list of numbers": sub(r'(?s)"traceEvents": \[.*\n  \]', '"traceEvents": [1, 2]'),
    "every time a text": sub(r'"ts": [\d.]+', '"ts": "soon"', 0),
    "every time in the year 30000": sub(r'"ts": [\d.]+', '"ts": 1e18', 0),
    "a time of 9000 digits": sub(r'"ts": [\d.]+', '"ts": 1' + "0" * 9000),
    "an event of 12 MB": sub(r'"args": \{', '"args": {"x": "' + "x" * 12_000_000 + '", '),
    "a nested end": sub('"traceName": "synthetic"', f'"x": {"[" * 100_000}{"]" * 100_000}'),
    "single quotes": lambda data: data.replace(b'"', b"'"),
    "a comma behind the last event": sub(r"\}\n  \]", "},\n  ]"),
    "twice in one file": lambda data: data + data,
    "the rank of another": sub('"rank": 1', '"rank": 2'),
    "packed and cut off": lambda data: cut(gzip.compress(data)),
    "packed twice": lambda data: gzip.compress(gzip.compress(data)),
}
VALID: dict[str, Change] = {
    "compact": lambda data: json.dumps(json.loads(data), separators=(",", ":")).encode(),
    "sorted keys": lambda data: json.dumps(json.loads(data), sort_keys=True).encode(),
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "unknown fields": sub('"ph": "X"', '"ph": "X", "cname": "good", "x": [{}]', 0),
    "packed in two members": lambda data: gzip.compress(cut(data)) + gzip.compress(data[len(data) // 2 :]),
    "zeros behind the packed end": lambda data: gzip.compress(data) + bytes(100),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    for rank in range(3):
        build_gpu_trace(rank).write(folder / f"rank{rank}_trace.json")
    return folder


def measure(folder: Path) -> tuple[dict[int, list[Any]], dict[str | None, list[str]]]:
    """Rows per rank, and the codes of what is said of each file."""
    found = find_traces(folder, 3)
    measures = measure_traces(found.files, processes=1)
    findings = [*found.findings, *measures.findings]
    findings += [finding for rank in measures.ranks for finding in rank.findings]
    said: dict[str | None, list[str]] = {}
    for finding in findings:
        assert finding.reason.isprintable()
        said.setdefault(finding.file, []).extend(find_codes(finding.reason))
    return {rank.rank: [vars(row) for row in rank.rows] for rank in measures.ranks}, said


@pytest.fixture(scope="module")
def expected(whole: Path) -> tuple[dict[int, list[Any]], dict[str | None, list[str]]]:
    return measure(whole)


def corrupt(whole: Path, folder: Path, change: Change) -> Path:
    shutil.copytree(whole, folder)
    before = (folder / NAME).read_bytes()
    (folder / NAME).write_bytes(change(before))
    assert (folder / NAME).read_bytes() != before
    return folder


@pytest.mark.parametrize("name", NAMED)
def test_a_corrupt_file_is_named_and_costs_no_other(
    name: str, whole: Path, expected: Any, tmp_path: Path
) -> None:
    rows, said = measure(corrupt(whole, tmp_path / "run", NAMED[name]))
    assert said[NAME] and NAME not in expected[1]
    assert all(rows[rank] == expected[0][rank] for rank in (0, 2))


@pytest.mark.parametrize("name", VALID)
def test_another_formatting_is_no_corruption(name: str, whole: Path, expected: Any, tmp_path: Path) -> None:
    assert measure(corrupt(whole, tmp_path / "run", VALID[name])) == expected


@pytest.mark.parametrize("packed", [False, True])
def test_a_flipped_bit_ends_nothing(packed: bool, whole: Path, expected: Any, tmp_path: Path) -> None:
    for seed in range(3):
        shutil.copytree(whole, folder := tmp_path / str(seed))
        data = (folder / NAME).read_bytes()
        (folder / NAME).write_bytes(flip(seed, gzip.compress(data) if packed else data))
        rows, said = measure(folder)
        assert rows[0] == expected[0][0]
        assert not packed or said[NAME]


def test_what_is_no_file_is_named(whole: Path, tmp_path: Path) -> None:
    kinds: dict[str, Callable[[Path], Any]] = {
        "SL-file-irregular": os.mkfifo,
        "SL-file-too-large": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
    }
    for code, make in kinds.items():
        shutil.copytree(whole, folder := tmp_path / code)
        (folder / NAME).unlink()
        make(folder / NAME)
        rows, said = measure(folder)
        assert sorted(rows) == [0, 2] and said[NAME] == [code]
