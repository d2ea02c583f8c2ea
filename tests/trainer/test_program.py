"""The trainer's programs at their edges: their door, exit codes, a mixed installation, certificates, a rank's facts."""

from pathlib import Path

import pytest

from stratlab_spec.certificates import GIVEN
from stratlab_spec.exit_codes import (
    BAD_CONFIG,
    PeerLost,
    StorageFull,
    exit_code,
    is_storage_full,
    is_told_in_a_sentence,
)
from tests.codes import find_codes
from trainer.evaluation.command import main as evaluate
from trainer.installation import find_intruders
from trainer.prepare.preparation import main as prepare
from trainer.program import PROGRAMS, main


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["--help"], 0)])
def test_it_tells_which_there_are(arguments, code, capsys):
    assert main(arguments) == code
    told = capsys.readouterr()
    usage, silent = (told.out, told.err) if code == 0 else (told.err, told.out)
    assert silent == "" and all(f"  {name} " in usage for name in PROGRAMS)


class OutOfMemoryError(RuntimeError):
    """Named like torch's."""


FULL, BAD_DISK = "No space left on device", "Input/output error"
RESET = "[gloo] Read error [127.0.0.1]:1: Connection reset by peer"


@pytest.mark.parametrize(
    ("failure", "code", "told"),
    [
        (OutOfMemoryError(), 10, True),
        (OSError(28, FULL), 13, True),
        (PeerLost("rank 1 has given up"), 134, True),
        (RuntimeError(RESET), 134, True),
        (RuntimeError("Timed out waiting 1800000ms for recv operation to complete"), 134, False),
        (RuntimeError("shapes do not match"), 1, False),
    ],
)
def test_a_failure_has_its_code_and_a_stack_where_a_sentence_does_not_tell(failure, code, told):
    assert (exit_code(failure), is_told_in_a_sentence(failure)) == (code, told)


@pytest.mark.parametrize(
    ("failure", "full"),
    [
        (RuntimeError(f"CheckpointException ... OSError: [Errno 28] {FULL}"), True),
        (RuntimeError("[enforce fail at inline_container.cc:603] . unexpected pos 704 vs 598"), True),
        (OSError(5, BAD_DISK), True),
        (StorageFull("rank 1: no space"), True),
        (RuntimeError("something else"), False),
        (FileNotFoundError(2, "No such file"), False),
    ],
)
def test_a_full_volume_is_known_by_its_words_and_by_its_cause(failure, full):
    assert is_storage_full(failure) is full
    wrapped = RuntimeError("saving failed")
    wrapped.__cause__ = failure
    assert is_storage_full(wrapped) is full


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


@pytest.mark.parametrize(("main", "arguments"), [(evaluate, ["run"]), (prepare, ["--dataset", "x"])])
def test_a_file_without_a_certificate_is_refused_first(main, arguments, tmp_path, monkeypatch, capsys):
    (tmp_path / "ca.crt").write_text("no certificate")
    monkeypatch.setenv(GIVEN, str(tmp_path / "ca.crt"))
    assert main(arguments) == BAD_CONFIG
    assert find_codes(capsys.readouterr().err) == ["SL-certificate-absent"]
