"""Traces of real GPUs that other projects published: against figures computed by hand from their JSON (in the README of
tests/data/traces), a naive second computation, a rank's own count, and their tables against each other."""

import json
import os
import signal
from pathlib import Path

import pytest

from stratlab.analysis import measure
from stratlab.analysis.measure import measure_traces
from stratlab_spec.trace_events import RecordedEvent, measure_exposed
from tests.codes import find_codes
from tests.stratlab.real_traces import EVERY, TEAM, unpack
from tests.stratlab.simulated.small import build_gpu_trace

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "memcpy", "memset")
LATE, DATA, DEVICE = "sglang_prefilldecode_mi300x", "resnet50_dataloader_v100", "mtia_hccl_rank0"
FIRST_STEP_MS = {  # with what was in flight 49.06 and 371.634, and the third was refused
    "resnet_checkpointing_mi300x": 18.980345,
    "in_flight_a100_rank0": 216.286,
    "resnet50_2021_v100": 129.983,
}
IN_FLIGHT = {
    "resnet_checkpointing_mi300x": (968, 3653),
    "in_flight_a100_rank0": (872, 7747),
    "resnet50_2021_v100": (733, 10015),
}
TOTALS_MS = {  # of rank 0
    (DEVICE, "compute_ms"): 13_256,
    (DEVICE, "host_wait_ms"): 65,
    (LATE, "host_wait_ms"): 0.99,
    (LATE, "idle_ms"): 494,
    (LATE, "launch_wait_ms"): 493,
}
GAPS = {"timesformer_mi300x": "first", LATE: "label", "nccl_a100": "short", DEVICE: None}
NAIVE = ("nccl_a100", "event_sync_a100", "triton_a100", "mi250_rocm62")


@pytest.mark.parametrize("name", [name for name in EVERY if name != TEAM])
def test_a_single_trace(name, tmp_path):
    files = unpack(name, tmp_path)
    measures = measure_traces(files, processes=1)
    (rank,) = measures.ranks
    assert measures.findings == []
    assert_whole(rank)
    known = {of: value for (trace, of), value in TOTALS_MS.items() if trace == name}
    totals = {of: sum(getattr(row, of) for row in rank.rows) for of in known}
    assert totals == pytest.approx(known, rel=0.01)
    said = {code: finding.reason for finding in rank.findings for code in find_codes(finding.reason)}
    assert ("SL-events-in-flight" in said) == (name in IN_FLIGHT)
    if name in IN_FLIGHT:
        assert rank.rows[0].step_ms == FIRST_STEP_MS[name]
        assert "{} of {} ".format(*IN_FLIGHT[name]) in said["SL-events-in-flight"]
    if name in GAPS:
        assert rank.gaps.kind == GAPS[name]
    if name in NAIVE:
        own = measure_exposed(read_profile(files[0]))
        step_ms = sum(row.step_ms for row in rank.rows)
        assert own and own.pct == pytest.approx(
            100 * sum(row.comm_exposed_ms for row in rank.rows) / step_ms, abs=0.01
        )
    if name == DATA:
        data, host, idle = (
            sum(getattr(r, n) for r in rank.rows) for n in ("data_wait_ms", "host_step_ms", "idle_ms")
        )
        assert (100 * data / host, 100 * data / idle) == (
            pytest.approx(33.9, abs=0.06),
            pytest.approx(77, abs=0.6),
        )
    if name == "alltoall_sendrecv_a100_rank3":
        assert {row.collective: row.count for row in rank.collectives}["all_to_all"] == 42


def assert_whole(rank):
    for row in rank.rows:
        waits = (
            row.data_wait_ms,
            row.host_wait_ms,
            row.launch_wait_ms,
            row.kernel_wait_ms,
            row.other_idle_ms,
        )
        assert sum(ms for ms in waits if ms is not None) == pytest.approx(row.idle_ms, abs=1e-5)
        parts = row.compute_ms + row.comm_exposed_ms + row.copy_exposed_ms + row.idle_ms
        assert parts == pytest.approx(row.step_ms, abs=1e-5)
        assert (row.data_wait_ms is None) == ("data" not in rank.phases) == (row.data_ms is None)
        mine = [phase for phase in rank.phase_rows if phase.step == row.step]
        assert sum(phase.idle_ms for phase in mine) == pytest.approx(row.idle_ms, abs=1e-5)
    assert sum(rank.parts_ns.values()) / 1e6 == pytest.approx(sum(row.step_ms for row in rank.rows), abs=1e-5)
    if rank.source == "cpu":
        assert not rank.kernels and not rank.idle and not rank.copies
        return
    for kind, name in (("compute", "compute_ms"), ("comm", "comm_ms")):  # over the recording, several at once
        whole = sum(kernel.sum_ms for kernel in rank.kernels if kernel.type == kind)
        assert whole >= sum(getattr(row, name) for row in rank.rows) - 1e-5


def test_a_team(tmp_path):
    ranks = measure_traces(unpack(TEAM, tmp_path), {"dp_replicate": 8}).ranks
    assert [rank.rank for rank in ranks] == list(range(8))
    counts = [{row.name: row.count for row in rank.collectives} for rank in ranks]
    assert counts[0] and all(count == counts[0] for count in counts)
    reduced, swapped = (
        [row for rank in ranks for row in rank.collectives if row.collective == name]
        for name in ("all_reduce", "all_to_all")
    )
    assert {row.count for row in reduced} == {3} and sum(row.arrived_last or 0 for row in reduced) == 3
    # the shortest of each call is the transfer, on every rank the same; the rest of its time a rank waited
    assert {round(row.total_ms - (row.wait_ms or 0), 6) for row in reduced} == {0.175}
    first = reduced[0]
    known = pytest.approx((1.799, 1.624, 1.503), abs=6e-4)
    assert (first.total_ms, first.wait_ms, first.exposed_wait_ms) == known
    totals = {rank: (swapped[rank].total_ms, swapped[rank].exposed_wait_ms) for rank in (0, 1, 3, 7)}
    by_hand = {0: (3.999, 3.840), 1: (9.506, 9.347), 3: (8.002, 7.851), 7: (0.389, 0.295)}
    assert totals == {rank: pytest.approx(pair, abs=6e-4) for rank, pair in by_hand.items()}
    assert (swapped[7].arrived_last, swapped[7].count) == (4, 5)
    waited = sum(rank.rows[0].straggler_ms for rank in ranks) / sum(rank.rows[0].step_ms for rank in ranks)
    assert 100 * waited == pytest.approx(36, abs=0.6)


def read_profile(file):
    """The events of a trace as the profiler has them in memory, under this lab's labels."""
    found = []
    for event in json.loads(file.read_bytes())["traceEvents"]:
        if event.get("ph") != "X":
            continue
        name, kind, args = event["name"], event.get("cat", "").lower(), event.get("args", {})
        step = name.startswith("ProfilerStep#")
        start = round(float(event["ts"]) * 1000)
        found.append(
            RecordedEvent(
                name=f"## Training Step {name.partition('#')[2]} ##" if step else name,
                start=start,
                end=start + round(float(event["dur"]) * 1000),
                on_device=kind in ON_DEVICE,
                is_label=step or "user_annotation" in kind,
                thread=hash(event["tid"]),
                correlation=int(args.get("correlation", 0)),
                kind=event.get("cat", ""),
            )
        )
    return found


MURDERER = Path("murderer.json")


def _read_or_die(item):
    """Stands in for a process that the kernel kills for its memory."""
    if item[1].name == MURDERER.name:
        os.kill(os.getpid(), signal.SIGKILL)
    return measure._read_rank(item)


def test_a_killed_process_costs_its_own_rank_only(tmp_path, monkeypatch):
    files = {rank: build_gpu_trace(rank).write(tmp_path / f"rank{rank}_trace.json") for rank in range(3)}
    files[1] = files[1].rename(tmp_path / MURDERER)
    monkeypatch.setattr(measure, "READ", _read_or_die)
    measures = measure_traces(files, {}, processes=2)
    assert [rank.rank for rank in measures.ranks] == [0, 2]
    (finding,) = measures.findings
    assert (finding.rank, finding.file) == (1, "murderer.json")
    assert find_codes(finding.reason) == ["SL-rank-process-killed"]
