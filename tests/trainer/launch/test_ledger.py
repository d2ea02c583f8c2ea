"""Bounds that the training operator does not keep, whose exit code a run has, and kills that were asked for."""

import json
import re
import time

import pytest

from stratlab_spec.exit_codes import DeadlinePassed, NoProgress, first_failure
from stratlab_spec.run_directory import RunDirectory, read_events
from stratlab_spec.settings.config import Config
from tests.codes import find_codes, refuses
from trainer.launch.ledger import (
    LONGEST_SENTENCE,
    Ledger,
    explain_planted_kill,
    find_culprit,
    main,
    read_last_codes,
)

CONFIG = Config(run="try", max_attempts=2, deadline_s=100, wait_s=1000)


@pytest.fixture
def folder(tmp_path) -> RunDirectory:
    folder = RunDirectory(tmp_path, "default", "try")
    folder.create()
    return folder


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [1e9]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


def start(
    folder: RunDirectory, launcher: str, exit_code: int | None, steps: int = 0, met: bool = True
) -> None:
    """One start of pod-0 that meets the other pods, adds `steps` to metrics.jsonl and ends, or is killed."""
    ledger = Ledger(folder, "pod-0")
    ledger.record_start(launcher)
    if met:
        ledger.record_met(launcher)
    with open(folder.metrics, "a") as file:
        for step in range(1, steps + 1):
            file.write(json.dumps({"t": 0.0, "step": step, "kind": "train"}) + "\n")
    if exit_code is not None:
        ledger.record_end(launcher, exit_code)


def check(folder: RunDirectory) -> None:
    Ledger(folder, "pod-0").check(CONFIG)


def refusal(folder: RunDirectory, code: str = "SL-no-progress") -> list[str]:
    """The words of the refusal, of which tests take numbers and names."""
    with refuses((NoProgress, DeadlinePassed), code) as refused:
        check(folder)
    return re.findall(r"[\w.]+", str(refused.value))


def test_starts_without_a_new_step_are_bounded(folder):
    for launcher in ("a", "b"):
        check(folder)
        start(folder, launcher, 134)
    assert "2" in refusal(folder)
    Ledger(folder, "pod-1").check(CONFIG)  # another pod has its own count


def test_a_new_step_starts_the_count_anew_and_a_repeated_one_does_not(folder):
    start(folder, "a", 134, steps=10)
    start(folder, "b", 134, steps=20)
    start(folder, "c", 134, steps=20)
    check(folder)
    start(folder, "d", 134, steps=5)
    assert "20" in refusal(folder), "the step"


def test_a_killed_pod_counts_and_a_stopped_one_does_not(folder):
    start(folder, "a", None)
    for launcher in ("b", "c", "d"):
        start(folder, launcher, 143)
    check(folder)
    start(folder, "e", None)
    assert "SIGKILL" in refusal(folder)


def test_evaluations_of_a_finished_run_are_no_wasted_starts(folder, clock):
    for launcher in ("a", "b", "c"):
        start(folder, launcher, 0)
    clock[0] += 1000
    start(folder, "d", 134)
    check(folder)  # nor is its deadline over
    start(folder, "e", 134)
    refusal(folder)


def test_of_a_long_sentence_the_beginning_is_kept(folder):
    ledger = Ledger(folder, "pod-1")
    ledger.record_start("a")
    ledger.record_end("a", 12, "rank 3: " + "x" * LONGEST_SENTENCE)
    kept = read_events(folder.pod_ledger("pod-1"))[-1]["text"]
    assert kept.startswith("rank 3: x") and len(kept) == LONGEST_SENTENCE


def test_the_deadline_counts_from_the_first_start(folder, clock):
    assert Ledger(folder, "pod-0").seconds_left(CONFIG) == 100
    start(folder, "a", 143, steps=7)
    clock[0] += 60
    start(folder, "b", 143)
    clock[0] += 39
    check(folder)
    clock[0] += 2
    assert "7" in refusal(folder, "SL-deadline-passed"), "the step"


def test_the_last_codes_are_those_of_pods_that_ended_since(folder, clock):
    start(folder, "a", 10)
    clock[0] += 10
    for pod, code in (("pod-1", 134), ("pod-2", None)):
        ledger = Ledger(folder, pod)
        ledger.record_start(pod)
        if code:
            ledger.record_end(pod, code)
    assert read_last_codes(folder, 0) == {"pod-0": 10, "pod-1": 134}
    assert read_last_codes(folder, clock[0] - 5) == {"pod-1": 134}


def test_a_refused_pod_is_no_start_and_its_clock_does_not_run(folder, clock):
    for _ in range(3):
        Ledger(folder, "pod-0").record_refusal(4, "none visible")
    assert read_last_codes(folder, 0) == {"pod-0": 4}
    clock[0] += 1000
    check(folder)
    assert Ledger(folder, "pod-0").seconds_left(CONFIG) == 100


def test_a_start_that_never_had_all_its_peers_is_no_attempt(folder):
    for launcher in "abcde":
        start(folder, launcher, 134, met=False)
        check(folder)
    for launcher in "fg":
        check(folder)
        start(folder, launcher, 134)
    assert "2" in refusal(folder)


def test_a_pod_waits_for_the_others_as_long_as_the_chart_says(folder, clock):
    assert Ledger(folder, "pod-0").wait_left(CONFIG) == 1000
    start(folder, "a", 134, met=False)
    clock[0] += 600  # of torch
    start(folder, "b", 134, met=False)
    clock[0] += 350
    check(folder)  # the deadline does not run yet
    ledger = Ledger(folder, "pod-0")
    assert (ledger.wait_left(CONFIG), ledger.seconds_left(CONFIG)) == (50, 100)
    clock[0] += 60
    assert "1000" in refusal(folder, "SL-pods-never-met")
    start(folder, "c", 143, met=False)
    assert Ledger(folder, "pod-0").wait_left(CONFIG) == 1000, "one that was stopped waits anew"


@pytest.mark.parametrize(
    ("exit_codes", "culprit"),
    [({0: 134, 1: 10}, (1, 10)), ({0: -9, 1: 134}, (0, 137)), ({0: -15, 1: -15}, (0, 143))],
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


def test_only_a_kill_of_this_start_is_told_as_planted(tmp_path):
    assert explain_planted_kill(tmp_path / "none", 0.0) == ""
    for name, times in (("kill@8_1", (100.0, 300.0)), ("slow@3_0", (500.0,))):
        lines = [json.dumps({"t": t, "attempt": 1, "kind": name[:4], "step": 8, "rank": 1}) for t in times]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    said = explain_planted_kill(tmp_path, 200.0)
    assert find_codes(said) == ["SL-kill-planted"] and "rank 1 " in said and "step 8 " in said
    (tmp_path / "kill@9_0").write_text('{"t": 500.0, "attempt"')  # cut
    assert explain_planted_kill(tmp_path, 400.0) == ""
