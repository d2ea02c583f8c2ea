"""The view of MLflow's page of runs: what is in it, and that it fits. Its picture: docs/pictures/take.py."""

import errno
import json
import socket

import pytest

from stratlab import UserError
from stratlab import tracking_server as server
from stratlab.tracking import COLUMNS, LONGEST_TAG, SECTIONS, build_view, check_tracking_uri, find_run_page
from tests.codes import find_codes
from tests.stratlab.raised import raised


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("", ""),
        ("http://mlflow:5000", ""),
        ("https://host/path?x=a@b", ""),
        ("localhost:5000", "SL-tracking-address"),
        ("sqlite:///x.db", "SL-tracking-address"),
        ("http://", "SL-tracking-address"),
        ("http://[x", "SL-tracking-address"),
        ("http://me:secretpw@host:5000", "SL-tracking-uri-login"),
    ],
)
def test_an_address_of_a_server_without_a_login(uri, code):
    if not code:
        assert check_tracking_uri(uri) == uri
        return
    refused = raised(check_tracking_uri, uri)
    assert find_codes(refused) == [code] and "secretpw" not in str(refused)


@pytest.mark.parametrize(
    ("uri", "page"),
    [
        ("https://host/mlflow/", "https://host/mlflow/#/experiments/1/runs/r"),
        ("https://user:secret@host?token=secret#secret", "https://host/#/experiments/1/runs/r"),
        ("http://127.0.0.1:5000", ""),
        ("file:///mlruns", ""),
        ("javascript:alert(1)", ""),
        ("http://[", ""),
        (None, ""),
    ],
)
def test_only_a_server_that_others_reach_has_pages_and_no_secret_is_told(uri, page):
    assert find_run_page(uri, "1", "r") == page and find_run_page(uri, "1", None) == ""
    hostile = find_run_page(uri, '1"', "<r>")
    assert hostile == page.replace("1/runs/r", "1%22/runs/%3Cr%3E")


ALL = {name for charts in SECTIONS.values() for names in charts for name in names}
ALL |= {column.split("`")[1] for column in COLUMNS if column.startswith("metrics.")}


def test_all_of_it_fits_into_a_tag_with_the_newest_runs_first():
    text = build_view(ALL)
    view = json.loads(text)
    charts = view["compareRunCharts"]
    assert len(text) <= LONGEST_TAG
    assert len({chart["uuid"] for chart in charts}) == len(charts) == sum(map(len, SECTIONS.values()))
    assert {chart["metricSectionId"] for chart in charts} == {
        one["uuid"] for one in view["compareRunSections"]
    }
    counts = {chart["type"]: chart["runsCountToCompare"] for chart in charts}
    assert counts == {"BAR": 20, "LINE": 20, "SCATTER": 100}
    # MLflow draws the first ten or twenty of its table
    assert (view["orderByKey"], view["orderByAsc"]) == ("attributes.start_time", False)


@pytest.mark.parametrize(
    ("log", "is_full", "code"),
    [
        ("", True, "SL-mlflow-volume-full"),
        (
            "sqlite3.OperationalError: database or disk is full\n[SQL: CREATE TABLE]\n",
            False,
            "SL-mlflow-volume-full",
        ),
        ("ValueError: no\n", False, "SL-mlflow-ended"),
    ],
)
def test_a_full_volume_is_told_from_another_end(monkeypatch, tmp_path, log, is_full, code):
    monkeypatch.setattr(server, "say_full", lambda folder: f"{folder} is full" if is_full else "")
    (tmp_path / "server.log").write_text(log)
    failure = server._explain_end(120, tmp_path / "server.log")
    assert find_codes(failure) == [code] and str(tmp_path) in str(failure) and "120" in str(failure)
    full = code == "SL-mlflow-volume-full"
    assert isinstance(failure, OSError if full else server.ServerFailed)
    assert full is (isinstance(failure, OSError) and failure.errno == errno.ENOSPC)


def test_a_taken_port_is_refused(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError) as refused, server.run_server(tmp_path, taken.getsockname()[1]):
            pass
    assert find_codes(refused.value) == ["SL-port-taken"]
