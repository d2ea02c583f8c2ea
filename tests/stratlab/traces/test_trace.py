"""Loading: the same events as a plain JSON parser finds, from any formatting; bad files are refused with a reason."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stratlab.traces import chunks
from stratlab.traces.chunks import Limits, TraceError
from stratlab.traces.events import UNLINKED_CATEGORIES
from stratlab.traces.trace import load_trace, read_rank
from tests.stratlab.simulated.small import TraceWriter, build_gpu_trace


def plain(path: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]


def ns(us: float) -> int:
    return int((Decimal(str(us)) * 1000).to_integral_value())


def linked(event: dict[str, Any]) -> int:
    """Labels, operators and Python's stack launch nothing."""
    wanted = event["cat"] not in UNLINKED_CATEGORIES
    return int(event.get("args", {}).get("correlation", -1)) if wanted else -1


@pytest.mark.parametrize("block_bytes", [700, 8 << 20])
def test_events_are_those_of_a_plain_parser(
    gloo_traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(chunks, "BLOCK_BYTES", block_bytes)
    for path in (build_gpu_trace(0).write(tmp_path / "gpu.json"), gloo_traces / "rank0_trace.json"):
        trace, events = load_trace(path), [e for e in plain(path) if e.get("cat") != "Trace"]
        assert [trace.names[i] for i in trace.name] == [e["name"] for e in events]
        assert [trace.categories[i] for i in trace.cat] == [e["cat"] for e in events]
        assert trace.correlation.tolist() == [linked(e) for e in events]
        origin = min(e["ts"] for e in events)
        assert trace.ts.tolist() == [ns(e["ts"]) - ns(origin) for e in events]
        assert (trace.end - trace.ts).tolist() == [ns(e["dur"]) for e in events]


@pytest.mark.parametrize("style", ["compact", "indented", "packed", "events last"])
def test_formatting_does_not_matter(tmp_path: Path, style: str) -> None:
    writer, path = build_gpu_trace(3), tmp_path / "trace.json"
    content = json.loads(writer.text())
    if style == "packed":
        path.write_bytes(gzip.compress(writer.text().encode()))
    elif style == "events last":
        path.write_text(json.dumps({"traceEvents": content["traceEvents"], "distributedInfo": {"rank": 3}}))
    else:
        path.write_text(json.dumps(content, indent=None if style == "compact" else 1))
    trace = load_trace(path)
    assert len(trace.ts) == len([event for event in writer.events if event["ph"] == "X"])
    assert trace.distributed["rank"] == 3


def test_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    """At 1.7e15 us a float64 has steps of 0.25 us."""
    trace = TraceWriter(0)
    trace.add("kernel", "a", 1_700_000_000_000_000.0, 1_700_000_000_000_001.0)
    trace.add("kernel", "b", 5.0, 5.001)
    trace.events[0]["dur"] = 0.003
    path = trace.write(tmp_path / "trace.json")
    path.write_text(path.read_text().replace('"ts": 5.0', '"ts": 1700000000000000.257'))
    loaded = load_trace(path)
    assert (loaded.ts.tolist(), (loaded.end - loaded.ts).tolist()) == ([0, 257], [3, 1])
    assert loaded.origin_ns == 1_700_000_000_000_000_000


def test_three_months_in_microseconds_are_exact(tmp_path: Path) -> None:
    """Kineto counts from the start of a quarter: 7.8e12 us, of which a float64 has steps of 0.98 ns."""
    trace = TraceWriter(0)
    times = [7_800_000_000_000 + Decimal(i) / 1000 for i in (0, 1, 7, 499, 500, 501, 998, 999)]
    for i, _ in enumerate(times):
        trace.add("cpu_op", "a", 1000 + i, 1001 + i)
    path = trace.write(tmp_path / "trace.json")
    text = path.read_text()
    for i, at in enumerate(times):
        text = text.replace(f'"ts": {1000 + i},', f'"ts": {at},')
    path.write_text(text)
    assert load_trace(path).ts.tolist() == [0, 1, 7, 499, 500, 501, 998, 999]


def test_a_base_that_no_clock_can_have_is_ignored(tmp_path: Path) -> None:
    """At the end of the file, where no look at the head can find it."""
    content = json.loads(build_gpu_trace(0).text())
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": content["traceEvents"], "baseTimeNanoseconds": 10**40}))
    assert load_trace(path).origin_ns == 5_000_500


def test_odd_values_do_no_harm(tmp_path: Path) -> None:
    trace = build_gpu_trace(0)
    count = len(trace.events)
    trace.add("cpu_op", "text ids", 6000, 6001, tid="Trace PyTorch Profiler", pid="Spans", correlation="x")  # type: ignore[arg-type]
    trace.add("cpu_op", "huge", 6000, 6001, correlation=2**64)
    trace.add("Trace", "PyTorch Profiler (0)", 5000, 9000)
    trace.add("cpu_op", "no time", 0.0, 4.0)  # pytorch#188481
    trace.events.append({"ph": "X", "cat": "cpu_op", "name": "no duration", "ts": 6000, "pid": 1, "tid": 1})
    trace.events.append(
        {"ph": "M", "name": "process_name", "pid": "", "tid": "", "ts": 1, "args": {"name": "x"}}
    )
    loaded = load_trace(trace.write(tmp_path / "trace.json"))
    assert len(loaded.ts) == count + 2
    assert loaded.left_out == 2
    assert loaded.correlation[-2:].tolist() == [-1, -1]


def test_memory_events(tmp_path: Path) -> None:
    trace = build_gpu_trace(0)
    trace.memory(5100.5, 3 << 20, 8 << 20)
    memory = load_trace(trace.write(tmp_path / "trace.json")).memory
    assert (memory.ts.tolist(), memory.allocated.tolist(), memory.reserved.tolist()) == (
        [100_000],
        [3 << 20],
        [8 << 20],
    )


GOOD = build_gpu_trace(0).text()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"{}", "holds no traceEvents"),
        (b'{"traceEvents": []}', "no event with a duration"),
        (b'{"traceEvents": [{"ph": "M", "name": "x"}]}', "no event with a duration"),
        (GOOD[: len(GOOD) // 2].encode(), "truncated or not JSON"),
        (GOOD[:-3].encode(), "truncated or not JSON"),
        (GOOD.replace('"schemaVersion": 1', "schemaVersion").encode(), "not JSON before the events"),
        (gzip.compress(GOOD.encode())[:-20], "damaged or truncated gzip"),
        (b"\x1f\x8b" + b"rubbish" * 10, "damaged or truncated gzip"),
        (GOOD.encode("utf-16"), "is UTF-16 text"),
        (b"PK\x03\x04rubbish", "is a ZIP archive"),
        (b"SQLite format 3\0rubbish", "an SQLite database, as Nsight Systems"),
        (b"\n\x80\x01\0\0rubbish", "a binary trace, as of Perfetto"),
        (
            b'[{"ph": "X", "name": "a", "ts": "1.5", "dur": 2}]',
            "1 events without a category or a time",
        ),
        (b"[1, 2]", "holds no traceEvents"),
    ],
)
def test_bad_file_is_refused_with_its_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "rank0_trace.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=reason):
        load_trace(path)


@pytest.mark.parametrize("style", ["kineto", "one line", "bare"])
@pytest.mark.parametrize("block_bytes", [700, 8 << 20])
def test_a_refusal_names_the_place_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int, style: str
) -> None:
    monkeypatch.setattr(chunks, "BLOCK_BYTES", block_bytes)
    text = GOOD if style == "kineto" else json.dumps(json.loads(GOOD))
    text = json.dumps(json.loads(GOOD)["traceEvents"]) if style == "bare" else text
    place = text.index('"adamw"', len(text) // 2)
    path = tmp_path / "rank0_trace.json"
    path.write_text("\ufeff" + text[:place] + "~" + text[place:], encoding="utf-8")
    with pytest.raises(TraceError, match=rf"at byte {place + 3} of the file"):
        load_trace(path)


@pytest.mark.parametrize("before", ["", "\ufeff", " \n"])
def test_a_list_of_events_alone_is_read(tmp_path: Path, before: str) -> None:
    path, events = tmp_path / "rank0_trace.json", json.loads(GOOD)["traceEvents"]
    whole = load_trace(build_gpu_trace(0).write(tmp_path / "whole.json"))
    for indent in (None, 1):
        path.write_text(before + json.dumps(events, indent=indent), encoding="utf-8")
        found = load_trace(path)
        assert (found.distributed, found.ts.tolist()) == ({}, whole.ts.tolist())
    path.write_text(json.dumps(events)[:-1])
    with pytest.raises(TraceError, match="truncated or not JSON"):
        load_trace(path)


def test_gzip_bomb_is_refused_early(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    events = b'\n  {\n    "ph": "M"\n  },' * 50_000
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(b'{"traceEvents": [')
        for _ in range(100):
            file.write(events)
    with pytest.raises(TraceError, match="unpacks to more than 200 times its size"):
        load_trace(path)
    with pytest.raises(TraceError, match=r"holds more than 0\.03125 GiB"):
        load_trace(path, Limits(raw_bytes=32 << 20, ratio=10_000))


def test_endless_head_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    path.write_text(GOOD.replace('"schemaVersion": 1', f'"note": "{"x" * (40 << 20)}"'))
    with pytest.raises(TraceError, match="holds no traceEvents"):
        read_rank(path)
    assert read_rank(path, Limits(head_bytes=64 << 20)) == 0


def test_streams_beyond_32_bits_stay_apart(tmp_path: Path) -> None:
    trace = build_gpu_trace(0)
    for stream in (2**32 + 5, 5):
        trace.kernel("wide", 100, 200, 300, stream=stream)
    assert {5, 2**32 + 5} <= set(load_trace(trace.write(tmp_path / "rank0_trace.json")).stream.tolist())
