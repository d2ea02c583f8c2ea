"""Whole pages and screens: their numbers as they were (tests/data/pages.json), links, files, names from outside."""

import csv
import io
import json
import re
import shutil
import urllib.parse
from dataclasses import replace

import pytest
from markupsafe import Markup
from rich.console import Console

from stratlab.compare.answers import name_answers, say_answer
from stratlab.compare.attribution_view import build_why
from stratlab.compare.comparison import compare
from stratlab.compare.measured_view import build_speed
from stratlab.compare.report_files import FILES, write_report
from stratlab.compare.run_rows import build_row
from stratlab.compare.run_sources import load_runs
from stratlab.compare.summary_view import build_markdown
from stratlab.compare.terminal_view import build_screen, list_parts
from tests.codes import find_codes
from tests.stratlab.compare.building import build, edit, judge, read_columns
from tests.stratlab.compare.sixteen_runs import build_sixteen
from tests.stratlab.example_numbers import THREE as OF_3
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.example_text import LACKING, LAYOUTS, build_text_run
from tests.stratlab.pinned import check_pinned, outline
from tests.stratlab.raised import raised

EXTERNAL = re.compile(r"""https?:|<script [^>]|<link|<iframe|<object|\bsrc=|\bhref=\"[^#]|url\(|@import""")
THREE = ("ddp", "fsdp", "zero2")
SLOT = '<h1>ddp</h1><p class="back"></p>'
EQUAL = {"ddp": {"samples_per_s": 1000.0}, "fsdp": {"samples_per_s": 1005.0}}
REPEATS = {f"{n}-{i}": {"samples_per_s": s} for n in ("ddp", "fsdp") for i, s in enumerate((1000.0, 1010.0))}
SMALL = dict.fromkeys(("parameters", "gradients", "optimizer"), 0.0007)
ELEVEN = {f"run{i:02}": {"strategy": "ddp", "micro_batch_size": i + 1} for i in range(11)}
MIXED = {"ddp": {}, "fsdp": {"analysis": False}, "single": {}, "zero2": {"seed": 1}}


def build_empty(root):
    for name, status in (("a", "failed"), ("b", "unfinished")):
        (build_run_dir(root, name, "ddp", status=status) / "metrics.jsonl").unlink()
    return root


def build_layouts(root, **changes):
    for name, layout in LAYOUTS.items():
        build_text_run(root, name, replace(layout, **changes))
    return root


def grow(root):
    runs = {
        f"ddp-{n}": {"world_size": n, "samples_per_s": 900.0 * n, "grad_accum_steps": 8 // n} for n in (2, 4)
    }
    return build(root, runs)


SETS = {
    "three": lambda root: build(root, THREE, time_to_target_s=96.5),
    "three on CPUs": lambda root: build(root, THREE, device="cpu"),
    "not comparable": lambda root: build(root, MIXED),
    "no numbers": build_empty,
    "eleven": lambda root: build(root, ELEVEN),
    "sixteen": build_sixteen,
    "of a GPU": lambda root: shutil.copytree(OF_3.parents[1] / "h200", root),
    "layouts": build_layouts,
    "layouts without counts": lambda root: build_layouts(root, sent={}),
    "a layout that lacks what it is called": lambda root: build_text_run(root, "llm-3d", LACKING).parent,
    "two sizes": grow,
    "nearly equal": lambda root: build(root, EQUAL),
    "small states": lambda root: build(root, ["ddp", "fsdp"], state_memory_gib=SMALL),
}  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_pages_and_screens_have_the_numbers_that_they_had(name, tmp_path):
    runs = load_runs(SETS[name](tmp_path / "demo"))
    report = compare(runs, memory_limit_gib=1.5)
    page, text = write_report(report, runs, tmp_path / "out").read_text(), build_markdown(report)
    screens = {}
    for width in (80, 120):
        shown = io.StringIO()
        Console(file=shown, width=width).print(build_screen(report, width))
        lines = shown.getvalue().splitlines()
        assert max(map(len, lines)) <= width and (len(lines) <= 40 or len(runs) > 3)
        screens[str(width)] = re.findall(r"\d[\d,.]*", shown.getvalue())
    numbers = re.findall(r"\d[\d,.]*", text.partition("run_dir")[0].replace(str(tmp_path), ""))
    found = outline(page.replace(str(tmp_path), ""))
    check_pinned("pages.json", f"comparison: {name}", {"page": found, "summary": numbers, **screens})
    assert not EXTERNAL.findall(re.sub("<a [^>]*>", "", page)), "a link loads nothing"
    assert "<table>" not in page.partition('<div class="folds">')[0] or len(runs) > 4
    for pair in report["attribution"]["pairs"]:
        parts = list_parts(pair)
        assert sum(ms for _, ms in parts) == pytest.approx(pair["difference_ms"])
        assert len({part for part, _ in parts}) == len(parts)


@pytest.mark.parametrize(
    ("runs", "named", "fair"),
    [
        ({"ddp": {}, "fsdp": {}, "zero2": {}}, ["ddp", "fsdp and zero2", ""], True),  # two hold equally little
        (EQUAL, ["", "fsdp", ""], True),
        (REPEATS, ["", "fsdp", ""], True),
        ({"ddp": {}, "fsdp": {"seed": 1}}, ["", ""], False),  # what was learnt is not asked
        ({"ddp": {"device": "cpu"}, "fsdp": {"device": "cpu"}}, ["", "fsdp", ""], True),
        ({"ddp": {}, "fsdp": {}, "zero3": {"status": "failed"}}, ["ddp", "fsdp", ""], True),
        ({"ddp": {"validation_accuracy_pct": 90.0}, "fsdp": {"validation_accuracy_pct": 60.0}},
         ["ddp", "fsdp", "ddp"], True),
    ],
)  # fmt: skip
def test_who_is_named(tmp_path, runs, named, fair):
    report = judge(tmp_path, runs)
    *found, fairness = name_answers(report, load_runs(tmp_path))
    assert [answer.run for answer in found] == named and bool(fairness.run) is fair
    assert all(re.search(r"\d", answer.number) for answer in (*found, fairness)), "a number each"
    said = say_answer(report)
    assert all(name in said for name in named) and said.endswith(".") and said.count(". ") <= 2
    assert ("zero3" in said) is ("zero3" in runs)


def test_foreseen_steps_stand_next_to_the_measured_ones(tmp_path):
    foreseen = {
        "forecast_step_ms": 8.125,
        "forecast_step_error_pct": -28.2,
        "forecast_step_deviates": "backward",
    }
    root = build(tmp_path, {"ddp": {}, "fsdp": {}})
    for with_forecast in (False, True):
        if with_forecast:
            edit(root / "ddp" / "summary.json", lambda summary: summary.update(foreseen))
        rows = [build_row(run) for run in load_runs(root)]
        html = str(build_speed(rows, {"repeats": 0}).html)
        assert all((shown in html) == with_forecast for shown in ("8.12", "-28.2", ">backward</td>"))


def test_runs_that_are_too_near_are_all_named_as_a_tie(tmp_path):
    speeds = {"ddp": 1000.0, "fsdp": 1005.0, "zero1": 990.0, "zero2": 900.0}
    report = judge(tmp_path, {name: {"samples_per_s": speed} for name, speed in speeds.items()})
    fastest = name_answers(report)[0]
    assert (fastest.answer, fastest.run) == ("fsdp, ddp or zero1", "")


def test_without_recorded_steps_phases_explain_what_exceeds_the_noise(tmp_path):
    report = judge(tmp_path, {"ddp": {"analysis": False}, "fsdp": {"analysis": False}})
    html = str(build_why(report, Markup("")).html)
    assert "2.5 ms (22 %)" in html and "+1.5 ms backward, +1.0 ms forward" in html
    for row in report["runs"]:
        row["noise_ms"] = 1.3
    assert "ms" not in str(build_why(report, Markup("")).html)


def test_hostile_names_are_escaped(tmp_path):
    name = "=<script>alert('x')<b>[red]\"&"
    model = {"model": "<img src=x>"}
    build(tmp_path / "demo", {name: {"strategy": "ddp", "python": "<b>3</b>", **model}, "fsdp": model})
    path = tmp_path / "demo" / name / "evaluation.json"
    edit(
        path,
        lambda found: (found["per_class"][0].update(label="<script>"), found["class_names"].insert(0, "<b>")),
    )
    runs = load_runs(tmp_path / "demo")
    page = write_report(compare(runs), runs, tmp_path / "out").read_text()
    assert page.count("<script") == 1 and "<img" not in page and "<b>" not in page
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;b&gt;[red]&#34;&amp;" in page
    assert name in read_columns(compare(runs))["run"]
    lines = list(csv.DictReader(io.StringIO((tmp_path / "out" / "comparison.csv").read_text())))
    assert [line["run"] for line in lines] == [f"'{name}", "fsdp"], (
        "a spreadsheet would run what begins with ="
    )


def test_the_four_files_are_written_whole_or_not_at_all_and_over_nothing_else(tmp_path):
    runs = load_runs(build(tmp_path / "demo", THREE))
    report = compare(runs)
    folder = write_report(report, runs, tmp_path / "new" / "out").parent
    before = {path.name: path.read_text() for path in folder.iterdir()}
    assert sorted(before) == sorted(FILES) and json.loads(before["report.json"]) == report
    row = list(csv.DictReader(io.StringIO(before["comparison.csv"])))[1]
    assert (row["run"], float(row["samples_per_s"])) == ("fsdp", report["runs"][1]["samples_per_s"])
    assert (row["baseline"], row["torch"], row["warmup_steps"]) == ("ddp", "2.13.0", "12")
    assert row["bubble_pct"] == "" == row["scaling_efficiency_pct"], "unknown is not 0"
    with pytest.raises(ValueError):
        write_report(report | {"remarks": [float("nan")]}, runs, folder)
    assert {path.name: path.read_text() for path in folder.iterdir()} == before
    (tmp_path / "file").touch()
    for place, code in (
        (tmp_path / "demo" / "ddp" / "analysis", "SL-report-taken"),
        (tmp_path / "demo" / "ddp", "SL-report-in-run"),
        (tmp_path / "file", "SL-report-no-folder"),
    ):
        refused = raised(write_report, compare(runs), runs, place)
        assert find_codes(refused) == [code] and str(place) in str(refused)


def list_files(page):
    found = re.findall(r'<a class="file" href="([^"]*)"', page.read_text())
    return [(page.parent / urllib.parse.unquote(address)).resolve() for address in found]


def test_pages_traces_and_logs_are_linked_and_lead_back(tmp_path):
    runs = load_runs(build(tmp_path / "a" / "b" / "demo", ["ddp", "fsdp"]))
    demo = runs[0].folder.parent
    for run in ("ddp", "fsdp"):
        (demo / run / "analysis" / "report.html").write_text(SLOT)
    (demo / "ddp" / "analysis" / "merged_trace.json.gz").touch()
    elsewhere = write_report(compare(runs), runs, tmp_path / "elsewhere")
    assert list_files(elsewhere) == [] and (demo / "ddp" / "analysis" / "report.html").read_text() == SLOT
    page = write_report(compare(runs), runs, demo / "report")
    there = {str(path.relative_to(demo)) for path in list_files(page) if path.exists()}
    assert len(there) == len(list_files(page))
    assert there >= {"ddp/analysis/report.html", "ddp/traces/rank1_trace.json", "fsdp/ranks/rank0.log"}
    assert {name for name in there if "merged" in name} == {"ddp/analysis/merged_trace.json.gz"}
    assert '<a href="http://mlflow:5000/#/experiments/1/runs/id-ddp">run</a>' in page.read_text()
    assert list_files(demo / "fsdp" / "analysis" / "report.html") == [page]
    (demo / "ddp" / "analysis" / "report.html").write_bytes(b"\xff\xfe")  # costs no report
    write_report(compare(runs), runs, demo / "report")
    assert (demo / "ddp" / "analysis" / "report.html").read_bytes() == b"\xff\xfe"
