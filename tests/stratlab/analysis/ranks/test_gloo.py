"""Real traces of two gloo ranks, the second of which sleeps before each step: the report, its page, and HTA's part."""

import pytest

from tests.stratlab.analysis.example_report import build_example
from tests.stratlab.analysis.test_report_pages import find_keys

DELAY_MS = 50  # of rank 1 in record_gloo
PHASES = ["data", "forward", "backward", "optimizer"]


def test_every_step_is_divided(gloo_report):
    assert gloo_report["source"] == "cpu" and gloo_report["note"]
    assert (gloo_report["backend"], gloo_report["device"]) == ("gloo", "test processor")
    steps = [(row["rank"], row["step"]) for row in gloo_report["steps"]]
    assert steps == [(rank, step) for rank in (0, 1) for step in (10, 11, 12)]
    assert gloo_report["phases_present"] == {"0": PHASES, "1": PHASES}
    for row in gloo_report["steps"]:
        whole = row["compute_ms"] + row["comm_exposed_ms"] + row["copy_exposed_ms"] + row["idle_ms"]
        assert whole == pytest.approx(row["step_ms"], abs=1e-6)
        phases = sum(row[f"{phase}_ms"] for phase in PHASES)
        assert 0 < phases <= row["step_ms"] and row["comm_ms"] > 0 and row["compute_ms"] > 0
    assert {row["name"] for row in gloo_report["collectives"]} == {"gloo:all_reduce"}
    assert find_keys(build_example("cpu")) == find_keys(gloo_report)


def test_rank_that_starts_late_is_found(gloo_report):
    punctual, late = gloo_report["ranks"]
    assert late["data_ms"] >= DELAY_MS > punctual["data_ms"]
    # the other one pays for it: its all-reduce, not hidden by any operator
    assert punctual["comm_exposed_pct"] > late["comm_exposed_pct"]
    waits = {row["rank"]: row["wait_ms"] for row in gloo_report["collectives"]}
    assert waits[0] > 3 * 0.5 * DELAY_MS > waits[1]
