"""The verb, called in this process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratlab import cli

Call = Callable[..., tuple[int, str, str]]
Answers = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where counts of this computer would be; empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/stratlab/operations"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Exit code, standard output and error output of `stratlab predict`."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["stratlab", "predict", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture
def answers(call: Call) -> Answers:
    """What --json tells, by name."""

    def ask(*arguments: str | Path) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in json.loads(call(*arguments, "--json")[1])}

    return ask
