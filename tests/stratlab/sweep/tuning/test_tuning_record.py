"""What counts as a measurement of a candidate."""

from __future__ import annotations

from typing import Any

from stratlab.sweep.tuning.search import METRICS, Measured
from stratlab.sweep.tuning.tuning_record import read_measured


def read(row: dict[str, Any] | None, beside: str = "none") -> Measured:
    rows = (
        {"a": {"status": "finished", "attempts": 1, "samples_per_s": 5.0, **row}} if row is not None else {}
    )
    return read_measured(["a"], rows, {"a": "no image"}, METRICS["throughput"], {"a": beside})


def test_a_whole_run_counts_and_others_are_out_with_their_reason() -> None:
    assert read({}) == Measured((5.0,)) and read({}).value == 5.0
    assert (
        read({"status": "failed", "ending": "out of memory (exit code 5)"}).why
        == "out of memory (exit code 5)"
    )
    assert read(None).why == "no image", "the sweep has seen what left no run directory"
    assert read({"attempts": 2}).why.startswith("it took 2 attempts")
    assert read({}, beside="b").why == "b was at work beside it"
    assert read({"samples_per_s": None}).why == "samples_per_s was not measured"
