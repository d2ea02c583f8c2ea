"""summary.md says what the page says, as Markdown that nothing from outside can break."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis.report_pages import OF_SETTINGS, build_html, build_markdown
from stratlab.analysis.run_facts import build_foreign_facts, read_facts
from stratlab.analysis.summaries import build_answer, build_origin
from stratlab.drawing import escape_markdown as escape
from tests.stratlab.analysis.example_report import HOSTILE, build_example, build_example_ranks
from tests.stratlab.example_run import build_run_dir

RULE = {"rule": "R3", "severity": "high", "title": "Slow.", "advice": "Compile."}
RULE |= {"settings": {"run.config.compile": "true"}, "evidence": {"host_wait_pct": 45.0}}


def tables(text: str) -> list[list[list[str]]]:
    """The cells of every table: [table][line][column]; a line is split where no backslash stands before the bar."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if line.startswith("| "):
            found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def test_the_answer_the_advice_and_the_tables() -> None:
    text = build_markdown(build_example() | {"recommendations": [RULE]})
    for part in ("100.0 ms", "60.0 ms (60 %)", "R3", "run.config.compile=true", "host\\_wait\\_pct 45.0"):
        assert part in text
    titles = [
        "Where the time of a step goes",
        "Communication",
        "Kernels",
        "Copies",
        "Quality of the traces",
        "Files",
    ]
    assert re.findall(r"^## (.*)$", text, re.M) == ["Recommendations", *titles]
    phases, ranks, communication, kernels, copies = tables(text)
    assert phases[1][:2] == ["---", "---:"] and phases[3][:3] == ["forward", "18.0", "3.6"]
    assert [line[0] for line in ranks[2:]] == ["0", "1", "all"]
    assert communication[2][0] == "all-reduce over dp\\_replicate"
    assert communication[2][-1] == "rank 1 in 20 of 30"
    assert kernels[2][1] == "comm" and copies[2][-1] == "20.0" and copies[3][-1] == "-"
    assert "merged\\_trace.json.gz" in text


def test_nothing_from_outside_is_markup() -> None:
    evil = f"a|b {HOSTILE}\n\n# heading [x](http://y) `c` *d* _e_ <b>"
    report = build_example()
    report["run"]["run"] = report["device"] = evil
    report["kernels"][0]["name"] = report["collectives"][0]["axis"] = evil
    report["quality"] = [{"action": "noted", "reason": evil, "file": evil, "rank": 0}]
    report["recommendations"] = [RULE | {"title": evil, "settings": {"x": evil}}]
    text = build_markdown(report)
    assert not re.findall(r"(?<!\\)<", text) and not re.findall(r"(?<!\\)\]", text)
    (title,) = [line for line in text.splitlines() if line.startswith("# ")]
    assert title.endswith(escape(evil))
    for table in tables(text):
        assert len({len(line) for line in table}) == 1
    assert escape("a|b_*\n<") == "a\\|b\\_\\* \\<"


ADVICE = {"rule": "R3", "severity": "high", "title": "t", "advice": "a", "settings": {}, "evidence": {}}


def build_foreign(source: str = "gpu", **known: Any) -> dict[str, Any]:
    """Of traces that tell nothing of their run, but what is `known`."""
    report = build_example(source, ranks=1)
    told = {"finished": None, "run": "d", "axes": {}, **known}
    report["run"] = {**dict.fromkeys(report["run"]), **told}
    return {**report, "backend": None, "device": None}


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
    report = build_foreign(source) | {"recommendations": [ADVICE]}
    facts = build_foreign_facts(tmp_path, "d", None, None, [])
    for text in (build_html(report, facts, []), build_markdown(report), build_origin(report)):
        assert "unknown" not in text and "None" not in text and OF_SETTINGS not in text
    report["recommendations"] = [ADVICE | {"settings": {"run.config.compile": "true"}}]
    assert OF_SETTINGS in build_html(report, facts, [])


def draw(run: Path) -> str:
    report = build_example()
    return build_html(report, read_facts(run), build_example_ranks(report), run / "analysis")


def test_what_lies_in_the_run_directory_is_linked(tmp_path: Path) -> None:
    head = draw(build_run_dir(tmp_path / "demo", "ddp", "ddp")).partition("<nav")[0]
    for place in ("merged_trace.json.gz", "../traces/rank0_trace.json", "../ranks/rank1.log"):
        assert f'<a class="file" href="{place}">' in head
    assert 'href="http://mlflow:5000/#/experiments/1/runs/id-ddp"' in head
    assert '<p class="back"></p>' in head, "no comparison yet: a place for the way back"


def test_what_is_not_there_is_not_linked(tmp_path: Path) -> None:
    run = build_run_dir(tmp_path / "demo", "ddp", "ddp")
    (tmp_path / "demo" / "report").mkdir()
    (tmp_path / "demo" / "report" / "report.html").touch()
    assert '<p class="back"><a class="file" href="../../report/report.html">' in draw(run)
    (run := tmp_path / "other" / "ddp").mkdir(parents=True)
    (run / "config.json").write_text('{"run": "run"}')
    head = draw(run).partition("<nav")[0]
    assert "Logs" not in head and "MLflow" not in head and "rank 0</a>" not in head
