"""Why an MLflow server ended: a full volume leaves an empty log, or SQLite's words in it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from stratlab.tracking import server


def test_a_full_volume_is_told_where_the_log_is_empty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        server, "say_full", lambda folder: f"the volume of {folder} has 0 of 61440 bytes free"
    )
    failure = server._explain_end(120, tmp_path / "server.log")
    assert isinstance(failure, OSError) and failure.errno == errno.ENOSPC
    assert f"ended with 120, the volume of {tmp_path} has 0 of" in str(failure)


def test_what_the_store_says_of_it_is_understood(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("sqlite3.OperationalError: database or disk is full\n[SQL: CREATE TABLE]\n")
    failure = server._explain_end(1, log)
    assert isinstance(failure, OSError) and f"the volume of {tmp_path} is full" in str(failure)
    log.write_text("ValueError: no\n")
    failure = server._explain_end(1, log)
    assert isinstance(failure, server.ServerFailed) and str(failure).endswith("server.log:\nValueError: no")
