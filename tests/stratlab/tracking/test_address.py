from __future__ import annotations

import sys

import pytest

from stratlab import cli
from stratlab.tracking.address import check_tracking_uri, is_of_this_machine
from stratlab.user_error import UserError


@pytest.mark.parametrize("uri", ["", "http://mlflow:5000", "https://host/path?x=a@b"])
def test_an_address_of_a_server(uri: str) -> None:
    assert check_tracking_uri(uri) == uri


@pytest.mark.parametrize("uri", ["localhost:5000", "file:///runs", "sqlite:///x.db", "http://", "http://[x"])
def test_anything_else_is_refused(uri: str) -> None:
    with pytest.raises(UserError, match="expected the address of a server, http://host:port"):
        check_tracking_uri(uri)


@pytest.mark.parametrize("verb", ["compare", "verify", "analyze", "wait"])
def test_a_login_is_refused_and_not_shown(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["stratlab", verb, str(tmp_path), "--tracking-uri", "http://me:secretpw@host:5000"]
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    assert (
        end.value.code == 2
        and "MLFLOW_TRACKING_USERNAME" in said.err
        and "secretpw" not in said.out + said.err
    )


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("http://127.0.0.1:5000", True),
        ("http://localhost", True),
        ("http://[::1]:5000", True),
        ("http://mlflow:5000", False),
        ("http://[::1", False),
        ("", False),
    ],
)
def test_a_server_of_this_machine_is_told_from_others(uri: str, expected: bool) -> None:
    assert is_of_this_machine(uri) is expected
