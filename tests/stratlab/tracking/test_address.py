from __future__ import annotations

import pytest

from stratlab.tracking import check_tracking_uri, find_run_page, is_of_this_machine
from stratlab.user_error import UserError
from tests.codes import find_codes


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
def test_an_address_of_a_server_without_a_login(uri: str, code: str) -> None:
    if not code:
        assert check_tracking_uri(uri) == uri
        return
    with pytest.raises(UserError) as refused:
        check_tracking_uri(uri)
    assert find_codes(refused.value) == [code] and "secretpw" not in str(refused.value)


def test_a_server_of_this_machine_is_told_from_others() -> None:
    here = ("http://127.0.0.1:5000", "http://localhost", "http://[::1]:5000")
    assert all(map(is_of_this_machine, here))
    assert not any(map(is_of_this_machine, ("http://mlflow:5000", "http://[::1", "")))


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
def test_only_a_server_that_others_reach_has_pages_and_no_secret_is_told(uri: str | None, page: str) -> None:
    assert find_run_page(uri, "1", "r") == page
    assert find_run_page(uri, "1", None) == ""
    hostile = find_run_page(uri, '1"', "<r>")
    assert hostile == page.replace("1/runs/r", "1%22/runs/%3Cr%3E")
