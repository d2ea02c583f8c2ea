"""The view of MLflow's page of runs: what is in it, and that it fits. Its picture: docs/pictures/take.py."""

from __future__ import annotations

import json

from stratlab.tracking import COLUMNS, LONGEST_TAG, SECTIONS, build_view

ALL = {name for charts in SECTIONS.values() for names in charts for name in names}
ALL |= {column.split("`")[1] for column in COLUMNS if column.startswith("metrics.")}


def test_all_of_it_fits_into_a_tag_with_the_newest_runs_first() -> None:
    text = build_view(ALL)
    view = json.loads(text)
    charts = view["compareRunCharts"]
    assert len(text) <= LONGEST_TAG and [chart["type"] for chart in charts].count("SCATTER") == 1
    assert len({chart["uuid"] for chart in charts}) == len(charts) == sum(map(len, SECTIONS.values()))
    assert {chart["metricSectionId"] for chart in charts} == set(SECTIONS)
    counts = {chart["type"]: chart["runsCountToCompare"] for chart in charts}
    assert counts == {"BAR": 20, "LINE": 20, "SCATTER": 100}
    # MLflow draws the first ten or twenty of its table
    assert (view["orderByKey"], view["orderByAsc"]) == ("attributes.start_time", False)


def test_a_chart_without_numbers_is_left_out() -> None:
    view = json.loads(build_view({"samples_per_s", "something/else"}))
    assert [chart["metricKey"] for chart in view["compareRunCharts"]] == ["samples_per_s"]
    assert [name for name in view["selectedColumns"] if "metrics" in name] == ["metrics.`samples_per_s`"]
