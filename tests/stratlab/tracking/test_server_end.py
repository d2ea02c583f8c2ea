"""Why an MLflow server ended: a full volume leaves an empty log, or SQLite's words in it."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from stratlab import tracking_server as server
from stratlab.user_error import UserError
from tests.codes import find_codes


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
def test_a_full_volume_is_told_from_another_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: str, is_full: bool, code: str
) -> None:
    monkeypatch.setattr(server, "say_full", lambda folder: f"{folder} is full" if is_full else "")
    (tmp_path / "server.log").write_text(log)
    failure = server._explain_end(120, tmp_path / "server.log")
    assert find_codes(failure) == [code] and str(tmp_path) in str(failure) and "120" in str(failure)
    full = code == "SL-mlflow-volume-full"
    assert isinstance(failure, OSError if full else server.ServerFailed)
    assert full is (isinstance(failure, OSError) and failure.errno == errno.ENOSPC)


def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError) as refused, server.run_server(tmp_path, taken.getsockname()[1]):
            pass
    assert find_codes(refused.value) == ["SL-port-taken"]
