"""In what kind of gaps a GPU waits for its host, on traces of one step after the other that one can draw."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.analysis.advice.recommendations import apply_rules
from stratlab.analysis.measuring.gaps import Gaps, build_sum
from stratlab.analysis.measuring.measure import measure_traces
from stratlab.analysis.reporting.totals import build_rank_row
from tests.stratlab.simulated.small import TraceWriter

STEP_US = 100_000


def write(kind: str) -> TraceWriter:
    """Three steps of 100 ms: 100 kernels of 400 us, in the order and with the gaps of this kind."""
    trace = TraceWriter(0)
    for step in range(3):
        at = 1000.0 + STEP_US * step
        trace.label(f"ProfilerStep#{step}", at, at + STEP_US)
        now = at + (60_000 if kind in ("first", "label before") else 0)
        for number in range(100):
            now += 600 if kind == "short" else 0
            now += 50_000 if kind in ("long", "label") and number == 50 else 0
            trace.kernel("gemm", now - 5, now, now + 400)
            now += 400
        if kind.startswith("label"):
            low = at + (20_000 if kind == "label" else 500)
            trace.label("## tokenize ##", low, low + 51_000)
            trace.label("## everything ##", at + 100, at + STEP_US - 100)
    return trace


@pytest.mark.parametrize(
    ("drawn", "kind", "label"),
    [
        ("short", "short", None),
        ("first", "first", None),
        ("long", "long", None),
        ("label", "label", "## tokenize ##"),
        ("label before", "label", "## tokenize ##"),
    ],
)
def test_kind_and_advice(tmp_path: Path, drawn: str, kind: str, label: str | None) -> None:
    (rank,) = measure_traces({0: write(drawn).write(tmp_path / "rank0_trace.json")}).ranks
    row = build_rank_row(rank)
    assert (row["gap_kind"], row["gap_label"]) == (kind, label)
    assert (row["short_gap_pct"] > 99) == (kind == "short")
    assert (row["longest_gap_ms"] > 40) == (kind != "short")
    share = row["host_wait_pct"] + row["launch_wait_pct"]
    assert 45 < share < 62
    (found,) = apply_rules(row | {"source": "gpu", "foreign": True, "launching_pct": share})
    assert found["rule"] == "R3"
    assert ("torch.compile" in found["advice"]) == (kind == "short")


def test_ranks_together() -> None:
    one, other = Gaps(100, 60, 0, 40, {"a": 10}), Gaps(300, 0, 0, 200, {"a": 220, "b": 290})
    both = build_sum([one, other])
    assert both == Gaps(400, 60, 0, 200, {"a": 230, "b": 290})
    assert (one.kind, other.kind, both.kind, both.label) == ("short", "label", "label", "a")
    assert (build_sum([]).kind, Gaps(10, 5, 5, 5).kind, Gaps(10, 4, 6, 6).kind) == (None, "long", "first")
