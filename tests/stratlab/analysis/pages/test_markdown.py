"""summary.md says what the page says, as Markdown that nothing from outside can break."""

from __future__ import annotations

import re

import pytest

from stratlab.analysis.pages.markdown import build_markdown
from stratlab.drawing import escape_markdown as escape
from tests.stratlab.analysis.example_report import HOSTILE, blank, build_example

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


def test_a_cpu_run_says_so_first() -> None:
    report = build_example("cpu")
    text = build_markdown(report)
    assert text.index(report["note"]) < text.index("ddp", 30)
    assert "## Kernels" not in text and "## Copies" not in text


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


def test_large_runs_are_cut_and_say_so() -> None:
    report = build_example(ranks=512, slow={17: 1.2})
    report["quality"] = [{"action": "noted", "reason": "x", "file": "f", "rank": r} for r in range(512)]
    text = build_markdown(report)
    assert len(text) < 20_000
    assert "496 ranks" in text and "482" in text and "tables/quality.csv" in text
    assert any(line[0] == "17" for line in tables(text)[1])


def test_what_is_only_sometimes_there() -> None:
    report = build_example(pp=4, ranks=4)
    assert "ideal" in tables(build_markdown(report))[1][0][-1]
    assert "bubble" not in build_markdown(build_example()) and "Recorded" not in build_markdown(report)
    files = {f"traces/memory_snapshots/rank{rank}.pickle": 1 for rank in range(9)}
    report["recordings"] = [{"recording": "memory snapshot", "what": "allocations", "files": files}]
    text = build_markdown(report)
    assert "## Recorded beside the traces" in text and "rank7.pickle" in text and "rank8" not in text


@pytest.mark.parametrize("source", ["gpu", "cpu"])
def test_unknown_numbers_are_dashes(source: str) -> None:
    report = blank(build_example(source))
    empty: dict[str, object] = {"parts": [], "phases": [], "collectives": [], "hta": [], "merged": {}}
    for text in (build_markdown(report), build_markdown(report | empty)):
        assert not re.search(r"\bNone\b(?! of the rules)", text)
