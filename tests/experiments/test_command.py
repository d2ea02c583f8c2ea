"""The command: its folders, one at a time in each, what ends it, what it says of files that cannot be read."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import __main__ as command
from experiments import part_run
from experiments.catalogue import list_experiments
from tests.codes import find_codes


def test_what_lies_in_a_folder_of_somebody_else_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "volume" / "data"
    kept.parent.mkdir()
    kept.write_text("theirs")
    assert command.main(["--out", str(tmp_path), "--keep", str(tmp_path / "kept"), "offload"]) == 2
    assert find_codes(capsys.readouterr().err) == ["SL-out-of-others"]
    assert kept.read_text() == "theirs"


def test_two_do_not_share_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with command._claim(tmp_path / "out"):
        assert (
            command.main(["--out", str(tmp_path / "out"), "--keep", str(tmp_path / "kept"), "offload"]) == 2
        )
    assert str(tmp_path / "out") in capsys.readouterr().err
    assert not (tmp_path / "out" / "volume").exists()
    with command._claim(tmp_path / "out"):
        pass  # the other one has ended


def test_a_misspelt_name_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["ofload", "zzz"]) == 2
    said = capsys.readouterr().err
    assert find_codes(said) == ["SL-experiment-unknown"] * 2 and "offload?" in said and "NAMES=zzz" in said


def test_a_signal_ends_what_was_started_too(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if not started:
                started.append(self)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        part_run._run([sys.executable, "-c", "import time; time.sleep(60)"])
    assert started[0].returncode == -signal.SIGTERM


def test_a_file_that_cannot_be_read_is_a_complaint_of_its_part(tmp_path: Path) -> None:
    part = list_experiments()[0].parts[0]
    (tmp_path / "small.yaml").write_text("run: [broken")
    broken = replace(part, small=tmp_path / "small.yaml")
    (complaint,) = part_run.run_part(broken, tmp_path / "out", tmp_path / "kept", 1).complaints
    assert "small.yaml" in complaint and not (tmp_path / "kept").exists()


def test_a_form_that_changes_while_it_runs_gives_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = list_experiments()[0].parts[0]
    small = tmp_path / "small.yaml"
    small.write_text(part.small.read_text())
    values = tmp_path.parent / "values.yaml"
    values.write_text((part.small.parents[1] / "values.yaml").read_text())
    monkeypatch.setattr(part_run, "ROOT", tmp_path)
    monkeypatch.setattr(part_run, "_fill", lambda part, out, runs: runs.mkdir(parents=True))
    monkeypatch.setattr(part_run, "find_complaints", lambda report, names: [])
    monkeypatch.setattr(
        part_run, "_run", lambda line: bool(values.write_text("run: {config: {lr: 7}}")) and 0
    )
    outcome = part_run.run_part(replace(part, small=small), tmp_path / "out", tmp_path / "kept", 1)
    assert find_codes(outcome.complaints) == ["SL-form-changed"]


def test_a_sweep_that_ends_without_a_report_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = list_experiments()[0].parts[0]
    monkeypatch.setattr(part_run, "_fill", lambda part, out, runs: runs.mkdir(parents=True))
    monkeypatch.setattr(part_run, "_run", lambda line: 2)
    outcome = part_run.run_part(part, tmp_path / "out", tmp_path / "kept", 1)
    assert find_codes(outcome.complaints) == ["SL-sweep-no-report"] and "exit code 2" in str(
        outcome.complaints
    )
