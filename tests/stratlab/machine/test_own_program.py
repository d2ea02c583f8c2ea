"""A printed command is one that this user's shell finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.machine.own_program import name_program, shorten


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / ".venv/bin"
    folder.mkdir(parents=True)
    for name in ("python", "stratlab"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setattr("sys.executable", str(folder / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    return folder / "stratlab"


def test_its_path_where_the_shell_does_not_find_it(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert name_program() == str(program)
    monkeypatch.chdir(tmp_path)
    assert name_program() == ".venv/bin/stratlab"
    monkeypatch.setenv("PATH", str(program.parent))
    assert name_program() == "stratlab"


def test_another_one_of_this_name_is_not_it(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "stratlab").write_text("#!/bin/sh\necho other\n")
    (other / "stratlab").chmod(0o755)
    monkeypatch.setenv("PATH", f"{other}:{program.parent}")
    assert name_program() == str(program)


def test_without_an_installed_command_it_is_called_by_its_name(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.unlink()
    assert name_program() == "stratlab"


def test_a_path_below_here_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shorten(tmp_path / "a/b") == Path("a/b")
    assert shorten(Path("/elsewhere")) == Path("/elsewhere")
