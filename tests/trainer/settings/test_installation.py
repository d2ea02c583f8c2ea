"""Files of another distribution among the trainer's, by the records of pip."""

from __future__ import annotations

from pathlib import Path

from trainer.installation import find_intruders


def write_record(folder: Path, name: str, *lines: str) -> None:
    (folder / f"{name}.dist-info").mkdir()
    (folder / f"{name}.dist-info" / "RECORD").write_text("".join(f"{line},,\n" for line in lines))


def test_who_has_written_into_the_folder_is_named(tmp_path: Path) -> None:
    write_record(tmp_path, "stratlab_trainer-0.1.0", "trainer/__init__.py")
    write_record(tmp_path, "other-1", "trainer.py", "other/trainer/__init__.py", "../../bin/trainer")
    (tmp_path / "without_record-1.dist-info").mkdir()
    assert find_intruders(tmp_path) == () == find_intruders(tmp_path / "trainer.zip")
    write_record(tmp_path, "neural_trainer-0.3.1", "neural_trainer-0.3.1.dist-info/RECORD", "trainer/io.py")
    find_intruders.cache_clear()
    assert find_intruders(tmp_path) == ("neural-trainer 0.3.1",)
