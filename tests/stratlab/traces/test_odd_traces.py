"""One odd value costs itself or its event, not the file; and it is named."""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis.measure import measure_traces
from stratlab.traces.discover import find_traces
from stratlab.traces.merge import merge_traces
from stratlab.traces.trace import load_trace
from tests.codes import find_codes
from tests.stratlab.simulated.small import build_gpu_trace, quote_numbers

ODD = (
    '{"ph": "X", "cat": "cpu_op", "name": "odd", "pid": 1, "tid": 1, "ts": 5100, "dur": 1, "args": {"x": 1}}'
)
UNKNOWN, LEFT_OUT = "SL-values-odd", "SL-events-odd"
COUNT = len(build_gpu_trace(0).events)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows without an odd event."""
    path = build_gpu_trace(0).write(tmp_path_factory.mktemp("whole") / "rank0_trace.json")
    return [asdict(row) for row in measure_traces({0: path}).ranks[0].rows]


@pytest.mark.parametrize(
    ("event", "kept", "codes"),
    [
        (ODD.replace('"x": 1', '"x": NaN'), 1, [UNKNOWN]),
        (ODD.replace('"x": 1', '"x": 1e999'), 1, []),
        (ODD.replace('"x": 1', f'"x": 1{"0" * 400}'), 1, []),
        (ODD.replace("odd", "half of \\ud83d"), 1, [UNKNOWN]),
        (ODD.replace('"tid": 1', '"tid": 140.5'), 1, []),
        (ODD.replace('"x": 1', '"dtype": 7, "Collective name": 5, "Process Group Description": [1]'), 1, []),
        (ODD.replace("5100", "NaN"), 0, [UNKNOWN, LEFT_OUT]),
        (ODD.replace('"x": 1', '"x": -inf'), 1, [UNKNOWN]),
        (ODD.replace('"x": 1', '"x": "nan, inf"'), 1, []),
        (ODD.replace("odd", "one odd \udcff byte"), 1, [UNKNOWN]),
        (ODD.replace("odd", "a \x01 control"), 1, []),
        (ODD.replace("5100", '"5100.5"'), 1, []),
        (ODD.replace("5100", '"noon"'), 0, [LEFT_OUT]),
        (ODD.replace('{"x": 1}', "[1]"), 0, [LEFT_OUT]),
    ],
)
def test_odd_value_costs_no_more_than_its_event(tmp_path, event, kept, codes, whole):
    text = build_gpu_trace(0).text()
    path = tmp_path / "rank0_trace.json"
    for content in (text, json.dumps(json.loads(text))):
        first, _, rest = content.partition('"traceEvents": [')
        path.write_text(f'{first}"traceEvents": [{event}, {rest}', errors="surrogateescape")
        assert len(load_trace(path).ts) == COUNT + kept
        measures = measure_traces({0: path})
        assert measures.findings == []
        (found,) = measures.ranks
        assert [asdict(row) for row in found.rows] == whole
        assert [code for finding in found.findings for code in find_codes(finding.reason)] == codes
    merged = merge_traces({0: path}, tmp_path / "merged.json.gz", offsets_ns={})
    assert merged.ranks == [0] and merged.events >= COUNT


def test_numbers_in_quotes_are_numbers(tmp_path):
    plain = build_gpu_trace(0)
    paths = [t.write(tmp_path / f"{i}.json") for i, t in enumerate((plain, quote_numbers(plain)))]
    first, second = (measure_traces({0: path}).ranks[0] for path in paths)
    for part in ("rows", "kernels", "collectives", "copies", "idle"):
        assert getattr(first, part) == getattr(second, part)
    times = []
    for path in paths:
        merge_traces({0: path}, out := path.with_suffix(".gz"), offsets_ns={})
        events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
        times.append([(e["ts"], e["dur"]) for e in events if e["ph"] == "X"])
    assert times[0] == times[1]


def test_odd_base_time(tmp_path):
    path, text = tmp_path / "rank0_trace.json", build_gpu_trace(0).text()
    bases = {'"1700000000000000000"': 1_700_000_000_000_000_000, "1.7e18": 1_700_000_000_000_000_000}
    for base in (*bases, "NaN", '"x"', "true", "1e400", "[1]", "1" + "0" * 40):
        for where in ('"traceName"', '"schemaVersion"'):
            path.write_text(text.replace(where, f'"baseTimeNanoseconds": {base}, {where}'))
            assert load_trace(path).origin_ns == bases.get(base, 0) + 5_000_500, base


VICTIM = 1
NAME = f"rank{VICTIM}_trace.json"
Change = Callable[[bytes], bytes]


def sub(pattern: str, replacement: str, count: int = 1) -> Change:
    return lambda data: re.sub(pattern.encode(), replacement.encode(), data, count=count)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


NAMED: dict[str, Change] = {
    "truncated": cut,
    "without its last 3 bytes": lambda data: data[:-3],
    "a picture": lambda data: b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(3000),
    "a million brackets": lambda data: b"[" * 1_000_000,
    "every time a text": sub(r'"ts": [\d.]+', '"ts": "soon"', 0),
    "every time in the year 30000": sub(r'"ts": [\d.]+', '"ts": 1e18', 0),
    "an event of 12 MB": sub(r'"args": \{', '"args": {"x": "' + "x" * 12_000_000 + '", '),
    "a nested end": sub('"traceName": "synthetic"', f'"x": {"[" * 100_000}{"]" * 100_000}'),
    "twice in one file": lambda data: data + data,
    "the rank of another": sub('"rank": 1', '"rank": 2'),
    "packed and cut off": lambda data: cut(gzip.compress(data)),
}


@pytest.fixture(scope="module")
def folder_of_three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folder_of_three")
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
def expected(folder_of_three: Path) -> tuple[dict[int, list[Any]], dict[str | None, list[str]]]:
    return measure(folder_of_three)


def corrupt(folder_of_three: Path, folder: Path, change: Change) -> Path:
    shutil.copytree(folder_of_three, folder)
    before = (folder / NAME).read_bytes()
    (folder / NAME).write_bytes(change(before))
    assert (folder / NAME).read_bytes() != before
    return folder


@pytest.mark.parametrize("name", NAMED)
def test_a_corrupt_file_is_named_and_costs_no_other(name, folder_of_three, expected, tmp_path):
    rows, said = measure(corrupt(folder_of_three, tmp_path / "run", NAMED[name]))
    assert said[NAME] and NAME not in expected[1]
    assert all(rows[rank] == expected[0][rank] for rank in (0, 2))
