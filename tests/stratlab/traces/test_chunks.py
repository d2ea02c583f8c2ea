"""The pieces hold every event once, whatever the formatting and wherever the file is cut; memory stays bounded.
The merged file holds every event of every rank once, changed only where ranks would collide; a rank whole or not."""

import gzip
import json
import random
from decimal import Decimal

import numpy as np
import pytest

from stratlab.traces import chunks
from stratlab.traces.chunks import Limits, TraceError, split_events
from stratlab.traces.merge import HOUR_NS, find_offsets, merge_traces
from stratlab.traces.merged_events import PYTHON_TRACK, read_ns
from tests.codes import find_codes
from tests.stratlab.raised import raised
from tests.stratlab.simulated.small import HOST, TraceWriter, build_gpu_trace

NAMES = ["plain", 'quo"te', "back\\slash", '\\"', "}, {", "],", "ü€", "tab\t", "\\", "{[", "line\n  },\n  {"]


def build_events(count, seed=0):
    """Events whose texts look like the borders between events."""
    draw = random.Random(seed)
    return [
        {
            "ph": "X",
            "name": draw.choice(NAMES) * draw.randrange(3),
            "ts": i,
            "args": {draw.choice(NAMES): [{}, [], {"a": [{"b": draw.choice(NAMES)}]}][draw.randrange(3)]},
        }
        for i in range(count)
    ]


def as_kineto(events):
    lines = ",\n".join("  " + json.dumps(event, indent=2).replace("\n", "\n  ") for event in events)
    return f'{{\n  "rank": 3,\n    "traceEvents": [\n    \n{lines}\n  ],\n  "traceName": "x" }}'


def as_json(**style):
    return lambda events: json.dumps(
        {"rank": 3, "traceEvents": events, "tail": [{"a": 1}, {"b": {}}]}, **style
    )


FORMATS = {
    "kineto": as_kineto,
    "compact": as_json(separators=(",", ":"), ensure_ascii=False),
    "indent 2": as_json(indent=2),
    "tabs": as_json(indent="\t"),
    "brace behind a comma": lambda events: (
        '{"rank":3,"traceEvents" : ['
        + ",\n{".join(json.dumps(e)[1 if i else 0 :] for i, e in enumerate(events))
        + "]}"
    ),
    "comma before a brace": lambda events: (
        '{"rank":3,\n"traceEvents"\n:\n[\n' + "\n, ".join(map(json.dumps, events)) + "\n]\n}\n\n"
    ),
    "kineto, then compact": lambda events: as_kineto(events).replace(
        "\n  ],\n", ",\n" + ",".join(json.dumps(event) for event in events) + "]\n,"
    ),
}


def read_all(path, limits=chunks.LIMITS):
    head, *pieces = split_events(path, limits)
    *lists, last = (json.loads(piece) for piece in pieces)
    events = [event for part in lists for event in part] + last["traceEvents"]
    return json.loads(head), events, max(map(len, pieces))


def refuse(path, limits=chunks.LIMITS):
    return find_codes(raised(list, split_events(path, limits)))


@pytest.mark.parametrize(
    ("style", "block_bytes"),
    [*((style, 333) for style in FORMATS), ("kineto", 5), ("compact", 5), ("kineto, then compact", 1 << 20)],
)
def test_every_event_once_in_any_formatting(tmp_path, monkeypatch, style, block_bytes):
    monkeypatch.setattr(chunks, "BLOCK_BYTES", block_bytes)
    path, events = tmp_path / "trace.json", build_events(40, block_bytes)
    text = FORMATS[style](events)
    path.write_bytes(text.encode())
    head, found, largest = read_all(path)
    assert found == json.loads(text)["traceEvents"] and head == {"rank": 3}
    if style != "kineto, then compact":
        assert largest < len(text) / 4  # it was cut


@pytest.mark.parametrize("style", ["kineto", "compact"])
def test_a_cut_off_file_never_passes_as_whole(tmp_path, monkeypatch, style):
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 64)
    path, text = tmp_path / "trace.json", FORMATS[style](build_events(6)).encode()
    for length in range(0, len(text.rstrip()), 7):
        path.write_bytes(text[:length])
        with pytest.raises((TraceError, ValueError)):
            read_all(path)


HEAD, BLOCK = b'{"traceEvents": [', 1 << 16
HOSTILE = {
    "a second list": ([b'{"traceEvents": [{"ts": 1}], "x": 1, "traceEvents": []}'], "SL-trace-events-twice"),
    "an object of events": ([b'{"traceEvents": {}}'], "SL-trace-events-no-list"),
    "no comma": ([HEAD, b'{"a": "' + b"x" * BLOCK + b'"}\n{"b": 1}', b" " * BLOCK], "SL-trace-not-json"),
    "a comma first": ([HEAD, b', {"a": 1}', b" " * BLOCK], "SL-trace-not-json"),
    "white space before the list": ([b'{"traceEvents":', *[b" " * BLOCK] * 20], "SL-trace-head-large"),
    "an endless string": ([HEAD, b'{"name": "', *[b"x" * BLOCK] * 20], "SL-event-too-large"),
    "brackets": ([HEAD, *[b"[" * BLOCK] * 20], "SL-trace-nested"),
    "Kineto's event without an end": (
        [HEAD, b'\n  {\n    "args": [', *[b"[]," * (BLOCK >> 2)] * 20],
        "SL-event-too-large",
    ),
    "an endless tail": ([HEAD, b'{}], "x": [', *[b"[]," * (BLOCK >> 2)] * 20], "SL-event-too-large"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_content_is_refused_before_it_fills_the_memory(name, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "BLOCK_BYTES", BLOCK)
    blocks, code = HOSTILE[name]
    limits = Limits(ratio=10_000, head_bytes=4 * BLOCK, piece_bytes=8 * BLOCK)
    read = []
    monkeypatch.setattr(chunks, "read_blocks", lambda *_: _keep(blocks, read))
    assert refuse(tmp_path, limits) == [code] and sum(map(len, read)) <= 10 * BLOCK


def _keep(blocks, read):
    for block in blocks:
        read.append(block)
        yield block


def test_caps_apply_before_and_while_reading(tmp_path):
    path = build_gpu_trace(0).write(tmp_path / "trace.json")
    size = path.stat().st_size
    assert refuse(path, Limits(raw_bytes=size - 1)) == ["SL-trace-too-large"]
    assert refuse(path, Limits(head_bytes=20)) == ["SL-trace-head-large"]
    assert refuse(path, Limits(piece_bytes=200)) == ["SL-event-too-large"]
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert refuse(packed, Limits(raw_bytes=size - 1)) == ["SL-trace-unpacked-large"]
    assert refuse(packed, Limits(ratio=2, ratio_from_bytes=100)) == ["SL-gzip-bomb"]
    assert list(split_events(packed, Limits(raw_bytes=size)))


BASE_NS = 1_790_857_026_000_000_000


def build_rank(rank, base_ns=BASE_NS, steps=2):
    """GPU steps with arrows, instants, names and texts for ids, as Kineto writes them."""
    trace = build_gpu_trace(rank, steps)
    trace.head["baseTimeNanoseconds"] = base_ns
    for pid, label in ((HOST, "CPU"), (0, "GPU 0"), (1, "GPU 1")):
        about = {"ph": "M", "ts": 5000.5, "pid": pid, "tid": 0}
        trace.events.append({**about, "name": "process_name", "args": {"name": "python"}})
        trace.events.append({**about, "name": "process_labels", "args": {"labels": label}})
    for number in (1, 2, 3):
        place = {"id": number, "cat": "ac2g", "name": "ac2g"}
        trace.events.append({"ph": "s", "pid": HOST, "tid": HOST, "ts": 5100.5 + number, **place})
        trace.events.append({"ph": "f", "pid": 0, "tid": 7, "ts": 5200.5 + number, "bp": "e", **place})
    trace.memory(5150.25, 1, 2)
    instant = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 9000.125}
    trace.events.append(instant)
    trace.add("Trace", "PyTorch Profiler (0)", 5000, 9000, "PyTorch Profiler", "Spans")
    trace.add("python_function", "train.py(7): step", 5050, 5450)
    return trace


def write_ranks(folder, traces, suffix=""):
    return {rank: t.write(folder / f"rank{rank}_trace.json{suffix}") for rank, t in enumerate(traces)}


def read_merged(merged):
    assert merged.file is not None
    content = json.loads(gzip.decompress(merged.file.read_bytes()), parse_float=Decimal)
    return content


def name_processes(content):
    return {e["pid"]: e["args"]["name"] for e in content["traceEvents"] if e["name"] == "process_name"}


def test_every_event_comes_through_once(tmp_path):
    bases = {0: BASE_NS, 1: BASE_NS - 7_776_000 * 10**9, 2: BASE_NS + 10**9}  # they step by three months
    offsets = {0: 0, 1: -7_776_000 * 10**9 + 3, 2: 1_234_567_891}
    traces = [build_rank(rank, base) for rank, base in bases.items()]
    merged = merge_traces(write_ranks(tmp_path, traces), tmp_path / "m.json.gz", offsets_ns=offsets)
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
    assert found == expected and (merged.ranks, merged.events, merged.flows) == ([0, 1, 2], len(expected), 9)
    assert merged.reason == "" and merged.bytes == (tmp_path / "m.json.gz").stat().st_size
    assert content["mergedRanks"] == [0, 1, 2]
    assert origin % HOUR_NS == 0 and all(0 < e["ts"] < 2 * 3_600_000_000 for e in found)


def test_odd_fields_and_texts(tmp_path):
    trace = build_gpu_trace(1, steps=1)
    trace.events[0] |= {"cname": "good", "tts": 1.5, "bind_id": 5, "id": "0x1f"}
    trace.events[1]["name"] = "tab\tin a text"
    path = tmp_path / "rank1_trace.json"
    text = trace.text().replace("tab\\t", "tab\t").replace("aten::copy_", "aten::\udcff")
    path.write_bytes(text.encode(errors="surrogateescape"))
    events = read_merged(merge_traces({1: path}, tmp_path / "merged.json.gz", offsets_ns={}))["traceEvents"]
    known = {"cname": "good", "tts": Decimal("1.5"), "bind_id": (1 << 32) + 5}
    assert {key: events[0][key] for key in known} == known and 1 << 32 <= events[0]["id"] < 2 << 32
    assert events[1]["name"] == "tab in a text" and "aten::�" in {e["name"] for e in events}


def test_times_are_read_exactly():
    times = {b"4434500634182.761": 4434500634182761, b"5": 5000, b"5.1234": 5123}
    times |= {
        b"1700000000000000.25": 1700000000000000250,
        b"5.1236e3": 5123600,
        b"-0.001": -1,
        b'"5.25"': 5250,
    }
    times |= {b'"x"': None, b"null": None, b"1e999999999": None}
    assert {text: read_ns(text) for text in times} == times


CORRUPTIONS = {
    "cut off": (lambda data: data[:-300], "SL-trace-not-json"),
    "flipped": (
        lambda data: data.replace(b'"dur": ', b'"dur"! ', 40).replace(b'"dur"!', b'"dur":', 39),
        "SL-trace-not-json",
    ),
    "empty": (lambda data: b"", "SL-file-empty"),
    "packed and cut off": (lambda data: gzip.compress(data)[:-50], "SL-gzip-damaged"),
}


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_damaged_rank_is_left_out_whole(tmp_path, monkeypatch, corruption):
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 2000)
    files = write_ranks(tmp_path, [build_rank(rank) for rank in range(3)])
    change, code = CORRUPTIONS[corruption]
    files[1].write_bytes(change(files[1].read_bytes()))
    merged = merge_traces(files, tmp_path / "merged.json.gz", offsets_ns={})
    without = merge_traces({r: files[r] for r in (0, 2)}, tmp_path / "without.json.gz", offsets_ns={})
    assert merged.ranks == [0, 2] and find_codes(merged.reason) == [code]
    assert read_merged(merged) == read_merged(without)
    assert (merged.events, merged.flows) == (without.events, without.flows)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_limit_on_all_ranks_takes_the_lowest_whole_ones(tmp_path, suffix):
    files = write_ranks(tmp_path, [build_rank(rank) for rank in range(4)], suffix)
    size = len(build_rank(0).text())
    out = tmp_path / "out" / "merged.json.gz"
    out.parent.mkdir()
    merged = merge_traces(files, out, offsets_ns={}, raw_bytes=int(2.9 * size))
    assert merged.ranks == [0, 1] and find_codes(merged.reason) == ["SL-merge-limit"] * 2
    assert len(name_processes(read_merged(merged))) == 8
    nothing = merge_traces(files, tmp_path / "out" / "other.json.gz", offsets_ns={}, raw_bytes=1000)
    assert (nothing.file, nothing.ranks, nothing.events, nothing.bytes) == (None, [], 0, 0)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["merged.json.gz"]


def test_more_processes_or_threads_than_a_trace_can_have(tmp_path):
    for number, field, code in ((1001, "pid", "SL-merge-processes"), (20_001, "tid", "SL-merge-threads")):
        trace = TraceWriter(0)
        event = {"ph": "X", "cat": "python_function", "name": "x", "ts": 5, "dur": 1, "pid": 1, "tid": 1}
        trace.events = [event | {field: i} for i in range(number)]
        merged = merge_traces({0: trace.write(tmp_path / "a.json")}, tmp_path / "m.json.gz", offsets_ns={})
        assert merged.file is None and find_codes(merged.reason) == [code]


def test_clocks_that_cannot_be_compared_are_named(tmp_path):
    files = write_ranks(tmp_path, [build_rank(0), build_rank(1, BASE_NS + 9 * HOUR_NS)])
    merged = merge_traces(files, tmp_path / "merged.json.gz", offsets_ns={})
    assert find_codes(merged.reason) == ["SL-merge-apart"] and "9.0 h" in merged.reason


MS = 1_000_000
ORIGIN = 1_790_857_026_000_000_001  # float64 has steps of 256 ns here


def build_ends(count, offset_ns=0, noise_ns=0, seed=0):
    """Ends of collectives that come every 7 ms."""
    noise = np.random.default_rng(seed).integers(-noise_ns, noise_ns + 1, count)
    return ORIGIN + offset_ns + np.arange(count, dtype=np.int64) * 7 * MS + noise


def test_offsets_are_exact_to_the_nanosecond():
    planted = {0: 0, 1: 1_234_567_891, 2: -5 * MS - 3, 5: 3_600_000 * MS + 1}
    clocks = find_offsets({rank: build_ends(8, offset) for rank, offset in planted.items()})
    assert clocks.offsets_ns == planted
    assert (clocks.aligned, clocks.residual_ns, clocks.matched) == (True, 0, 8)
    assert "+1234.568 ms" in clocks.reason and "-5.000 ms" in clocks.reason


def test_collectives_that_disagree_correct_nothing():
    clocks = find_offsets(
        {0: build_ends(50), 1: build_ends(50, 4 * MS, noise_ns=12 * MS), 2: build_ends(50, 3 * MS)}
    )
    assert clocks.offsets_ns == {0: 0, 1: 0, 2: 3 * MS} and "rank 1 " in clocks.reason and clocks.aligned
    assert clocks.residual_ns is not None and clocks.residual_ns > 3 * MS
