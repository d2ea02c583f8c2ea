"""Real traces of two gloo ranks, the second of which sleeps before each step: the report, its page, and HTA's part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratlab.traces.trace import load_trace
from tests.codes import find_codes
from tests.stratlab.analysis.example_report import build_example
from tests.stratlab.analysis.test_report_pages import find_keys

DELAY_MS = 50  # of rank 1 in record_gloo
PHASES = ["data", "forward", "backward", "optimizer"]


def test_every_step_is_divided(gloo_report: dict[str, Any]) -> None:
    assert gloo_report["source"] == "cpu" and gloo_report["note"]
    assert (gloo_report["backend"], gloo_report["device"]) == ("gloo", "test processor")
    steps = [(row["rank"], row["step"]) for row in gloo_report["steps"]]
    assert steps == [(rank, step) for rank in (0, 1) for step in (10, 11, 12)]
    assert gloo_report["phases_present"] == {"0": PHASES, "1": PHASES}
    for row in gloo_report["steps"]:
        whole = row["compute_ms"] + row["comm_exposed_ms"] + row["copy_exposed_ms"] + row["idle_ms"]
        assert whole == pytest.approx(row["step_ms"], abs=1e-6)
        phases = sum(row[f"{phase}_ms"] for phase in PHASES)
        assert 0 < phases <= row["step_ms"]
        assert row["comm_ms"] > 0 and row["compute_ms"] > 0
    assert {row["name"] for row in gloo_report["collectives"]} == {"gloo:all_reduce"}
    assert find_keys(build_example("cpu")) == find_keys(gloo_report)


def test_rank_that_starts_late_is_found(gloo_report: dict[str, Any]) -> None:
    punctual, late = gloo_report["ranks"]
    assert late["data_ms"] >= DELAY_MS > punctual["data_ms"]
    # the other one pays for it: its all-reduce, not hidden by any operator
    assert punctual["comm_exposed_pct"] > late["comm_exposed_pct"]
    waits = {row["rank"]: row["wait_ms"] for row in gloo_report["collectives"]}
    assert waits[0] > 3 * 0.5 * DELAY_MS > waits[1]


def test_of_cpu_traces_hta_says_less_and_nothing_fails(gloo_report: dict[str, Any]) -> None:
    statuses = {row["analysis"]: row["status"] for row in gloo_report["hta"]}
    done = {"profiler_steps", "cpu_user_annotations"}
    assert {name for name, status in statuses.items() if status == "ok"} == done
    others = [row for row in gloo_report["hta"] if row["analysis"] not in done]
    assert {row["status"] for row in others} == {"unsupported"}
    assert all(find_codes(row["reason"]) == ["SL-hta-no-gpu"] for row in others)


def test_what_hta_reads_is_what_we_read(gloo_traces: Path) -> None:
    """Every event's name and duration, up to the end of the last profiler step, where HTA stops."""
    from tests.stratlab.analysis.hta.loading import load_hta

    path = gloo_traces / "rank0_trace.json"
    trace, hta = load_trace(path), load_hta({0: path})
    names, frame = hta.t.symbol_table.get_sym_table(), hta.t.get_trace(0)
    last = max(end for name, end in zip(trace.name, trace.end, strict=True) if _is_step(trace.names[name]))
    seen = trace.ts <= last
    ours = [
        (trace.names[i], ns / 1e3)
        for i, ns in zip(trace.name[seen], (trace.end - trace.ts)[seen], strict=True)
    ]
    theirs = [(names[i], us) for i, us in zip(frame["name"], frame["dur"], strict=True)]
    assert len(ours) > 50 and [name for name, _ in sorted(ours)] == [name for name, _ in sorted(theirs)]
    assert [us for _, us in sorted(ours)] == pytest.approx([us for _, us in sorted(theirs)], abs=1e-3)


def _is_step(name: str) -> bool:
    return name.startswith("ProfilerStep#")
