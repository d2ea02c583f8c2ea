"""Layouts of one language model on page and terminal; what is unknown is never 0. Rows: test_pinned_reports.py."""

from pathlib import Path

import pytest

from stratlab import UserError
from stratlab.compare.comparison import compare
from stratlab.compare.report_files import write_report
from stratlab.compare.run_sources import load_runs
from stratlab.run_directory.record import RunRecord
from tests.codes import find_codes
from tests.stratlab.compare.building import difference, edit, judge, read_columns
from tests.stratlab.example_text import LACKING, LAYOUTS, build_text_run

FIVE = list(LAYOUTS)


@pytest.fixture
def runs(tmp_path: Path) -> list[RunRecord]:
    for name, layout in LAYOUTS.items():
        build_text_run(tmp_path / "llm", name, layout)
    return load_runs(tmp_path / "llm")


def test_layouts_of_one_model_are_comparable(runs, tmp_path):
    report = compare(runs)
    assert report["fairness"]["verdict"] == "comparable", report["fairness"]["reason"]
    assert report["fairness"]["groups"] == [FIVE] and len(report["attribution"]["pairs"]) == 4
    assert [entry["field"] for entry in report["fairness"]["differences"]] == ["grad_accum_steps"]
    build_text_run(tmp_path / "llm", "llm-2d", LAYOUTS["llm-2d"], tokenizer="/results/qwen")
    assert judge(tmp_path / "llm")["fairness"]["verdict"] == "comparable", "where the tokenizer lies"
    path = tmp_path / "llm" / "llm-2d" / "config.json"
    edit(path, lambda config: config["resolved"].update(tokenizer_sha256="other"))
    edit(path, lambda config: config["config"].update(packing=None))
    found = judge(tmp_path / "llm")
    assert difference(found, "tokenizer_sha256")["matters"]
    assert difference(found, "packing")["values"]["llm-2d"] == "unknown"


def test_each_stage_shows_its_rank_with_most(runs):
    one, two = compare(runs)["runs"][:2]
    assert [(stage["stage"], stage["ranks"]) for stage in one["stages"]] == [(0, 8)]
    first, last = two["stages"]
    assert (first["ranks"], last["ranks"]) == (4, 4) and last["parameters"] == 2 * first["parameters"] > 0
    assert first["state"] == pytest.approx(first["parameters"] + first["gradients"] + first["optimizer"])
    assert first["peak_memory_gib"] is None  # a CPU has no device memory
    del runs[1].ranks[0]["state_memory_gib"]["optimizer"]
    first = compare(runs)["runs"][1]["stages"][0]
    assert first["optimizer"] is None and first["state"] is None and first["parameters"] is not None


@pytest.mark.parametrize("told_by", ["config.json", "summary.json"])
def test_a_layout_without_a_dimension_of_its_name_is_shown_and_judged_with_nobody(tmp_path, told_by):
    folder = build_text_run(tmp_path, "llm-3d", LACKING)
    if told_by == "summary.json":
        layout = {"missing": [], "degenerate": False}
        edit(folder / "config.json", lambda config: config["resolved"]["layout"].update(layout))
    else:
        edit(folder / "summary.json", lambda found: found.update(missing_dimensions=[], degenerate=False))
    runs = load_runs(tmp_path)
    report = compare(runs)
    assert [entry["run"] for entry in report["fairness"]["not_compared"]] == ["llm-3d"]
    page = write_report(report, runs, tmp_path / "out").read_text()
    assert '<span class="badge bad">degenerate</span> llm-3d' in page
    assert "degenerate" in read_columns(report)["status"]
    with pytest.raises(UserError) as refused:
        compare(runs, baseline="llm-3d")
    assert find_codes(refused.value) == ["SL-baseline-unknown"]
