"""Traces of real GPUs that other projects published; against HTA and a second computation: hta/test_real_traces.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.analysis.measure import Measures, measure_traces
from tests.stratlab.real_traces import NAMES, unpack

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
