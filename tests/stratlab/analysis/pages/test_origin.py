from __future__ import annotations

from typing import Any

import pytest

from stratlab.analysis.pages.html import OF_SETTINGS, build_html
from stratlab.analysis.pages.markdown import build_markdown
from stratlab.analysis.pages.origin import build_answer, build_origin, build_short_origin
from stratlab.analysis.reporting.run_facts import build_foreign_facts
from tests.stratlab.analysis.example_report import build_example

RULE = {"rule": "R3", "severity": "high", "title": "t", "advice": "a", "settings": {}, "evidence": {}}


def build_foreign(source: str = "gpu", **known: Any) -> dict[str, Any]:
    """Of traces that tell nothing of their run, but what is `known`."""
    report = build_example(source, ranks=1)
    told = {"finished": None, "run": "d", "axes": {}, **known}
    report["run"] = {**dict.fromkeys(report["run"]), **told}
    return {**report, "backend": None, "device": None}


def test_what_is_known_is_told() -> None:
    known = build_foreign(world_size=8, torch="2.9", strategy="ddp", nodes=1, steps=100, device_type="cuda")
    text = build_origin({**known, "backend": "nccl", "device": "A100"})
    assert all(
        word in text for word in ("ddp", "8 processes", "A100 (cuda)", "nccl", "2.9", "10 to 12 of 100")
    )
    assert "2 pods on 1 node" in build_origin(build_foreign(world_size=8, nodes=2, machines=1))
    weights = build_foreign(initial_weights="random weights")
    assert "random weights" in build_origin(weights) and "random weights" in build_short_origin(weights)
    assert "1 process," in build_short_origin(build_foreign(world_size=1))


def test_the_terminal_counts_as_one_does_and_says_what_is_not_in_it() -> None:
    report = build_foreign()
    report["mean"] |= {"steps": 1, "ranks": 1}
    report["quality"] = []
    assert "1 step on 1 rank " in build_answer(report)[0] and len(build_answer(report)) == 2
    row = {"action": "skipped", "reason": "empty file", "file": "worker2.json", "rank": 2}
    report["quality"] = [row | {"action": "noted"}, row, row | {"file": None}, row | {"rank": None}]
    report["mean"] |= {"steps": 4, "ranks": 2}
    answer = build_answer({**report, "backend": "nccl", "device": "A100"})
    assert all(word in answer[0] for word in ("4 steps on 2 ranks", "nccl", "A100"))
    told = [("worker2.json" in line, "rank 2" in line, "empty file" in line) for line in answer[2:]]
    assert told == [(True, True, True), (False, True, True), (True, False, True)]
    assert "2 more" in build_answer({**report, "quality": [row] * 7})[-1]


@pytest.mark.parametrize("source", ("gpu", "cpu"))
def test_no_page_of_foreign_traces_names_what_it_does_not_know(source: str, tmp_path: Any) -> None:
    report = build_foreign(source) | {"recommendations": [RULE]}
    facts = build_foreign_facts(tmp_path, "d", None, None, [])
    for text in (build_html(report, facts, []), build_markdown(report), build_origin(report)):
        assert "unknown" not in text and "None" not in text and OF_SETTINGS not in text
    report["recommendations"] = [RULE | {"settings": {"run.config.compile": "true"}}]
    assert OF_SETTINGS in build_html(report, facts, [])
