"""Traces of real GPUs that other projects published; against HTA and a second computation: hta/test_real_traces.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratlab.analysis.dividing import collective_names, lanes
from stratlab.analysis.measuring.measure import Measures, measure_traces
from stratlab.traces.events import LAUNCH_CATEGORY, UNLINKED_CATEGORIES
from tests.stratlab.real_traces import NAMES, unpack
from trainer.measuring import exposed
from trainer.measuring.exposed import Event, measure_exposed_pct

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "memcpy", "memset")
FIRST_STEP_MS = {  # by hand; with what was in flight 49.06 and 371.634, and the third was refused
    "resnet_checkpointing_mi300x": 18.980345,
    "in_flight_a100_rank0": 216.286,
    "resnet50_2021_v100": 129.983,
}
IN_FLIGHT = {"resnet_checkpointing_mi300x": (968, 3653), "in_flight_a100_rank0": (872, 7747)}
IN_FLIGHT |= {"resnet50_2021_v100": (733, 10015)}


@pytest.fixture(scope="module", params=NAMES)
def read(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[int, Path], Measures]:
    files = unpack(request.param, tmp_path_factory.mktemp(request.param))
    return request.param, files, measure_traces(files, processes=1)


def test_first_step_and_what_was_in_flight(read: tuple[str, dict[int, Path], Measures]) -> None:
    name, _, measures = read
    (first, *_), reasons = measures.ranks[0].rows, [finding.reason for finding in measures.ranks[0].findings]
    named = [reason for reason in reasons if "before the recording began" in reason]
    if name in FIRST_STEP_MS:
        assert first.step_ms == FIRST_STEP_MS[name]
        count, total = IN_FLIGHT[name]
        assert named == [
            f"{count} of {total} GPU events were launched before the recording began, they count in no step"
        ]
    else:
        assert not named


def test_a_rank_s_own_count_of_exposed_communication_agrees(
    read: tuple[str, dict[int, Path], Measures],
) -> None:
    """trainer/measuring/exposed.py, which has the events in memory, has no code in common with the analysis."""
    _, files, measures = read
    for rank in measures.ranks:
        step_ms = sum(row.step_ms for row in rank.rows)
        expected = 100 * sum(row.comm_exposed_ms for row in rank.rows) / step_ms
        assert measure_exposed_pct(read_profile(files[rank.rank])) == pytest.approx(expected, abs=0.01)


def test_both_know_the_same_kernels_labels_and_operators() -> None:
    """Neither may import the other; the analysis knows further labels, of writers of 2021."""
    assert exposed.COMMUNICATION_KERNEL == collective_names.COMMUNICATION_KERNEL
    assert exposed.RUNTIME == LAUNCH_CATEGORY
    assert {*exposed.UNLINKED} == {*UNLINKED_CATEGORIES, "cpu_instant_event"}  # an instant is in no column
    assert exposed.COMMUNICATION_LABEL == collective_names.COMMUNICATION_LABEL
    assert lanes.NO_COMPUTE_OP.pattern.startswith(exposed.NO_COMPUTE_OP.pattern.partition("|^(##")[0])


def read_profile(file: Path) -> list[Event]:
    """The events of a trace as the profiler has them in memory, under this lab's labels."""
    found = []
    for event in json.loads(file.read_bytes())["traceEvents"]:
        if event.get("ph") != "X":
            continue
        name, kind, args = event["name"], event.get("cat", "").lower(), event.get("args", {})
        step = name.startswith("ProfilerStep#")
        start = round(float(event["ts"]) * 1000)
        found.append(
            Event(
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


def test_team_is_matched(tmp_path: Path) -> None:
    """Eight real ranks: every collective is one call on all of them, and somebody waited for somebody."""
    files = unpack("dlrm_8xv100", tmp_path)
    ranks = measure_traces(files, {"dp_replicate": 8}).ranks
    assert [rank.rank for rank in ranks] == list(range(8))
    counts = {rank.rank: {row.name: row.count for row in rank.collectives} for rank in ranks}
    assert all(counts[rank] == counts[0] for rank in counts) and counts[0]
    reduced = [row for rank in ranks for row in rank.collectives if row.collective == "all_reduce"]
    assert [row.rank for row in reduced] == list(range(8)) and {row.count for row in reduced} == {3}
    assert sum(row.arrived_last or 0 for row in reduced) == 3
    # the shortest of each call is the transfer, on every rank the same; the rest of its time a rank waited
    assert {round(row.total_ms - (row.wait_ms or 0), 6) for row in reduced} == {0.175}
    assert sum(row.straggler_ms for rank in ranks for row in rank.rows) > 0
