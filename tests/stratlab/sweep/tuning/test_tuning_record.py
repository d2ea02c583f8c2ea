"""What counts as a measurement of a candidate."""

from __future__ import annotations

from typing import Any

import pytest

from stratlab.sweep.definition import Sweep
from stratlab.sweep.matrix import expand
from stratlab.sweep.tuning.search import METRICS, Measured, search
from stratlab.sweep.tuning.tuning_record import build_record, find_disturbed, read_measured
from stratlab.sweep.tuning_definition import Tune


def read(beside: str = "none", **row: Any) -> Measured:
    rows = {"a": {"status": "finished", "attempts": 1, "samples_per_s": 5.0} | row}
    return read_measured(["a"], rows, {}, METRICS["throughput"], {"a": beside})


def test_a_whole_run_counts_and_others_are_out_with_their_reason() -> None:
    assert read() == Measured((5.0,)) and read().value == 5.0
    assert read(status="failed", ending="exit code 5") == Measured((), "exit code 5")
    assert read(attempts=2).values == () and read(beside="b").values == () and "b " in read(beside="b").why
    assert read(beside="unknown").value == 5.0, "where the pods' nodes are not known"
    assert read(samples_per_s=None).values == () and "samples_per_s" in read(samples_per_s=None).why
    left_nothing = read_measured(["a"], {}, {"a": "no image"}, METRICS["throughput"], {})
    assert left_nothing == Measured((), "no image"), "the sweep has seen it"


def test_what_is_kept_of_a_search() -> None:
    """By hand: three candidates, of which one gave nothing and one had no turn; leads are against the first."""
    tune = Tune(knobs={"ddp": {"reduce_bucket_mib": [50, 100, 200]}}, steps=30, candidates=3)
    matrix = {"strategy": ["ddp", "fsdp"]}
    releases = {
        each.name: [each] for each in expand(Sweep.model_validate({"comparison": "demo", "matrix": matrix}))
    }
    measured = {
        "": Measured((100.0,)),
        "reduce_bucket_mib=50": Measured((), "out of memory"),
        "reduce_bucket_mib=100": Measured((125.0,)),
    }
    found = search(tune.knobs["ddp"], measured, 3, METRICS["throughput"])
    report = {"origin": {"backend": "nccl", "other": 1}}
    strategies = {"ddp": "ddp", "fsdp": "fsdp"}
    record = build_record(tune, "demo", releases, strategies, {"demo-ddp": found}, report)
    ddp, fsdp = record["searches"]
    assert (ddp["strategy"], ddp["runs"], ddp["point"]) == ("ddp", ["demo-ddp"], {"strategy": "ddp"})
    assert [each["knobs"].get("reduce_bucket_mib") for each in ddp["tried"]] == [None, 50, 100]
    assert [each["lead_pct"] for each in ddp["tried"]] == [0.0, None, pytest.approx(25.0)]
    assert [each["value"] for each in ddp["tried"]] == [100.0, None, 125.0]
    assert [each["runs"] for each in ddp["tried"]][1] == ["demo-ddp-reduce-bucket-mib-50"]
    assert ddp["chosen"] == {"reduce_bucket_mib": 100} and ddp["not_tried"] == [{"reduce_bucket_mib": 200}]
    assert ddp["why_not"] == "" and fsdp["why_not"] != "" and fsdp["tried"] == [] and fsdp["chosen"] == {}
    assert record["origin"]["backend"] == "nccl" and "other" not in record["origin"]
    asked = tuple(record[name] for name in ("comparison", "tuning", "steps", "repeats", "candidates"))
    assert asked == ("demo", "demo-tuning", 30, tune.repeats, 3)


def test_who_was_disturbed_is_read_from_the_report() -> None:
    differences = [{"field": "host", "values": {"a": "x"}}, {"field": "runs beside it", "values": {"a": "b"}}]
    assert find_disturbed({"fairness": {"differences": differences}}) == {"a": "b"}
    assert find_disturbed({"fairness": {"differences": differences[:1]}}) == find_disturbed({}) == {}
