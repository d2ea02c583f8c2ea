"""One odd value costs itself or its event, not the file; and it is named."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis.measuring.measure import measure_traces
from stratlab.traces.merge import merge_traces
from stratlab.traces.trace import load_trace
from tests.stratlab.simulated.small import build_gpu_trace, quote_numbers

ODD = (
    '{"ph": "X", "cat": "cpu_op", "name": "odd", "pid": 1, "tid": 1, "ts": 5100, "dur": 1, "args": {"x": 1}}'
)
UNKNOWN = "1 values that are no JSON (NaN, half a character, ...) count as unknown"
LEFT_OUT = "1 events with a field of another type are left out"
COUNT = len(build_gpu_trace(0).events)


def write(folder: Path, event: str, style: str) -> Path:
    """A whole trace with one more event, in Kineto's formatting or on one line; at the end of the file or before it."""
    text = build_gpu_trace(0).text()
    if style == "one line":
        text = json.dumps(json.loads(text))
    first, _, rest = text.partition('"traceEvents": [')
    path = folder / "rank0_trace.json"
    path.write_text(f'{first}"traceEvents": [{event}, {rest}', errors="surrogateescape")
    return path


@pytest.mark.parametrize("style", ["kineto", "one line"])
@pytest.mark.parametrize(
    ("event", "kept", "remarks"),
    [
        (ODD.replace('"x": 1', '"x": NaN'), 1, [UNKNOWN]),
        (ODD.replace('"x": 1', '"x": [-Infinity]'), 1, [UNKNOWN]),
        (ODD.replace('"x": 1', '"x": 1e999'), 1, []),
        (ODD.replace('"x": 1', f'"x": 1{"0" * 400}'), 1, []),
        (ODD.replace("odd", "half of \\ud83d"), 1, [UNKNOWN]),
        (ODD.replace('"tid": 1', '"tid": 140.5'), 1, []),
        (ODD.replace('"x": 1', '"dtype": 7, "Collective name": 5, "Process Group Description": [1]'), 1, []),
        (ODD.replace("5100", "NaN"), 0, [UNKNOWN, LEFT_OUT]),
        (ODD.replace('"x": 1', '"x": nan'), 1, [UNKNOWN]),
        (ODD.replace('"x": 1', '"x": -inf'), 1, [UNKNOWN]),
        (ODD.replace('"x": 1', '"x": "nan, inf"'), 1, []),
        (ODD.replace("odd", "one odd \udcff byte"), 1, [UNKNOWN]),
        (ODD.replace("odd", "a \x01 control"), 1, []),
        (ODD.replace("5100", '"5100.5"'), 1, []),
        (ODD.replace("5100", '"noon"'), 0, [LEFT_OUT]),
        (ODD.replace('"odd"', "7"), 0, [LEFT_OUT]),
        (ODD.replace('{"x": 1}', "[1]"), 0, [LEFT_OUT]),
    ],
)
def test_odd_value_costs_no_more_than_its_event(
    tmp_path: Path, event: str, kept: int, remarks: list[str], style: str
) -> None:
    whole = measure_traces({0: build_gpu_trace(0).write(tmp_path / "whole.json")}).ranks[0]
    path = write(tmp_path, event, style)
    assert len(load_trace(path).ts) == COUNT + kept
    measures = measure_traces({0: path})
    assert measures.findings == []
    (found,) = measures.ranks
    assert [asdict(row) for row in found.rows] == [asdict(row) for row in whole.rows]
    assert [finding.reason for finding in found.findings] == remarks
    merged = merge_traces({0: path}, tmp_path / "merged.json.gz", offsets_ns={})
    assert merged.ranks == [0] and merged.events >= COUNT
    names = [
        e["name"]
        for e in json.loads(gzip.decompress((tmp_path / "merged.json.gz").read_bytes()))["traceEvents"]
    ]
    assert names.count("adamw") == 3


def test_numbers_in_quotes_are_numbers(tmp_path: Path) -> None:
    """The measures, and the times in the merged trace, are those of plain numbers."""
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


@pytest.mark.parametrize(
    ("base", "base_ns"),
    [
        ('"1700000000000000000"', 1_700_000_000_000_000_000),
        ("1.7e18", 1_700_000_000_000_000_000),
        ("NaN", 0),
        ('"x"', 0),
        ("true", 0),
        ("1e400", 0),
        ("[1]", 0),
    ],
)
@pytest.mark.parametrize("behind", [False, True])
def test_odd_base_time(tmp_path: Path, base: str, base_ns: int, behind: bool) -> None:
    path, text = tmp_path / "rank0_trace.json", build_gpu_trace(0).text()
    where = '"traceName"' if behind else '"schemaVersion"'
    path.write_text(text.replace(where, f'"baseTimeNanoseconds": {base}, {where}'))
    assert load_trace(path).origin_ns == base_ns + 5_000_500


def test_a_category_per_event(tmp_path: Path) -> None:
    """40,000 categories: more than 16 bits of them end the whole analysis with an error of numpy."""
    trace = build_gpu_trace(0)
    whole = measure_traces({0: trace.write(tmp_path / "whole.json")}).ranks[0]
    for number in range(40_000):
        trace.add(f"category {number}", "x", 5000.5, 5001)
    (found,) = measure_traces({0: trace.write(tmp_path / "rank0_trace.json")}).ranks
    assert [asdict(row) for row in found.rows] == [asdict(row) for row in whole.rows]


def test_a_stream_is_not_cut_to_32_bits(tmp_path: Path) -> None:
    """Some writers give the address of a stream: two of them must not become one, nor `none`."""
    streams = (7, 7 + (1 << 32), (1 << 33) - 1)
    trace = build_gpu_trace(0)
    for stream in streams:
        trace.kernel("gemm", 5200, 5300, 5301, stream=stream)
    assert set(load_trace(trace.write(tmp_path / "rank0_trace.json")).stream.tolist()) >= set(streams)


def test_memory_without_totals_is_no_point(tmp_path: Path) -> None:
    trace = build_gpu_trace(0)
    trace.memory(5100, 3 << 20, 8 << 20)
    event: dict[str, Any] = {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": 1,
        "tid": 1,
    }
    trace.events.append(event | {"ts": 5200, "args": {"Bytes": 512, "Device Type": 1, "Device Id": 0}})
    (found,) = measure_traces({0: trace.write(tmp_path / "rank0_trace.json")}).ranks
    assert [point.allocated_mib for point in found.memory] == [3.0]
    assert found.allocations == 2
