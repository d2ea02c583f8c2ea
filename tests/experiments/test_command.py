"""The command's folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import __main__ as command


def test_folders_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = command.build_parser().parse_args(["--out", "runs", "--keep", "kept", "offload"])
    assert asked.out == tmp_path / "runs" and asked.keep == tmp_path / "kept"
