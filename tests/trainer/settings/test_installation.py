"""Files of another distribution among the trainer's, by the records of pip."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.settings.installation import find_intruders


def write_record(folder: Path, name: str, *lines: str) -> None:
    (folder / f"{name}.dist-info").mkdir()
    (folder / f"{name}.dist-info" / "RECORD").write_text("".join(f"{line},,\n" for line in lines))


def test_who_has_written_into_the_folder_is_named(tmp_path: Path) -> None:
    write_record(tmp_path, "stratlab_trainer-0.1.0", "trainer/__init__.py")
    write_record(tmp_path, "neural_trainer-0.3.1", "neural_trainer-0.3.1.dist-info/RECORD", "trainer/io.py")
    write_record(tmp_path, "first-2", "trainer/__init__.py")
    assert find_intruders(tmp_path) == ("first 2", "neural-trainer 0.3.1")


@pytest.mark.parametrize("path", ["trainer.py", "other/trainer/__init__.py", "trainers/__init__.py"])
def test_another_path_is_nobody_s_business(tmp_path: Path, path: str) -> None:
    write_record(tmp_path, "stratlab_trainer-0.1.0", "trainer/__init__.py")
    write_record(tmp_path, "other-1", path, "../../bin/trainer")
    (tmp_path / "without_record-1.dist-info").mkdir()
    assert find_intruders(tmp_path) == ()


def test_a_folder_that_cannot_be_listed_holds_nobody(tmp_path: Path) -> None:
    assert find_intruders(tmp_path / "trainer.zip") == ()
