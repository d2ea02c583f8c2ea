"""Whole pages: their parts, what they say once, links, names from outside; and the terminal's table."""

from __future__ import annotations

import csv
import io
import json
import re
import urllib.parse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.flags import build_flags
from stratlab.compare.measured_view import build_traces
from stratlab.compare.report_files import FILES, MOST_RUNS, render_page, write_report
from stratlab.compare.run_rows import read_rows
from stratlab.compare.run_sources import load_runs
from stratlab.compare.summary_view import build_markdown
from stratlab.compare.verdict_view import MORE
from stratlab.compare.winners import ON_CPU, ONE_REPEAT
from stratlab.run_directory.record import RunRecord
from stratlab.user_error import UserError
from tests.codes import find_codes
from tests.stratlab.compare.building import build, edit, judge, read_columns
from tests.stratlab.example_run import build_run_dir

EXTERNAL = re.compile(r"""https?:|<script [^>]|<link|<iframe|<object|\bsrc=|\bhref=\"[^#]|url\(|@import""")
THREE = ("ddp", "fsdp", "zero2")
SLOT = '<h1>ddp</h1><p class="back"></p>'


def load(root: Path, *names: str, **common: Any) -> list[RunRecord]:
    return load_runs(build(root, names or THREE, **common))


def write(runs: list[RunRecord], folder: Path, **asked: Any) -> str:
    return write_report(compare(runs, **asked), runs, folder).read_text()


def section(page: str, title: str) -> str:
    (found,) = re.findall(
        rf"<h2>{re.escape(title)}(?: <span[^>]*>CPU</span>)?</h2>(.*?)</section>", page, re.DOTALL
    )
    return str(found)


def test_the_page_of_gpus_has_its_parts_and_loads_nothing(tmp_path: Path) -> None:
    runs = load(tmp_path / "demo", time_to_target_s=96.5)
    page = write(runs, tmp_path / "out", memory_limit_gib=1.5)
    opened, _, folded = page.partition('<div class="folds">')
    shown = re.findall(r"<h2>(.*?)</h2>", opened)
    assert shown[:3] == ["Speed against memory", "Step time by cause", "Why"] and len(shown) == 5
    assert folded.count("<summary><h2>") == 14 and "<table>" not in opened and folded.count("<table>") >= 9
    assert page.count("<svg") == page.count("</svg>") == 20
    assert not EXTERNAL.findall(re.sub("<a [^>]*>", "", page))  # a link loads nothing
    for told in ("812.50", "1,350", "97.5", ">71<", "96.5", "0.25"):
        assert told in section(page, "Time, energy and use"), told
    assert "99.25" in section(page, "Learning") and "93.50" in section(page, "Learning")
    parts = section(page, "Parts of the differences")
    report = compare(runs, memory_limit_gib=1.5)
    for pair in report["attribution"]["pairs"]:
        assert pair["sentence"].rstrip(".") in parts and parts.count(pair["origin"]) == 1, (
            "once for all pairs"
        )
        assert section(page, "Why").count(pair["remedy"]) == 1
    assert 'class="limit"' in section(page, "Speed against memory")
    assert "CPU" not in opened


def test_the_page_of_a_cpu_says_once_what_its_times_are(tmp_path: Path) -> None:
    runs = load(tmp_path / "demo", device="cpu")
    page = write(runs, tmp_path / "out")
    opened = page.partition('<div class="folds">')[0]
    assert opened.count(MORE[ON_CPU]) == 1 and ON_CPU not in opened and MORE[ONE_REPEAT] in page
    assert len(re.findall("<h2>[^<]* <span[^>]*>CPU</span></h2>", opened)) == 2, "figures of times, no others"
    assert "Losses against memory" in opened and "Try for" not in page
    assert page.count('<span class="badge warn">CPU</span> ') == 2
    assert "<th>energy" not in section(page, "Time, energy and use")
    assert '<div class="answer">fsdp</div>' in page  # holds least
    assert "5,653.1" in page  # throughput of ddp: 64 samples in a median step of 11.3212 ms


def test_what_cannot_be_judged_or_explained_is_said(tmp_path: Path) -> None:
    build(tmp_path / "demo", {"ddp": {}, "fsdp": {"analysis": False}, "single": {}, "zero2": {"seed": 1}})
    (tmp_path / "demo" / "lost+found").mkdir()
    runs = load_runs(tmp_path / "demo")
    page = write(runs, tmp_path / "out")
    assert (
        f"{tmp_path}/demo/lost+found" in section(page, "Caveats and origin")
        and '<span class="badge bad">matters' in page
    )
    parts = section(page, "Parts of the differences")
    assert "fsdp against ddp" in parts and "world_size, processes_per_node" in parts
    few = compare(runs)
    for row in few["runs"]:
        row["measured_steps"] = 1
    few["flags"] = build_flags(read_rows(few))
    assert '<strong class="loud">' in render_page(few, runs) and '<strong class="loud">' not in page


def test_a_page_of_runs_without_any_numbers_can_be_drawn(tmp_path: Path) -> None:
    for name, status in (("a", "failed"), ("b", "unfinished")):
        (build_run_dir(tmp_path / "demo", name, "ddp", status=status) / "metrics.jsonl").unlink()
    page = write(load_runs(tmp_path / "demo"), tmp_path / "out")
    assert "metrics.jsonl, summary.json, evaluation.json" in page  # what they lack
    assert '<span class="badge bad">failed</span>' in page


def test_many_runs_stay_readable(tmp_path: Path) -> None:
    """Charts of eight at most."""
    runs = {f"run{i:02}": {"strategy": "ddp", "micro_batch_size": i + 1} for i in range(11)}
    page = write(load_runs(build(tmp_path / "demo", runs)), tmp_path / "out")
    assert page.count("− run00</td>") == 10  # a line per pair instead of a column
    assert f"Charts show {MOST_RUNS} of 11 runs" in page


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    name = "=<script>alert('x')<b>[red]\"&"
    model = {"model": "<img src=x>"}
    build(tmp_path / "demo", {name: {"strategy": "ddp", "python": "<b>3</b>", **model}, "fsdp": model})
    classes = "<script>class"
    path = tmp_path / "demo" / name / "evaluation.json"
    edit(
        path,
        lambda found: (
            found["per_class"][0].update(label=classes) or found["class_names"].__setitem__(0, classes)
        ),
    )
    runs = load_runs(tmp_path / "demo")
    page = write(runs, tmp_path / "out")
    assert page.count("<script") == 1 and "<img" not in page and "<b>" not in page
    assert (
        "&lt;script&gt;alert(&#39;x&#39;)&lt;b&gt;[red]&#34;&amp;" in page and "&lt;script&gt;class" in page
    )
    # a spreadsheet would run what begins with =
    lines = list(csv.DictReader(io.StringIO((tmp_path / "out" / "comparison.csv").read_text())))
    assert [line["run"] for line in lines] == [f"'{name}", "fsdp"]


def test_the_four_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    runs = load(tmp_path / "demo")
    report = compare(runs)
    folder = write_report(report, runs, tmp_path / "new" / "out").parent
    before = {path.name: path.read_text() for path in folder.iterdir()}
    assert sorted(before) == sorted(FILES) and json.loads(before["report.json"]) == report
    row = list(csv.DictReader(io.StringIO(before["comparison.csv"])))[1]
    assert (row["run"], float(row["samples_per_s"])) == ("fsdp", report["runs"][1]["samples_per_s"])
    assert (row["baseline"], row["torch"], row["step_times_from"]) == ("ddp", "2.13.0", "metrics.jsonl")
    assert (
        float(row["speedup_vs_baseline"]) == pytest.approx(0.819, abs=0.001) and row["warmup_steps"] == "12"
    )
    assert row["bubble_pct"] == "" == row["scaling_efficiency_pct"], "unknown is not 0"
    with pytest.raises(ValueError):
        write_report(report | {"remarks": [float("nan")]}, runs, folder)
    assert {path.name: path.read_text() for path in folder.iterdir()} == before


def test_nothing_else_is_overwritten(tmp_path: Path) -> None:
    runs = load(tmp_path / "demo")
    (tmp_path / "file").touch()
    for place, code in (
        (tmp_path / "demo" / "ddp" / "analysis", "SL-report-taken"),
        (tmp_path / "demo" / "ddp", "SL-report-in-run"),
        (tmp_path / "file", "SL-report-no-folder"),
    ):
        with pytest.raises(UserError) as refused:
            write_report(compare(runs), runs, place)
        assert find_codes(refused.value) == [code] and str(place) in str(refused.value)


def list_files(page: Path) -> list[Path]:
    """What its links to files lead to."""
    found = re.findall(r'<a class="file" href="([^"]*)"', page.read_text())
    return [(page.parent / urllib.parse.unquote(address)).resolve() for address in found]


def test_pages_traces_and_logs_are_linked_and_lead_back(tmp_path: Path) -> None:
    runs = load(tmp_path / "a" / "b" / "demo", "ddp", "fsdp")
    demo = runs[0].folder.parent
    for run in ("ddp", "fsdp"):
        (demo / run / "analysis" / "report.html").write_text(SLOT)
    (demo / "ddp" / "analysis" / "merged_trace.json.gz").touch()
    elsewhere = write_report(compare(runs), runs, tmp_path / "elsewhere")
    assert list_files(elsewhere) == [] and (demo / "ddp" / "analysis" / "report.html").read_text() == SLOT
    assert 'class="file"' not in render_page(compare(runs), runs)
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


def test_what_the_traces_have_nothing_to_say_about_is_left_out(tmp_path: Path) -> None:
    rows = read_rows(compare(load(tmp_path)))
    analysis = {"analysis": "idle_time", "status": "unsupported", "reason": "no GPU events"}
    traces, hta = build_traces([replace(row, hta=[analysis]) for row in rows])
    assert "Holistic" not in traces.html and not hta.html and hta.nothing
    (traces,) = build_traces([replace(row, hta=[analysis, analysis | {"status": "ok"}]) for row in rows])
    assert "Holistic Trace Analysis" in traces.html
    (traces,) = build_traces([replace(row, trace_source=None, hta=[]) for row in rows])
    assert traces.nothing and not traces.html


def test_the_comparisons_name_is_told_once(tmp_path: Path) -> None:
    root = tmp_path / "vit-huge-food101-eight-gpus"
    names = {
        f"{root.name}-{strategy}": {"strategy": strategy} for strategy in ("ddp", "fsdp", "hsdp", "zero2")
    }
    runs = load_runs(build(root, names))
    report = compare(runs)
    said = re.sub(r"<[^>]*>", " ", render_page(report, runs))
    assert not re.findall(rf"(?<![-/\w]){root.name}-(?:ddp|fsdp)(?![-/\w])", said)
    assert "| fsdp | fsdp |" in build_markdown(report) and report["runs"][0]["run"].startswith("vit-")


@pytest.mark.parametrize(("gib", "unit", "told"), [(0.0007, "MiB", "2.867"), (3.0, "GiB", "12.000")])
def test_small_models_are_told_in_small_units(tmp_path: Path, gib: float, unit: str, told: str) -> None:
    held = {"parameters": gib, "gradients": gib, "optimizer": 2 * gib}
    report = judge(tmp_path, ["ddp", "fsdp"], state_memory_gib=held)
    assert read_columns(report)[f"state {unit}/rank"] == [told] * 2
    assert f"({unit})" in build_markdown(report)
