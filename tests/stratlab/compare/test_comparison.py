from __future__ import annotations

import csv
import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from stratlab.compare.comparison import compare
from stratlab.compare.judging.winners import ON_CPU
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.reading.run_rows import SUMMARY_FIELDS, TRACE_FIELDS
from stratlab.compare.reading.step_times import FROM_SUMMARY
from stratlab.compare.showing.report_files import FILES, write_report
from stratlab.compare.showing.terminal_table import terminal_table
from stratlab.run_directory.record import RunRecord
from stratlab.user_error import UserError
from tests.stratlab.example_run import build_run_dir

EXTERNAL = re.compile(r"""https?:|<script [^>]|<link|<iframe|<object|\bsrc=|\bhref=\"[^#]|url\(|@import""")


@pytest.fixture
def runs(tmp_path: Path) -> list[RunRecord]:
    for i, strategy in enumerate(("ddp", "fsdp", "zero2")):
        build_run_dir(tmp_path / "demo", strategy, strategy, loss_shift=i * 1e-7, hosts=["n"])
    return load_runs(tmp_path / "demo")


def test_a_row_holds_the_numbers_of_the_run_and_of_its_traces(runs: list[RunRecord]) -> None:
    row = compare(runs)["runs"][1]
    summary = json.loads((runs[1].folder / "summary.json").read_text())
    trace = json.loads((runs[1].folder / "analysis" / "report.json").read_text())
    told = set(SUMMARY_FIELDS) - set(FROM_SUMMARY)  # the others are found anew: test_warmup.py
    assert {name: row[name] for name in told} == {name: summary[name] for name in told}
    assert {name: row[name] for name in TRACE_FIELDS} == {
        name: trace["mean"].get(name) for name in TRACE_FIELDS
    }
    assert row["comm_exposed_pct"] > 0 and row["kernels_per_step"] == 900
    assert row["trace_source"] == "cpu" and row["trace_steps"] == 3
    assert row["hta"] == trace["hta"] and row["phases_present"]["1"]["forward"] is True
    assert row["mlflow_run_id"] == "id-fsdp" and row["run_dir"] == str(runs[1].folder)
    held = ("parameter_memory_gib", "gradient_memory_gib", "optimizer_memory_gib")
    assert row["state_memory_gib"] == sum(summary[name] for name in held)


def test_a_phase_that_a_trace_lacks_is_shown(runs: list[RunRecord]) -> None:
    runs[0].analysis["phases_present"] = {"0": ["data", "forward"], "1": []}
    found = compare(runs)["runs"][0]["phases_present"]
    assert found["0"] == {"data": True, "forward": True, "backward": False, "optimizer": False}
    assert set(found["1"].values()) == {False}


def test_without_an_analysis_the_run_s_own_count_of_exposed_communication_stands(
    runs: list[RunRecord],
) -> None:
    runs[0].summary["comm_exposed_pct"] = runs[1].summary["comm_exposed_pct"] = 12.5
    runs[0].analysis.clear()
    ddp, fsdp, _ = compare(runs)["runs"]
    assert ddp["comm_exposed_pct"] == 12.5 != fsdp["comm_exposed_pct"]


def test_a_run_that_is_too_short_to_be_timed_says_so(runs: list[RunRecord]) -> None:
    assert not any("was timed" in remark for remark in compare(runs)["remarks"])
    runs[1].metrics[:] = [line for line in runs[1].metrics if line.get("step", 0) <= 4]
    runs[1].summary.update(steps=4, step_time_ms_p50=None, measured_steps=0)
    (said,) = [remark for remark in compare(runs)["remarks"] if "was timed" in remark]
    assert said.startswith("no step of fsdp (4 steps) was timed: the first 5, ")


def test_the_origin_of_the_numbers_is_there(runs: list[RunRecord]) -> None:
    report = compare(runs)
    assert report["comparison"] == "demo" and report["schema_version"] == 2
    assert report["origin"] == {
        "backend": "gloo",
        "device": "cpu",
        "hardware": "Example CPU, 4 cores",
        "world_size": 2,
        "nodes": 1,
        "machines": 1,
        "steps": 60,
        "measured_steps": 50,
        "repeats": 1,
        "versions": {"python": "3.11.7", "torch": "2.13.0", "deepspeed": "0.19.8", "numpy": "2.4.6"},
    }


def test_an_origin_that_differs_shows_every_value(tmp_path: Path) -> None:
    build_run_dir(tmp_path, "a", "ddp", torch="2.13.0")
    build_run_dir(tmp_path, "b", "single", torch="2.12.1")
    origin = compare(load_runs(tmp_path))["origin"]
    assert origin["world_size"] == [2, 1] and origin["versions"]["torch"] == ["2.13.0", "2.12.1"]


def test_numbers_that_json_does_not_know_become_null(tmp_path: Path) -> None:
    build_run_dir(tmp_path, "a", "ddp", train_loss=float("nan"))
    report = compare(load_runs(tmp_path))
    assert report["runs"][0]["train_loss"] is None
    json.dumps(report, allow_nan=False)


def test_nothing_to_compare_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run to compare$"):
        compare([])
    strange = RunRecord("ddp", tmp_path, "not a run", "has no artifacts under run/")
    with pytest.raises(UserError, match="no run to compare: ddp: has no artifacts under run/$"):
        compare([strange])


def test_the_four_files_are_written_whole(runs: list[RunRecord], tmp_path: Path) -> None:
    report = compare(runs)
    page = write_report(report, runs, tmp_path / "new" / "out")
    assert page == tmp_path / "new" / "out" / "report.html"
    assert sorted(p.name for p in page.parent.iterdir()) == sorted(FILES)
    assert json.loads((page.parent / "report.json").read_text()) == report
    table = list(csv.DictReader(StringIO((page.parent / "comparison.csv").read_text())))
    assert [line["run"] for line in table] == ["ddp", "fsdp", "zero2"]
    assert float(table[1]["samples_per_s"]) == report["runs"][1]["samples_per_s"]
    assert table[1]["peak_memory_gib"] == ""


def test_a_failed_write_leaves_the_old_report(runs: list[RunRecord], tmp_path: Path) -> None:
    report = compare(runs)
    page = write_report(report, runs, tmp_path / "out")
    before = {path.name: path.read_text() for path in page.parent.iterdir()}
    with pytest.raises(ValueError, match="JSON"):
        write_report(report | {"remarks": [float("nan")]}, runs, tmp_path / "out")
    assert {path.name: path.read_text() for path in page.parent.iterdir()} == before


def test_the_page_has_its_parts_and_loads_nothing(runs: list[RunRecord], tmp_path: Path) -> None:
    page = write_report(compare(runs), runs, tmp_path / "out").read_text()
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == [
        "Verdict",
        "Why",
        "Pages, traces and logs of the runs",
        "Speed",
        "Time, energy and use of the GPUs",
        "Memory per rank",
        "Sharding",
        "Traces",
        "Learning",
        "Fairness",
        "Do they compute the same?",
        "Classes",
        "Where the numbers come from",
    ]
    # differences, memory against throughput, bars of step, memory, shards and traces, for two widths; three curves; a
    # matrix per run
    assert page.count("<svg") == 2 * (1 + 1 + 4) + 3 + 3 and page.count("</svg>") == 18
    assert page.count("<table>") >= 9
    assert not EXTERNAL.findall(re.sub("<a [^>]*>", "", page))  # a link loads nothing
    banner = page.partition('<div class="banner"')[2].partition("</div>")[0]
    assert "there is no confidence interval" in banner
    assert ON_CPU[1:] in banner and page.count(ON_CPU[1:]) == 1  # once for all
    assert '<div class="answer">fsdp</div>' in page  # holds least
    assert "Example CPU, 4 cores" in page and "backend gloo" in page
    assert '<span class="badge good">comparable</span>' in page
    assert "forward: 4.0" in page and "zero2" in page  # tooltips
    assert "5,661.1" in page  # throughput of ddp: 64 samples in a median step of 11.3053 ms


def test_energy_and_use_of_the_gpus_are_shown(tmp_path: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        build_run_dir(
            tmp_path / "demo", strategy, strategy, device="cuda", hosts=["n"], time_to_target_s=96.5
        )
    runs = load_runs(tmp_path / "demo")
    page = write_report(compare(runs), runs, tmp_path / "out").read_text()
    section = page.split("<h2>Time, energy and use of the GPUs</h2>")[1].split("</section>")[0]
    for told in ("812.50", "1,350", "97.5", ">71<", "96.5", "0.25"):
        assert told in section, told
    learning = page.split("<h2>Learning</h2>")[1].split("</section>")[0]
    assert "99.25" in learning and "93.50" in learning and "Training accuracy" in learning
    header, first = (tmp_path / "out/comparison.csv").read_text().splitlines()[:2]
    row = dict(zip(header.split(","), first.split(","), strict=False))
    assert (row["train_energy_wh"], row["gpu_temperature_c"], row["test_top5_accuracy_pct"]) == (
        "812.5",
        "71.0",
        "99.25",
    )


def test_on_a_cpu_no_energy_is_shown(runs: list[RunRecord], tmp_path: Path) -> None:
    page = write_report(compare(runs), runs, tmp_path / "out").read_text()
    section = page.split("<h2>Time, energy and use of the GPUs</h2>")[1].split("</section>")[0]
    assert "epoch" in section and "<th>energy" not in section and "Wh" not in section.split("</table>")[0]


def test_the_page_of_unfair_runs_says_so(tmp_path: Path) -> None:
    for strategy, seed in (("ddp", 0), ("fsdp", 0), ("zero2", 1)):
        build_run_dir(tmp_path / "demo", strategy, strategy, seed=seed, hosts=["n"])
    runs = load_runs(tmp_path / "demo")
    page = write_report(compare(runs), runs, tmp_path / "out").read_text()
    assert '<span class="badge warn">answered per group</span> the runs differ in seed.' in page
    assert '<span class="badge bad">matters</span>' in page
    assert "Comparable with each other are ddp, fsdp. Among them:" in page
    assert '<span class="badge good">fsdp</span>' in page  # least memory, within the group
    printed = print_table(compare(runs))
    assert "comparable with each other: ddp, fsdp; best: least memory held by the state: fsdp" in printed
    assert "best: nobody is named" not in printed, "in all nobody, in the group somebody"


def test_the_page_names_a_folder_that_is_no_run(runs: list[RunRecord], tmp_path: Path) -> None:
    (tmp_path / "demo" / "lost+found").mkdir()
    found = load_runs(tmp_path / "demo")
    page = write_report(compare(found), found, tmp_path / "out").read_text()
    assert f"Left out: {tmp_path}/demo/lost+found has none of config.json" in page


def test_a_page_of_runs_without_any_numbers_can_be_drawn(tmp_path: Path) -> None:
    for name, status in (("a", "failed"), ("b", "unfinished")):
        (build_run_dir(tmp_path / "demo", name, "ddp", status=status) / "metrics.jsonl").unlink()
    runs = load_runs(tmp_path / "demo")
    page = write_report(compare(runs), runs, tmp_path / "out").read_text()
    assert "no finished run, nothing to compare" in page and "a is failed; b is unfinished" in page
    assert "metrics.jsonl, summary.json, evaluation.json" in page  # what they lack
    assert "No run is named as the best in anything." in page
    assert "No values to draw" in page and "Traces (no run has analysed traces)" in page
    assert '<span class="badge bad">failed</span>' in page


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    name = "=<script>alert('x')<b>[red]\"&"
    folder = build_run_dir(tmp_path / "demo", name, "ddp", model="<img src=x>", python="<b>3</b>")
    build_run_dir(tmp_path / "demo", "fsdp", "fsdp", model="<img src=x>")
    evaluation = json.loads((folder / "evaluation.json").read_text())
    evaluation["class_names"][0] = evaluation["per_class"][0]["label"] = "<script>class"
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    runs = load_runs(tmp_path / "demo")
    report = compare(runs)
    page = write_report(report, runs, tmp_path / "out").read_text()
    assert page.count("<script") == 1 and "<img" not in page and "<b>" not in page
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;b&gt;[red]&#34;&amp;" in page
    assert "&lt;script&gt;class" in page
    # a spreadsheet would run what begins with =
    lines = list(csv.DictReader(StringIO((tmp_path / "out" / "comparison.csv").read_text())))
    assert [line["run"] for line in lines] == [f"'{name}", "fsdp"]
    assert "[red]" in print_table(report)


def test_the_terminal_shows_one_line_per_run_and_the_verdict(runs: list[RunRecord]) -> None:
    printed = print_table(compare(runs))
    assert [line.split("│")[1].strip() for line in printed.splitlines() if line.startswith("│")] == [
        "ddp",
        "fsdp",
        "zero2",
    ]
    assert "5,661.1" in printed and "comparable: nothing that matters differs" in printed
    assert "best: least memory held by the state: fsdp" in printed
    assert "Example CPU, 4 cores, backend gloo, world size 2" in printed and ON_CPU in printed


def test_the_terminal_shows_the_device_s_peak_where_there_is_one(runs: list[RunRecord]) -> None:
    report = compare(runs)
    assert "host peak GiB" in print_table(report)
    report["runs"][0]["peak_memory_gib"] = 41.25
    printed = print_table(report)
    assert "device peak GiB" in printed and "41.25" in printed and "host peak" not in printed


def print_table(report: dict[str, object]) -> str:
    console = Console(width=160, file=StringIO(), force_terminal=False)
    console.print(terminal_table(report))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_report_of_a_runs_analysis_is_not_overwritten(tmp_path: Path) -> None:
    analysis = build_run_dir(tmp_path / "demo", "ddp", "ddp") / "analysis"
    before = (analysis / "report.json").read_bytes()
    runs = load_runs(tmp_path / "demo")
    with pytest.raises(UserError, match="there is a report.json that is not of a comparison"):
        write_report(compare(runs), runs, analysis)
    assert (analysis / "report.json").read_bytes() == before
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="--output .*file: cannot be a folder"):
        write_report(compare(runs), runs, tmp_path / "file")
