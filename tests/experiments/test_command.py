"""The command's folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import __main__ as command


def test_folders_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = command.build_parser().parse_args(["--out", "runs", "--keep", "kept", "offload"])
    assert asked.out == tmp_path / "runs" and asked.keep == tmp_path / "kept"


def test_what_lies_in_a_folder_of_somebody_else_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "volume" / "data"
    kept.parent.mkdir()
    kept.write_text("theirs")
    assert command.main(["--out", str(tmp_path), "offload"]) == 2
    assert "is not empty and has no found.json" in capsys.readouterr().err
    assert kept.read_text() == "theirs"
