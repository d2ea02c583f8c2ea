"""What the verb prints: lines for people, or the same as JSON."""

from __future__ import annotations

import json
import sys

import pytest

from stratlab import cli
from stratlab.cluster import connection
from tests.stratlab.cluster.fake_api import FakeApi, connect_to, serve


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["stratlab", "check", "--no-pods", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0), capsys.readouterr().out

    return run


def test_json_holds_the_findings_of_the_lines(call, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(FakeApi(namespaces=set())) as address:
        monkeypatch.setattr(connection, "connect", lambda **_: connect_to(address))
        code, lines = call()
        json_code, text = call("--json")
    found = json.loads(text)
    assert code == json_code == 1
    assert [f["state"] for f in found] == [
        line.split()[0] for line in lines.splitlines() if line.split()[0] in ("ok", "warning", "problem")
    ]
    assert all(f"{finding['subject']}: {finding['seen']}" in lines for finding in found)
    assert {finding["state"] for finding in found} >= {"problem"}
