"""Who is named, what is asked, and the figures of the answer: of steps, memory and losses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from stratlab.compare.answers import name_answers, say_answer
from stratlab.compare.attribution_view import build_step_times, build_why
from stratlab.compare.comparison import compare
from stratlab.compare.measured_view import build_memory
from stratlab.compare.report_files import MOST_RUNS, build_loss_differences, choose_runs, render_page
from stratlab.compare.run_rows import read_rows
from stratlab.compare.run_sources import load_runs
from stratlab.compare.tradeoffs_view import build_choice, build_scaling_chart
from stratlab.compare.trust import find_group
from tests.stratlab.compare.building import build, edit, judge
from tests.stratlab.compare.sixteen_runs import build_sixteen
from tests.stratlab.example_numbers import THREE

H200 = THREE.parents[1] / "h200"
EQUAL = {"ddp": {"samples_per_s": 1000.0}, "fsdp": {"samples_per_s": 1005.0}}
REPEATS = {f"{n}-{i}": {"samples_per_s": s} for n in ("ddp", "fsdp") for i, s in enumerate((1000.0, 1010.0))}
GROWN = {f"ddp-{n}": {"world_size": n, "samples_per_s": 900.0 * n} for n in (2, 4)}


@pytest.mark.parametrize(
    ("runs", "named", "fair"),
    [
        ({"ddp": {}, "fsdp": {}, "zero2": {}}, ["ddp", "fsdp and zero2", ""], True),  # two hold equally little
        (EQUAL, ["", "fsdp", ""], True),
        (REPEATS, ["", "fsdp", ""], True),
        ({"ddp": {}, "fsdp": {"seed": 1}}, ["", ""], False),  # what was learnt is not asked
        ({"ddp": {"device": "cpu"}, "fsdp": {"device": "cpu"}}, ["", "fsdp", ""], True),
        ({"ddp": {}, "fsdp": {}, "zero3": {"status": "failed"}}, ["ddp", "fsdp", ""], True),
    ],
)  # fmt: skip
def test_who_is_named(tmp_path: Path, runs: dict[str, dict[str, Any]], named: list[str], fair: bool) -> None:
    report = judge(tmp_path, runs)
    *found, fairness = name_answers(report, load_runs(tmp_path))
    assert [answer.run for answer in found] == named and bool(fairness.run) is fair
    assert all(re.search(r"\d", answer.number) for answer in (*found, fairness)), "a number each"
    said = say_answer(report)
    assert all(name in said for name in named) and said.endswith(".") and said.count(". ") == 0
    assert ("zero3" in said) is ("zero3" in runs)


def test_a_better_run_is_named_only_where_chance_cannot_explain_it(tmp_path: Path) -> None:
    build(tmp_path, ["ddp", "fsdp"])
    for lead, name in ((0.5, ""), (30.0, "ddp")):
        edit(
            tmp_path / "ddp" / "summary.json",
            lambda summary, by=lead: summary.update(validation_accuracy_pct=60.0 + by),
        )
        edit(tmp_path / "fsdp" / "summary.json", lambda summary: summary.update(validation_accuracy_pct=60.0))
        runs = load_runs(tmp_path)
        assert name_answers(compare(runs), runs)[2].run == name


def test_of_several_groups_the_largest_answers_and_of_equal_ones_that_with_most_ranks(tmp_path: Path) -> None:
    runs = load_runs(build_sixteen(tmp_path / "sixteen"))
    report = compare(runs)
    rows, judged = find_group(report)
    answered = {row.run for row in rows}
    assert judged is not None and answered == {
        f"{name}-{seed}" for name in ("ddp", "fsdp", "zero2") for seed in "ab"
    }
    shown = choose_runs(report, read_rows(report))
    assert len(shown) == MOST_RUNS and {"ddp", "fsdp", "zero2"} <= {row.configuration for row in shown}
    page = render_page(report, runs)
    assert "fsdp-failed" not in {row.run for row in shown} and "Memory per rank: all runs" in page
    for entry in report["pareto"]:  # the pictures of all groups say whose they are
        assert page.count(f"<div><h3>Among {', '.join(point['run'] for point in entry['points'])}</h3>") == 1
    assert "<h3>Among ddp, fsdp, zero2</h3>" in page
    both = {f"{name}-{n}": {"world_size": n} for n in (2, 4) for name in ("ddp", "fsdp")}
    assert {row.world_size for row in find_group(judge(tmp_path / "grown", both))[0]} == {4}


def test_a_step_is_drawn_with_all_its_parts_and_the_number_of_its_median(tmp_path: Path) -> None:
    build(tmp_path, {"ddp": {"analysis": False}, "fsdp": {}})  # of fsdp two collectives are one cause
    runs = load_runs(tmp_path)
    ddp, fsdp = read_rows(compare(runs))
    drawn = build_step_times([ddp, fsdp], runs, Markup("")).html.partition('class="narrow"')[0]
    parts = [float(ms) for ms in re.findall(r"<title>fsdp, [a-z ]+: ([\d.]+) ms", drawn)]
    assert sum(parts) == pytest.approx(fsdp.step_ms, rel=0.01) and len(parts) >= 5
    medians = [float(at) for at in re.findall(r">(\d+\.\d+)</text>", drawn)]
    assert medians == pytest.approx([ddp.step_time_ms_p50, fsdp.step_time_ms_p50], abs=0.01)
    assert "forward" in build_step_times([ddp], runs[:1], Markup("")).html


def test_why_leads_from_the_best_to_each_of_the_others() -> None:
    report = compare(load_runs(THREE))
    html = build_why(report, mark=Markup("")).html
    assert html.count("<li>") == 2 and len(re.findall("<h3>", html)) == 2
    for pair in report["attribution"]["pairs"]:
        assert f"From {pair['baseline']} to {pair['run']} in ms" in html


def test_predicted_and_measured_memory_sum_to_the_two_peaks() -> None:
    runs = load_runs(H200)
    rows = read_rows(compare(runs))
    html = build_memory(rows, runs).html.partition('class="narrow"')[0]
    for row in rows:
        for what, peak in (("predicted", row.forecast_memory_gib), ("measured", row.peak_memory_gib)):
            parts = re.findall(rf"<title>{row.run}: {what}, [a-z ]+: ([\d.]+) GiB", html)
            assert sum(map(float, parts)) == pytest.approx(peak, abs=0.01) and len(parts) == 4


def test_losses_that_differ_are_drawn_and_equal_ones_are_named(tmp_path: Path) -> None:
    runs = load_runs(build_sixteen(tmp_path / "sixteen"))
    html = build_loss_differences(compare(runs), runs).html
    drawn, _, said = html.rpartition("</svg>")
    assert "<title>zero2-a − ddp-a</title>" in drawn and "<title>fsdp-a − ddp-a</title>" not in drawn
    assert "fsdp and ddp (2 seeds)" in said


def test_ranks_are_whole_numbers_and_what_is_too_near_has_no_front(tmp_path: Path) -> None:
    (chart,) = build_scaling_chart(judge(tmp_path / "grown", GROWN), mark=Markup(""))
    axis = re.findall(r'text-anchor="middle" class="n">([^<]*)<', chart.html.partition('class="narrow"')[0])
    assert axis == ["2", "4", "ranks"] and "ideal" in chart.html
    slow = {"ddp": {"samples_per_s": 1000.0}, "fsdp": {"samples_per_s": 500.0}}
    held = {"state_memory_gib": {"parameters": 1.0, "gradients": 1.0, "optimizer": 1.0}, "device": "cuda"}
    for given, front in ((EQUAL, False), (slow, True)):
        report = judge(tmp_path / f"front{front}", {name: {**more, **held} for name, more in given.items()})
        chosen = build_choice(report, read_rows(report), None, mark=Markup("")).html
        assert ('class="f0"' in chosen) is front
