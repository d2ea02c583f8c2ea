from __future__ import annotations

from typing import Any

import pytest

from stratlab.analysis.pages.html import OF_SETTINGS, build_html
from stratlab.analysis.pages.markdown import build_markdown
from stratlab.analysis.pages.origin import build_answer, build_origin, build_short_origin
from stratlab.analysis.reporting.run_facts import build_foreign_facts
from tests.stratlab.analysis.example_report import build_example


def build_foreign(source: str = "gpu", **known: Any) -> dict[str, Any]:
    """Of traces that tell nothing of their run, but what is `known`."""
    report = build_example(source, ranks=1)
    told = {"finished": None, "run": "d", "axes": {}, **known}
    report["run"] = {**dict.fromkeys(report["run"]), **told}
    return {**report, "backend": None, "device": None}


def test_what_is_not_known_is_left_out() -> None:
    assert build_origin(build_foreign()) == (
        "Run d, steps 10 to 12, 1 trace; recording slows the steps down."
    )
    known = build_foreign(world_size=8, torch="2.9", strategy="ddp", nodes=1, steps=100, device_type="cuda")
    assert build_origin({**known, "backend": "nccl", "device": "A100"}) == (
        "Run d, strategy ddp, 8 processes on 1 node, A100 (cuda), backend nccl, torch 2.9, steps 10 to 12 of 100, "
        "1 trace; recording slows the steps down."
    )
    assert "8 processes in 2 pods on 1 node, " in build_origin(
        build_foreign(world_size=8, nodes=2, machines=1, strategy="ddp")
    )
    weights = build_foreign(initial_weights="random weights")
    for text in (build_origin(weights), build_short_origin(weights)):
        assert "tarts from random weights, " in text
    assert build_short_origin(build_foreign(world_size=1)) == (
        "1 process, source gpu, 1 trace, 3 recorded steps."
    )


def test_the_terminal_counts_as_one_does_and_says_what_is_not_in_it() -> None:
    report = build_foreign()
    report["mean"] |= {"steps": 1, "ranks": 1}
    report["quality"] = []
    assert build_answer(report)[0] == "mean of 1 step on 1 rank (gpu traces):"
    assert len(build_answer(report)) == 2
    row = {"action": "skipped", "reason": "empty file", "file": "worker2.json", "rank": 2}
    noted = {**row, "action": "noted"}
    report["quality"] = [noted, row, {**row, "file": None}, {**row, "rank": None}]
    report["mean"] |= {"steps": 4, "ranks": 2}
    answer = build_answer({**report, "backend": "nccl", "device": "A100"})
    assert answer[0] == "mean of 4 steps on 2 ranks (gpu traces, backend nccl, A100):"
    assert answer[2:] == [
        "  not in it: worker2.json, rank 2: empty file",
        "  not in it: rank 2: empty file",
        "  not in it: worker2.json: empty file",
    ]
    assert build_answer({**report, "quality": [row] * 7})[-1] == "  and 2 more: the report names them"


@pytest.mark.parametrize("source", ("gpu", "cpu"))
def test_no_page_of_foreign_traces_names_what_it_does_not_know(source: str, tmp_path: Any) -> None:
    report = build_foreign(source)
    report["recommendations"] = [
        {"rule": "R3", "severity": "high", "title": "t", "advice": "a", "settings": {}, "evidence": {}}
    ]
    facts = build_foreign_facts(tmp_path, "d", None, None, [])
    for text in (build_html(report, facts, []), build_markdown(report)):
        assert "unknown" not in text and "None" not in text and OF_SETTINGS not in text
    report["recommendations"][0]["settings"] = {"run.config.compile": "true"}
    assert OF_SETTINGS in build_html(report, facts, [])
