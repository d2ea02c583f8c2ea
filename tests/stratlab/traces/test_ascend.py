"""The trace_view.json of Ascend's profiler: a list of events, times as text, most of them without a category."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis.measure import measure_traces
from stratlab.analysis.rank import RankAnalysis
from stratlab.traces.trace import load_trace
from tests.stratlab.simulated.small import ALL_REDUCE, STEP_MS, build_gpu_trace

PYTHON, CANN, HARDWARE, COMMUNICATION, OVERLAP = 4000, 4_096_001, 4_096_002, 4_096_003, 4_096_004
PROCESSES = {
    PYTHON: "Python",
    CANN: "CANN",
    HARDWARE: "Ascend Hardware",
    COMMUNICATION: "Communication",
    OVERLAP: "Overlap Analysis",
}
SINCE_1970_US = 1_715_848_713_000_000


def build_events() -> list[dict[str, Any]]:
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


def analyse(path: Path) -> RankAnalysis:
    (rank,) = measure_traces({0: path}).ranks
    return rank


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_an_ascend_device_did_is_read(tmp_path: Path, wrapped: bool) -> None:
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


def test_tasks_of_an_unknown_kind_and_events_of_other_processes_are_no_work(tmp_path: Path) -> None:
    path, events = tmp_path / "trace_view.json", build_events()
    path.write_text(json.dumps(events))
    before = analyse(path)
    start = f"{SINCE_1970_US + 5100}.000"
    for pid, kind in ((HARDWARE, "EVENT_WAIT"), (HARDWARE, "PLACE_HOLDER_SQE"), (99, "AI_CORE")):
        odd = {"ph": "X", "name": "odd", "pid": pid, "tid": 1, "ts": start, "dur": 700}
        events.append(odd | {"args": {"Task Type": kind, "Stream Id": 7}})
    path.write_text(json.dumps(events))
    assert [asdict(row) for row in analyse(path).rows] == [asdict(row) for row in before.rows]
