from __future__ import annotations

from stratlab.analysis.mlflow_upload import build_numbers, build_tags
from tests.stratlab.analysis.example_report import blank, build_example


def test_numbers_and_tags_of_a_report() -> None:
    report = build_example()
    part = {"part": "comm", "axis": None}
    report["parts"] += [part | {"collective": "all_gather", "ms": 1.5}] * 2
    report["parts"].append(part | {"collective": "odd name(1)?", "ms": 0.5})
    report["quality"] = [{"action": "noted", "reason": "x", "file": "f", "rank": 0}] * 3
    numbers = build_numbers(report)
    assert (numbers["part/comm/all_gather_ms"], numbers["part/comm/all_reduce_ms"]) == (3.0, 12.0)
    assert numbers["part/comm/odd name_1___ms"] == 0.5 and numbers["part/host_ms"] == 9.0
    assert (numbers["findings"], numbers["recommendations"]) == (3, 0)
    assert numbers["comm_bytes_per_step"] == 818_216 and "d2h_gbps" not in numbers
    assert set(build_numbers(blank(report, keep=()))) >= {"findings", "recommendations"}
    tags = build_tags(report)
    assert (tags["trace_source"], tags["trace_main_part"], tags["trace_main_loss"]) == (
        "gpu", "compute", "communication"
    )  # fmt: skip
    assert tags["trace_top_recommendation"] == "none" and "layout" not in tags
    report["recommendations"] = [{"rule": "R3", "title": "x" * 500}]
    advice = build_tags(report)["trace_top_recommendation"]
    assert advice.startswith("R3: xxx") and len(advice) == 200
    for missing, said in (([], "no"), (["data", "tensor"], "data, tensor")):
        report["run"]["layout"] = {"name": "pp2", "missing": missing, "degenerate": bool(missing)}
        assert (build_tags(report)["layout"], build_tags(report)["degenerate"]) == ("pp2", said)
