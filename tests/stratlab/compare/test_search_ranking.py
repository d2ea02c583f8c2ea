"""Runs that are meant to differ: what is accepted, what is still caught, who is best and when nobody is."""

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.fairness import AS_SEARCH
from stratlab.compare.report_files import render_page
from stratlab.compare.run_sources import keep_varied, load_runs, read_varied
from stratlab.compare.search_ranking import say_search
from stratlab.compare.summary_view import build_markdown, describe
from stratlab.compare.terminal_view import list_answers
from stratlab.compare.variants import CARRIED_OUT, parse_varied
from stratlab_spec.settings.rules import MAY_DIFFER
from tests.codes import find_codes
from tests.stratlab.compare.building import edit
from tests.stratlab.compare.scenarios import points, search
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


def test_batches_that_see_other_amounts_of_data_are_said(tmp_path):
    larger = {"global_batch_size": 128, "grad_accum_steps": 2, "data_order_sha256": "other", "bent": 0.1}
    report = search(tmp_path, {"a": {}, "b": larger}, "global_batch_size")
    assert report["fairness"]["verdict"] == AS_SEARCH, report["fairness"]["reason"]
    (remark,) = report["search"]["remarks"]
    assert {"3,840", "7,680"} <= set(remark.split()) and "run.config.epochs" in remark
    for path in tmp_path.glob("*/config.json"):
        edit(path, lambda config: config["config"].update(steps=0, epochs=3))
    (remark,) = compare(load_runs(tmp_path), varied=["global_batch_size"])["search"]["remarks"]
    assert "run.config" not in remark


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
