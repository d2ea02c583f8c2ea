"""Loading: the same events as a plain JSON parser finds, from any formatting; bad files are refused with a reason.
One odd value costs itself or its event, not the file; and it is named."""

import json
from dataclasses import asdict
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratlab.analysis.measure import measure_traces
from stratlab.traces import chunks
from stratlab.traces.chunks import TraceError
from stratlab.traces.merge import merge_traces
from stratlab.traces.trace import load_trace
from stratlab_spec import trace_events as intervals
from stratlab_spec.trace_events import UNLINKED_CATEGORIES
from tests.codes import find_codes
from tests.stratlab.raised import raised
from tests.stratlab.simulated.small import ALL_REDUCE, STEP_MS, TraceWriter, build_cpu_trace, build_gpu_trace


def plain(path):
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]


def ns(us):
    return int((Decimal(str(us)) * 1000).to_integral_value())


def correlations(loaded):
    whole = np.full(len(loaded.ts), -1)
    whole[loaded.linked] = loaded.linked_correlation
    return whole.tolist()


def linked(event):
    """Labels, operators and Python's stack launch nothing."""
    wanted = event["cat"] not in UNLINKED_CATEGORIES
    return int(event.get("args", {}).get("correlation", -1)) if wanted else -1


@pytest.mark.parametrize("block_bytes", [700, 8 << 20])
def test_events_are_those_of_a_plain_parser(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(chunks, "BLOCK_BYTES", block_bytes)
    for trace, path in (
        (build_gpu_trace(0), tmp_path / "gpu.json"),
        (build_cpu_trace(0), tmp_path / "cpu.json"),
    ):
        trace.add("Trace", "PyTorch Profiler (0)", 5000, 9000)
        loaded, events = load_trace(trace.write(path)), [e for e in plain(path) if e["cat"] != "Trace"]
        assert [loaded.names[i] for i in loaded.name] == [e["name"] for e in events]
        assert [loaded.categories[i] for i in loaded.cat] == [e["cat"] for e in events]
        assert correlations(loaded) == [linked(e) for e in events]
        origin = min(e["ts"] for e in events)
        assert loaded.ts.tolist() == [ns(e["ts"]) - ns(origin) for e in events]
        assert (loaded.end - loaded.ts).tolist() == [ns(e["dur"]) for e in events]


def test_times_are_exact_to_the_nanosecond(tmp_path):
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


@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("origin", [1000, 1_700_000_000_000_000])
def test_times_without_decimals_are_the_same_as_integers_and_with_a_point(tmp_path, kind, origin):
    trace, starts = TraceWriter(0), (0, 7, 123_456)
    for start in starts:
        trace.add("kernel", "a", kind(origin + start), kind(origin + start + 3))
    loaded = load_trace(trace.write(tmp_path / "trace.json"))
    assert loaded.ts.tolist() == [start * 1000 for start in starts]
    assert set((loaded.end - loaded.ts).tolist()) == {3000} and loaded.origin_ns == origin * 1000


def test_what_no_table_needs_is_left_out_but_bounds_the_recording(tmp_path):
    trace = build_gpu_trace(0)
    trace.head["deviceProperties"] = [{"name": "H200"}]
    trace.add("python_function", "train.py(7): step", 4000.5, 20_000.25)
    trace.add("python_function", "without a time", 0, 5)
    path = trace.write(tmp_path / "trace.json")
    whole, short = load_trace(path), load_trace(path, operators=False)
    assert {"cpu_op", "python_function"} & {*short.categories} == set() < {"cpu_op"} & {*whole.categories}
    for loaded in (whole, short):
        assert (loaded.origin_ns, loaded.last_ns, loaded.left_out) == (4_000_500, 15_999_750, 1)
        assert loaded.has_stacks and loaded.raw_bytes == path.stat().st_size
    for name in ("ts", "end"):
        assert getattr(whole, name)[whole.gpu].tolist() == getattr(short, name)[short.gpu].tolist()
    assert not load_trace(build_gpu_trace(0).write(path)).has_stacks


GOOD = build_gpu_trace(0).text()


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "SL-file-empty"),
        (b"{}", "SL-trace-no-events"),
        (b"[1, 2]", "SL-trace-no-events"),
        (b'{"traceEvents": [{"ph": "M", "name": "x"}]}', "SL-trace-no-duration"),
        (b'[{"ph": "X", "name": "a", "ts": "1.5", "dur": 2}]', "SL-trace-no-duration"),
        (GOOD[: len(GOOD) // 2].encode(), "SL-trace-not-json"),
        (GOOD[:-3].encode(), "SL-trace-not-json"),
        (GOOD.replace('"schemaVersion": 1', "schemaVersion").encode(), "SL-trace-head-not-json"),
        (b"\x1f\x8b" + b"rubbish" * 10, "SL-gzip-damaged"),
        (GOOD.encode("utf-16"), "SL-trace-other-format"),
        (b"PK\x03\x04rubbish", "SL-trace-other-format"),
        (b"\n\x80\x01\0\0rubbish", "SL-trace-binary"),
    ],
)
def test_bad_file_is_refused_with_its_reason(tmp_path, content, code):
    path = tmp_path / "rank0_trace.json"
    path.write_bytes(content)
    assert find_codes(raised(load_trace, path)) == [code]


def test_a_list_of_events_alone_is_read(tmp_path):
    path, events = tmp_path / "rank0_trace.json", json.loads(GOOD)["traceEvents"]
    whole = load_trace(build_gpu_trace(0).write(tmp_path / "whole.json"))
    for before, indent in (("", None), ("\ufeff", 1), (" \n", 1)):
        path.write_text(before + json.dumps(events, indent=indent), encoding="utf-8")
        found = load_trace(path)
        assert (found.distributed, found.ts.tolist()) == ({}, whole.ts.tolist())
    path.write_text(json.dumps(events)[:-1])
    with pytest.raises(TraceError):
        load_trace(path)


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=15)


def build_spans(spans):
    starts = np.array([start for start, _ in spans], np.int64)
    ends = np.array([start + size for start, size in spans], np.int64)
    cells = {cell for start, size in spans for cell in range(start, start + size)}
    return intervals.build_union(starts, ends), cells


@given(SPANS, SPANS)
def test_sets_of_intervals_are_those_of_unit_cells(one, other):
    (a, cells_a), (b, cells_b) = build_spans(one), build_spans(other)
    found = {
        "union": (a, cells_a),
        "join": (intervals.join(a, b), cells_a | cells_b),
        "subtract": (intervals.subtract(a, b), cells_a - cells_b),
        "intersect": (intervals.intersect(a, b), cells_a & cells_b),
    }
    for name, ((starts, ends), cells) in found.items():
        inside = [cell for low, high in zip(starts, ends, strict=True) for cell in range(low, high)]
        assert inside == sorted(cells) and intervals.length((starts, ends)) == len(cells), name
    assert (a[0][1:] > a[1][:-1]).all(), "disjoint"
    common = len(cells_a & cells_b)
    assert intervals.common_length(a, b) == intervals.common_length(b, a) == common
    assert intervals.covered_within(a, *b).sum() == common


@given(SPANS, st.integers(0, 30), st.integers(1, 40))
def test_parts_of_a_set_are_those_of_its_unit_cells(spans, low, size):
    a, cells = build_spans(spans)
    high = low + size
    assert intervals.length(intervals.clip(a, low, high)) == len(cells & set(range(low, high)))
    until = intervals.covered_until(a, np.array([high, low])).tolist()
    assert until == [len({cell for cell in cells if cell < at}) for at in (high, low)]
    share = intervals.build_covered_share(a, 0, 80, 40)
    assert share.sum() * 80 / 40 == pytest.approx(len(cells)) and ((share >= 0) & (share <= 1)).all()


PYTHON, CANN, HARDWARE, COMMUNICATION, OVERLAP = 4000, 4_096_001, 4_096_002, 4_096_003, 4_096_004
PROCESSES = {
    PYTHON: "Python",
    CANN: "CANN",
    HARDWARE: "Ascend Hardware",
    COMMUNICATION: "Communication",
    OVERLAP: "Overlap Analysis",
}
SINCE_1970_US = 1_715_848_713_000_000


def build_events():
    """The steps of `build_gpu_trace`; names of processes stand after the events, as torch_npu writes them."""
    events = []
    for source in build_gpu_trace(0).events:
        args, name, category = dict(source["args"]), source["name"], source["cat"]
        event = {"ph": "X", "name": name, "pid": PYTHON, "tid": source["tid"], "args": {}}
        event |= {"ts": f"{SINCE_1970_US + source['ts']:.3f}", "dur": source["dur"]}
        link = {"connection_id": args["correlation"]} if "correlation" in args else {}
        if category == "gpu_user_annotation":
            continue
        if category == "cuda_runtime":
            event |= {"name": "Node@launch", "pid": CANN, "args": {"Mode": "launch", **link}}
        elif name == ALL_REDUCE:
            event |= {"name": "hcom_allReduce__721_0_1", "pid": COMMUNICATION, "tid": 3, "args": link}
            part = event | {"name": "Notify_Wait", "tid": 4, "args": link}
            task = {"Task Type": "NOTIFY_WAIT_SQE", "Stream Id": 9, **link}
            events += [part, part | {"pid": HARDWARE, "args": task}]
        elif category in ("kernel", "gpu_memcpy"):
            kind = "MEMCPY_ASYNC" if category == "gpu_memcpy" else "AI_VECTOR_CORE"
            task = {"Task Type": kind, "Stream Id": args["stream"], "Task Id": 7, **link}
            event |= {"pid": HARDWARE, "args": task}
        else:
            event["cat"] = "cpu_op"
        events.append(event)
    start, end = SINCE_1970_US + 5000, SINCE_1970_US + 8500
    for name in ("Computing", "Free", "Communication(Not Overlapped)"):
        lane = {"ph": "X", "name": name, "pid": OVERLAP, "tid": 1}
        events.append(lane | {"ts": f"{start}.000", "dur": end - start})
    names = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in PROCESSES.items()
    ]
    return events + names


def analyse(path):
    (rank,) = measure_traces({0: path}).ranks
    return rank


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_an_ascend_device_did_is_read(tmp_path, wrapped):
    path, events = tmp_path / "trace_view.json", build_events()
    path.write_text(json.dumps({"traceEvents": events} if wrapped else events))
    found, whole = analyse(path), analyse(build_gpu_trace(0).write(tmp_path / "rank0_trace.json"))
    assert found.source == "gpu" and [row.step for row in found.rows] == [10, 11, 12]
    for row, known in zip(found.rows, whole.rows, strict=True):
        assert asdict(row) == asdict(known)
        assert {key: asdict(row)[key] for key in STEP_MS} == pytest.approx(STEP_MS)
    assert [call.collective for call in found.collectives] == ["all_reduce"]
    assert {row.name for row in found.kernels if row.type == "comm"} == {"hcom_allReduce__721_0_1"}
    assert (found.backend, found.device_name, found.device_memory_gib) == (None, None, None)
    assert load_trace(path).origin_ns == (SINCE_1970_US * 1000) + 5_000_500


ODD = (
    '{"ph": "X", "cat": "cpu_op", "name": "odd", "pid": 1, "tid": 1, "ts": 5100, "dur": 1, "args": {"x": 1}}'
)
UNKNOWN, LEFT_OUT = "SL-values-odd", "SL-events-odd"
COUNT = len(build_gpu_trace(0).events)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
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
