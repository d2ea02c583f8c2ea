from __future__ import annotations

import time

import pytest

from stratlab_spec.exit_codes import first_failure
from stratlab_spec.run_directory import RunDirectory
from trainer.launch.ledger import Ledger, find_culprit, main


@pytest.mark.parametrize(
    ("exit_codes", "culprit"),
    [
        ({0: 134, 1: 10}, (1, 10)),
        ({0: -9, 1: 134}, (0, 137)),
        ({0: -15, 1: -15}, (0, 143)),
    ],
)
def test_among_ranks_the_culprit_is_told_from_the_survivors(exit_codes, culprit):
    assert first_failure(exit_codes) == culprit


def leave(folder: RunDirectory, ends: dict[str, int]) -> None:
    for pod, ended in ends.items():
        ledger = Ledger(folder, pod)
        ledger.record_start("a")
        ledger.record_end("a", ended)


@pytest.mark.parametrize(
    ("ends", "code", "culprit"),
    [
        ({"w0": 134, "w1": 10}, 134, 10),
        ({"w0": 137, "w1": 12}, 137, 12),  # which of them came first is not known: this one would come again
        ({"w0": 143, "w1": 137}, 143, 137),
        ({"w0": 0}, 1, 1),
        ({}, -15, 143),
    ],
)
def test_among_pods_the_culprit_is_read_from_the_ledgers(tmp_path, ends, code, culprit):
    folder = RunDirectory(tmp_path, "default", "try")
    leave(folder, ends)
    assert find_culprit(folder, 0.0, code) == culprit


def test_the_command_prints_the_code_of_the_one_who_failed_since_then(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRAINER_RUN", "try")
    monkeypatch.setenv("TRAINER_RESULTS", str(tmp_path))
    leave(RunDirectory(tmp_path, "default", "try"), {"w0": 134, "w1": 10})
    for since, code, printed in ((-60, "134", "10\n"), (60, "137", "137\n")):
        assert main(["--since", str(time.time() + since), "--code", code]) == 0
        assert capsys.readouterr().out == printed
