from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from stratlab.cli import app
from stratlab.watch_display import Lines, LiveTable


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        ({"FORCE_COLOR": None, "TERM": "xterm"}, Lines),  # into a file or a pipe
        ({"FORCE_COLOR": "1", "TERM": "xterm"}, LiveTable),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, Lines),  # cannot draw anything anew
    ],
)
def test_a_table_is_drawn_on_a_terminal_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str | None], kind: type
) -> None:
    seen: list[Any] = []

    def watch_run(connection: Any, workload: Any, display: Any, *, analysis: bool) -> int:
        seen.append(display)
        return 3

    monkeypatch.setattr("stratlab.cluster.connection.connect", lambda **_: SimpleNamespace(namespace="lab"))
    monkeypatch.setattr("stratlab.watch_session.await_workload", lambda *_: SimpleNamespace(uid="1"))
    monkeypatch.setattr("stratlab.watch_session.watch_run", watch_run)
    monkeypatch.setattr("stratlab.watch_display.build_farewell", lambda picture: ["gone"])
    done = CliRunner().invoke(app, ["watch", "ddp"], env=env)
    assert done.exit_code == 3 and done.output.endswith("gone\n")
    assert [type(display) for display in seen] == [kind]
    monkeypatch.setattr("stratlab.watch_display.build_ending", lambda picture, code: {"exit_code": code})
    done = CliRunner().invoke(app, ["watch", "ddp", "--json"], env=env)
    assert done.exit_code == 3 and json.loads(done.stdout) == {"exit_code": 3} and "gone" in done.stderr
