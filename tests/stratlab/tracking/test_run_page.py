"""The address of a run's page on a tracking server."""

from __future__ import annotations

import pytest

from stratlab.tracking.address import find_run_page


@pytest.mark.parametrize(
    ("uri", "page"),
    [
        ("http://mlflow:5000", "http://mlflow:5000/#/experiments/1/runs/r"),
        ("https://host/mlflow/", "https://host/mlflow/#/experiments/1/runs/r"),
        ("https://user:secret@host?token=secret#secret", "https://host/#/experiments/1/runs/r"),
        ("http://127.0.0.1:5000", ""),
        ("file:///mlruns", ""),
        ("javascript:alert(1)", ""),
        ("http://[", ""),
        (None, ""),
    ],
)
def test_only_a_server_that_others_reach_has_pages_and_no_secret_is_told(uri: str | None, page: str) -> None:
    assert find_run_page(uri, "1", "r") == page


def test_a_run_that_is_not_known_has_none() -> None:
    assert find_run_page("http://mlflow:5000", "1", None) == ""
    assert find_run_page("http://mlflow:5000", '1"', "<r>").endswith("/experiments/1%22/runs/%3Cr%3E")
