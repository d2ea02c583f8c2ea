"""The merged file holds every event of every rank once, changed only where ranks would collide; a rank whole or not."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stratlab.traces import chunks
from stratlab.traces.chunks import Limits
from stratlab.traces.discover import find_traces
from stratlab.traces.merge import HOUR_NS, Merged, merge_traces
from stratlab.traces.renamed import PYTHON_TRACK, read_ns
from tests.stratlab.simulated.small import HOST, TraceWriter, build_gpu_trace

BASE_NS = 1_790_857_026_000_000_000


def build_rank(rank: int, base_ns: int = BASE_NS, steps: int = 2) -> TraceWriter:
    """GPU steps with arrows, instants, names and texts for ids, as Kineto writes them."""
    trace = build_gpu_trace(rank, steps)
    trace.head["baseTimeNanoseconds"] = base_ns
    for pid, label in ((HOST, "CPU"), (0, "GPU 0"), (1, "GPU 1")):
        about = {"ph": "M", "ts": 5000.5, "pid": pid, "tid": 0}
        trace.events.append({**about, "name": "process_name", "args": {"name": "python"}})
        trace.events.append({**about, "name": "process_labels", "args": {"labels": label}})
        trace.events.append({**about, "name": "process_sort_index", "args": {"sort_index": pid}})
        trace.events.append(
            {**about, "tid": 7, "name": "thread_name", "args": {"name": f"stream 7 of {label}"}}
        )
    for number in (1, 2, 3):
        place = {"id": number, "cat": "ac2g", "name": "ac2g"}
        trace.events.append({"ph": "s", "pid": HOST, "tid": HOST, "ts": 5100.5 + number, **place})
        trace.events.append({"ph": "f", "pid": 0, "tid": 7, "ts": 5200.5 + number, "bp": "e", **place})
    trace.memory(5150.25, 1, 2)
    instant = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 9000.125}
    trace.events.append(instant)
    trace.add("Trace", "PyTorch Profiler (0)", 5000, 9000, "PyTorch Profiler", "Spans")  # type: ignore[arg-type]
    trace.add("python_function", "train.py(7): step", 5050, 5450)
    return trace


def write_ranks(folder: Path, traces: list[TraceWriter], suffix: str = "") -> dict[int, Path]:
    return {rank: t.write(folder / f"rank{rank}_trace.json{suffix}") for rank, t in enumerate(traces)}


def read_merged(merged: Merged) -> dict[str, Any]:
    """The file with exact times."""
    assert merged.file is not None
    content: dict[str, Any] = json.loads(gzip.decompress(merged.file.read_bytes()), parse_float=Decimal)
    return content


def name_processes(content: dict[str, Any]) -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in content["traceEvents"] if e["name"] == "process_name"}


def test_every_event_comes_through_once(tmp_path: Path) -> None:
    bases = {
        0: BASE_NS,
        1: BASE_NS - 7_776_000 * 10**9,
        2: BASE_NS + 10**9,
    }  # base times step by three months
    offsets = {0: 0, 1: -7_776_000 * 10**9 + 3, 2: 1_234_567_891}
    traces = [build_rank(rank, base) for rank, base in bases.items()]
    merged = merge_traces(
        write_ranks(tmp_path, traces), tmp_path / "merged_trace.json.gz", offsets_ns=offsets
    )
    content = read_merged(merged)
    origin = content["baseTimeNanoseconds"]
    names = name_processes(content)
    assert len(names) == len(set(names)) == 12
    found = [e for e in content["traceEvents"] if e["ph"] != "M"]
    expected = []
    for rank, trace in enumerate(traces):
        for event in json.loads(json.dumps([e for e in trace.events if e["ph"] != "M"]), parse_float=Decimal):
            at_ns = int(event["ts"] * 1000) + bases[rank] - offsets[rank] - origin
            label = {HOST: "CPU", 0: "GPU 0", "": "profiler"}.get(event["pid"], event["pid"])
            event |= {"ts": Decimal(at_ns) / 1000, "pid": f"rank {rank} {label}"}
            if "id" in event:
                event["id"] += rank << 32
            if event.get("cat") == "python_function":
                event["tid"] += PYTHON_TRACK
            expected.append(event)
    for event in found:
        event["pid"] = names[event["pid"]]
    assert found == expected
    assert (merged.ranks, merged.events, merged.flows) == ([0, 1, 2], len(expected), 9)
    assert merged.reason == "" and merged.bytes == (tmp_path / "merged_trace.json.gz").stat().st_size
    assert content["mergedRanks"] == [0, 1, 2]
    assert origin % HOUR_NS == 0 and all(0 < e["ts"] < 2 * 3_600_000_000 for e in found)


def test_processes_and_threads_are_named(tmp_path: Path) -> None:
    files = write_ranks(tmp_path, [build_rank(0), build_gpu_trace(1)])
    content = read_merged(merge_traces(files, tmp_path / "merged.json.gz", offsets_ns={}))
    names = name_processes(content)
    # GPU 1 of rank 0 has names but no event; rank 1 has no names at all
    assert sorted(names.values()) == sorted(
        ["rank 0 CPU", "rank 0 GPU 0", "rank 0 Spans", "rank 0 profiler", "rank 1 CPU", "rank 1 GPU 0"]
    )
    kept = {
        (names[e["pid"]], e["tid"]): e["args"]["name"]
        for e in content["traceEvents"]
        if e["name"] == "thread_name"
    }
    assert kept == {
        ("rank 0 CPU", 7): "stream 7 of CPU",
        ("rank 0 GPU 0", 7): "stream 7 of GPU 0",
        ("rank 0 CPU", HOST + PYTHON_TRACK): f"Python stack of {HOST}",
    }
    order = {
        names[e["pid"]]: e["args"]["sort_index"]
        for e in content["traceEvents"]
        if e["name"] == "process_sort_index"
    }
    assert sorted(order, key=lambda name: order[name])[:2] == ["rank 0 CPU", "rank 0 GPU 0"]
    assert max(v for k, v in order.items() if "rank 0" in k) < min(
        v for k, v in order.items() if "rank 1" in k
    )


@pytest.mark.parametrize("block_bytes", [1000, 1 << 20])
def test_formatting_of_the_input_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(chunks, "BLOCK_BYTES", block_bytes)
    trace, compact = build_rank(0), tmp_path / "compact.json"
    compact.write_text(json.dumps(json.loads(trace.text()), separators=(",", ":")))
    contents = [
        read_merged(merge_traces({0: path}, tmp_path / "merged.json.gz", offsets_ns={}))
        for path in (trace.write(tmp_path / "a.json"), trace.write(tmp_path / "a.json.gz"), compact)
    ]
    assert contents[0] == contents[1] == contents[2]


def test_odd_fields_and_texts(tmp_path: Path) -> None:
    trace = build_gpu_trace(1, steps=1)
    trace.events[0] |= {"cname": "good", "tts": 1.5, "bind_id": 5, "id": "0x1f"}
    trace.events[1]["name"] = "tab\tin a text"
    path = tmp_path / "rank1_trace.json"
    path.write_bytes(
        trace.text()
        .replace("tab\\t", "tab\t")
        .replace("aten::copy_", "aten::\udcff")
        .encode(errors="surrogateescape")
    )
    events = read_merged(merge_traces({1: path}, tmp_path / "merged.json.gz", offsets_ns={}))["traceEvents"]
    assert {k: events[0][k] for k in ("cname", "tts", "bind_id")} == {
        "cname": "good",
        "tts": Decimal("1.5"),
        "bind_id": (1 << 32) + 5,
    }
    assert 1 << 32 <= events[0]["id"] < 2 << 32
    assert events[1]["name"] == "tab in a text" and "aten::�" in {e["name"] for e in events}


def test_events_without_a_usable_time_are_left_out(tmp_path: Path) -> None:
    trace = build_gpu_trace(0, steps=1)
    count = len(trace.events)
    for ts in (0.0, -5, "seven", None, 1e300, 10**40, [1]):
        trace.events.append({"ph": "X", "cat": "cpu_op", "name": "x", "pid": 1, "tid": 1, "ts": ts, "dur": 1})
    files = {0: trace.write(tmp_path / "a.json")}
    merged = merge_traces(files, tmp_path / "merged.json.gz", offsets_ns={})
    assert merged.events == count
    assert merged.reason == "rank 0: 7 events without a usable time are left out"


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"4434500634182.761", 4434500634182761),
        (b"1700000000000000.25", 1700000000000000250),
        (b"5", 5000),
        (b"5.1234", 5123),
        (b"5.1236e3", 5123600),
        (b"1E2", 100000),
        (b"-5.5", -5500),
        (b"-0.001", -1),
        (b'"5.25"', 5250),
        (b'"x"', None),
        (b"null", None),
        (b"1e999999999", None),
        (b"NaN", None),
    ],
)
def test_times_are_read_exactly(text: bytes, ns: int | None) -> None:
    assert read_ns(text) == ns


CORRUPTIONS = {
    "cut off": (lambda data: data[:-300], "truncated or not JSON"),
    "flipped": (
        lambda data: data.replace(b'"dur": ', b'"dur"! ', 40).replace(b'"dur"!', b'"dur":', 39),
        "truncated",
    ),
    "empty": (lambda data: b"", "empty file"),
    "wrong type": (lambda data: data.replace(b'"pid": 0', b'"pid": {}'), "Expected"),
    "packed and cut off": (lambda data: gzip.compress(data)[:-50], "damaged or truncated gzip"),
}


@pytest.mark.parametrize("victim", [1, 2])
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_damaged_rank_is_left_out_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corruption: str, victim: int
) -> None:
    """The damage lies behind the first pieces: what was already written is taken back."""
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 2000)
    files = write_ranks(tmp_path, [build_rank(rank) for rank in range(3)])
    kept = sorted({0, 1, 2} - {victim})
    change, reason = CORRUPTIONS[corruption]
    files[victim].write_bytes(change(files[victim].read_bytes()))
    merged = merge_traces(files, tmp_path / "merged.json.gz", offsets_ns={})
    without = merge_traces({r: files[r] for r in kept}, tmp_path / "without.json.gz", offsets_ns={})
    assert merged.ranks == kept and f"rank {victim} is not in it" in merged.reason and reason in merged.reason
    assert read_merged(merged) == read_merged(without)
    assert (merged.events, merged.flows) == (without.events, without.flows)


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    files = {
        0: tmp_path / "none.json",
        1: tmp_path / "folder.json",
        2: build_rank(2).write(tmp_path / "a.json"),
    }
    merged = merge_traces(files, tmp_path / "merged.json.gz", offsets_ns={})
    assert merged.ranks == [2]
    assert "rank 0 is not in it: is not readable" in merged.reason and "rank 1 is not in it" in merged.reason


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_limit_on_all_ranks_takes_the_lowest_whole_ones(tmp_path: Path, suffix: str) -> None:
    files = write_ranks(tmp_path, [build_rank(rank) for rank in range(4)], suffix)
    size = len(build_rank(0).text())
    out = tmp_path / "out" / "merged.json.gz"
    out.parent.mkdir()
    merged = merge_traces(files, out, offsets_ns={}, raw_bytes=int(2.9 * size))
    assert merged.ranks == [0, 1]
    assert [f"rank {rank} is not in it: beyond the limit of 0 MiB for all ranks" for rank in (2, 3)] == (
        merged.reason.split("; ")
    )
    assert len(name_processes(read_merged(merged))) == 8
    nothing = merge_traces(files, tmp_path / "out" / "other.json.gz", offsets_ns={}, raw_bytes=1000)
    assert (nothing.file, nothing.ranks, nothing.events, nothing.bytes) == (None, [], 0, 0)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["merged.json.gz"]


def test_more_processes_or_threads_than_a_trace_can_have(tmp_path: Path) -> None:
    for number, field, reason in ((1001, "pid", "1000 processes"), (20_001, "tid", "20000 threads")):
        trace = TraceWriter(0)
        for i in range(number):
            trace.events.append(
                {"ph": "X", "cat": "python_function", "name": "x", "ts": 5, "dur": 1, "pid": 1, "tid": 1}
            )
            trace.events[-1][field] = i
        merged = merge_traces({0: trace.write(tmp_path / "a.json")}, tmp_path / "m.json.gz", offsets_ns={})
        assert merged.file is None and f"has more than {reason}" in merged.reason


def test_clocks_that_cannot_be_compared_are_named(tmp_path: Path) -> None:
    files = write_ranks(tmp_path, [build_rank(0), build_rank(1, BASE_NS + 9 * HOUR_NS)])
    merged = merge_traces(files, tmp_path / "merged.json.gz", offsets_ns={})
    assert merged.reason == "the ranks begin 9.0 h apart"


@pytest.mark.parametrize("base", [10**40, -(2**62), "x", 1.5])
def test_base_time_that_is_none(tmp_path: Path, base: int) -> None:
    files = write_ranks(tmp_path, [build_rank(0), build_rank(1, base)])
    merged = merge_traces(files, tmp_path / "merged.json.gz", offsets_ns={})
    assert merged.ranks == [0] and merged.reason.startswith("rank 1 is not in it: ")


def test_merged_file_is_no_trace_of_a_rank(tmp_path: Path) -> None:
    merge_traces(write_ranks(tmp_path, [build_rank(0)]), tmp_path / "merged_trace.json.gz", offsets_ns={})
    [_, skipped] = find_traces(tmp_path, 1).findings
    assert (skipped.file, skipped.reason) == ("merged_trace.json.gz", "a merged trace, not that of one rank")


def test_older_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    out = tmp_path / "merged.json.gz"
    out.write_text("older")
    with open(out) as reader:
        assert merge_traces({0: build_rank(0).write(tmp_path / "a.json")}, out, offsets_ns={}).file == out
        assert reader.read() == "older"  # who reads it is not disturbed
    assert gzip.decompress(out.read_bytes()).startswith(b"{")


IN_A_PROCESS = """
import sys
from pathlib import Path
from stratlab.traces.merge import merge_traces
def peak(): return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) >> 10
out, *names = map(Path, sys.argv[1:])
merge_traces({0: names[0]}, out, offsets_ns={})
before = peak()
merged = merge_traces(dict(enumerate(names[1:])), out, offsets_ns={})
print(merged.events, peak() - before)
"""


def test_memory_does_not_grow_with_the_traces(tmp_path: Path) -> None:
    small, large = build_rank(0, steps=600), tmp_path / "large.json"
    events = small.text().split('"traceEvents": [\n')[1].split("\n  ],")[0]
    large.write_text(small.text().replace(events, ",\n".join([events] * 4)))
    first = small.write(tmp_path / "small.json")
    command = [sys.executable, "-c", IN_A_PROCESS, tmp_path / "merged.json.gz", first, large, large]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    count, grown_mib = map(int, done.stdout.split())
    assert count == 8 * (len(small.events) - 12)
    assert large.stat().st_size > 9 << 20 and grown_mib < 8


def test_limits_hold_for_a_rank(tmp_path: Path) -> None:
    path = build_rank(0).write(tmp_path / "a.json.gz")
    merged = merge_traces({0: path}, tmp_path / "m.json.gz", offsets_ns={}, limits=Limits(raw_bytes=3000))
    assert merged.file is None and "rank 0 is not in it: holds more than" in merged.reason
