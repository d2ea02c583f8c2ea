"""May the answer be believed: one of three outcomes, the same on every surface."""

import html
import re
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.answers import name_answers
from stratlab.compare.comparison import compare
from stratlab.compare.report_files import render_page
from stratlab.compare.run_sources import load_runs
from stratlab.compare.summary_view import build_markdown, describe
from stratlab.compare.terminal_view import list_answers
from stratlab.compare.trust import APART, FAIR, TIMES_APART, WITH_DOUBTS, judge_trust
from tests.stratlab.compare.building import build, judge

REPEATS = {
    f"{name}-{i}": {"seed": i, "samples_per_s": 1000.0 + i} for name in ("ddp", "fsdp") for i in (0, 1)
}
Runs = dict[str, dict[str, Any]]


@pytest.mark.parametrize(
    ("runs", "outcome", "doubts"),
    [
        (REPEATS, FAIR, 0),
        ({"ddp": {}, "fsdp": {}}, WITH_DOUBTS, 1),  # one repeat
        ({"ddp": {"device": "cpu"}, "fsdp": {"device": "cpu"}}, FAIR, 0),  # no time is ranked
        (
            {name: given | {"world_size": 1} for name, given in REPEATS.items()},
            WITH_DOUBTS,
            1,
        ),  # nothing is shared
        (REPEATS | {"zero2": {"lr": 0.5}}, WITH_DOUBTS, 1),  # a run is apart
        ({"ddp-2": {"world_size": 2}, "ddp-4": {"world_size": 4}}, WITH_DOUBTS, 1),  # scaling
        ({"ddp": {}, "fsdp": {"lr": 0.5}}, APART, 0),
    ],
)
def test_three_outcomes(tmp_path: Path, runs: Runs, outcome: str, doubts: int) -> None:
    trust = judge_trust(judge(tmp_path, runs))
    assert (trust.outcome, len(trust.doubts)) == (outcome, doubts)
    assert all(doubt.remedy for doubt in trust.doubts)


@pytest.mark.parametrize("runs", [{"ddp": {}, "fsdp": {}}, {"ddp": {}, "fsdp": {"lr": 0.5}}])
def test_every_surface_has_the_same_outcome_and_reason(tmp_path: Path, runs: Runs) -> None:
    found = load_runs(build(tmp_path, runs))
    report = compare(found)
    trust, answers = judge_trust(report), name_answers(report)
    assert answers[-1].answer == trust.answer and trust.reason in answers[-1].why
    terminal = "\n".join(told for _, told in list_answers(report))
    for text in (terminal, render_page(report, found), build_markdown(report), describe(report)):
        plain = html.unescape(text).replace("**", "").replace("\\", "")
        assert trust.answer in plain and trust.reason in plain


def test_a_busy_cpu_ranks_no_run_by_time(tmp_path: Path) -> None:
    busy: dict[str, Any] = {"device": "cpu", "hosts": ["n"], "cpu_pressure_pct": 60.0}
    found = load_runs(build(tmp_path, ["ddp", "fsdp"], **busy))
    report = compare(found)
    trust, (pair,) = judge_trust(report), report["attribution"]["pairs"]
    assert trust.outcome == WITH_DOUBTS and not trust.times and not pair["times_comparable"]
    assert TIMES_APART in trust.answer and not re.search(r"\d", pair["sentence"])
    page = render_page(report, found)
    why = page.partition("<h2>Why")[2].partition("</section>")[0]
    assert "<details>" in why and "<svg" not in why


def test_the_least_memory_has_a_measured_cause(tmp_path: Path) -> None:
    report = judge(tmp_path, {"ddp": {}, "fsdp": {}})
    lean = name_answers(report)[1]
    assert lean.run and lean.cause
    unknown = name_answers(report | {"sharding": []})[1]
    assert unknown.cause and unknown.cause != lean.cause


def test_repeats_have_one_name_and_win_as_one(tmp_path: Path) -> None:
    other = {f"ddp-small-{i}": {"micro_batch_size": 16, "seed": i} for i in (0, 1)}
    report = judge(tmp_path, REPEATS | other | {"zero2-a": {}})
    names = {row["run"]: row["configuration"] for row in report["runs"]}
    assert {names[f"fsdp-{i}"] for i in (0, 1)} == {"fsdp"} and names["zero2-a"] == "zero2-a"
    assert {names[f"ddp-{i}"] for i in (0, 1)} == {"ddp"}, "not the strategy: there are two of it"
    assert {names[f"ddp-small-{i}"] for i in (0, 1)} == {"ddp-small"}
