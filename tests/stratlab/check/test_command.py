"""What the verb prints: lines for people, or the same as JSON."""

from __future__ import annotations

import json
import sys

import pytest

from stratlab import cli
from stratlab.cluster import connection
from tests.stratlab.cluster.fake_api import FakeApi, connect_to, serve


def test_json_holds_the_findings_of_the_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    with serve(FakeApi(namespaces=set())) as address:
        monkeypatch.setattr(connection, "connect", lambda **_: connect_to(address))
        for more in ([], ["--json"]):
            monkeypatch.setattr(sys, "argv", ["stratlab", "check", "--no-pods", *more])
            with pytest.raises(SystemExit) as end:
                cli.main()
            assert end.value.code == 1
            shown.append(capsys.readouterr().out)
    found = json.loads(shown[1])
    states = [line.split()[0] for line in shown[0].splitlines()]
    assert [each["state"] for each in found] == [one for one in states if one in ("ok", "warning", "problem")]
    assert all(f"{finding['subject']}: {finding['seen']}" in shown[0] for finding in found)
    assert not any("claim" in finding["subject"] for finding in found), (
        "without a namespace nothing is inside"
    )
