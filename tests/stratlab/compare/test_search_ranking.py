"""Runs that are meant to differ: what is accepted, what is still caught, who is best and when nobody is.
Layouts of one language model on page and terminal; what is unknown is never 0. Rows: test_pinned_reports.py."""

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.fairness import AS_SEARCH
from stratlab.compare.publishing import describe
from stratlab.compare.report_files import render_page, write_report
from stratlab.compare.run_sources import keep_varied, load_runs, read_varied
from stratlab.compare.search_ranking import say_search
from stratlab.compare.summary_view import build_markdown
from stratlab.compare.terminal_view import list_answers
from stratlab.compare.variants import CARRIED_OUT, parse_varied
from stratlab_spec.settings.rules import MAY_DIFFER
from tests.codes import find_codes
from tests.stratlab.compare.building import difference, edit, judge, read_columns
from tests.stratlab.compare.scenarios import points, search
from tests.stratlab.example_text import LACKING, LAYOUTS, build_text_run
from tests.stratlab.raised import raised


def test_a_search_ranks_and_names_the_best_on_every_page(tmp_path):
    report = search(tmp_path, points((90.0, 90.2), (94.0, 94.2), (80.0, 80.2)), "lr")
    found = report["search"]
    assert report["fairness"]["verdict"] == AS_SEARCH and "lr, seed" in report["fairness"]["reason"]
    assert [point["settings"] for point in found["points"]] == [{"lr": 0.01}, {"lr": 0.001}, {"lr": 0.1}]
    assert [point["value"] for point in found["points"]] == pytest.approx([94.1, 90.1, 80.1])
    assert found["best"] == {"lr": 0.01} and found["left_out"] == []
    # s = 0.1414 in each point, t(3) = 3.182, of the difference of two means of two
    assert found["points"][1]["noise"] == pytest.approx(3.182 * 0.02**0.5) and "0.45 %" in found["reason"]
    assert set(report["winners"].values()) == {None}, "speed is not ranked over other settings"
    said, page, text = say_search(found)[0], render_page(report, load_runs(tmp_path)), build_markdown(report)
    assert said[1:] in describe(report) and said in [told for _, told in list_answers(report)]
    assert "<h2>Search</h2>" in page and "| 1 | 0.01 | 94.1 |" in text


def test_a_few_validation_samples_decide_little(tmp_path):
    few = search(tmp_path, points((90.0,), (94.0,)), "lr", validation_samples=144)["search"]
    assert few["points"][1]["noise"] == pytest.approx(196 * ((0.94 * 0.06 + 0.9 * 0.1) / 144) ** 0.5)


def test_names_of_what_is_varied(tmp_path):
    assert parse_varied("lr, run.config.optimizer,lr") == ("lr", "optimizer") and parse_varied("") == ()
    assert {*CARRIED_OUT} <= {*MAY_DIFFER}, "what does not change the training keeps no run from going on"
    told = raised(search, tmp_path, {"a": {}}, "dataset", "optimiser", "lr")
    assert find_codes(told) == ["SL-varied-refused", "SL-varied-no-setting"] and "optimizer?;" in str(told)


def test_the_names_lie_beside_the_runs(tmp_path):
    assert read_varied(tmp_path) == ()
    keep_varied(tmp_path, ("lr", "optimizer"))
    assert read_varied(tmp_path) == ("lr", "optimizer")
    (tmp_path / "varied.json").write_text('{"varied": "lr"}')
    assert find_codes(raised(read_varied, tmp_path)) == ["SL-varied-file"]


FIVE = list(LAYOUTS)


@pytest.fixture
def runs(tmp_path):
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
    assert find_codes(raised(compare, runs, baseline="llm-3d")) == ["SL-baseline-unknown"]
