"""The bounds that the training operator does not keep: attempts without progress, and the deadline."""

from __future__ import annotations

import json
import time

import pytest

from trainer.failures import DeadlinePassed, NoProgress
from trainer.launch.ledger import LONGEST_SENTENCE, Ledger, reached_step, read_last_codes, read_pod_name
from trainer.record.run_directory import RunDirectory, append_line, read_events
from trainer.settings.config import Config

CONFIG = Config(run="try", max_attempts=2, deadline_s=100)


@pytest.fixture
def folder(tmp_path) -> RunDirectory:
    folder = RunDirectory(tmp_path, "default", "try")
    folder.create()
    return folder


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


def test_starts_without_a_new_step_are_bounded(folder):
    for launcher in ("a", "b"):
        Ledger(folder, "pod-0").check(CONFIG)
        start(folder, launcher, 134)
    with pytest.raises(NoProgress, match="2 starts of this pod came no further than step 0.*a peer was lost"):
        Ledger(folder, "pod-0").check(CONFIG)
    Ledger(folder, "pod-1").check(CONFIG)  # another pod has its own count


def test_a_new_step_starts_the_count_anew_and_a_repeated_one_does_not(folder):
    start(folder, "a", 134, steps=10)
    start(folder, "b", 134, steps=20)
    start(folder, "c", 134, steps=20)
    Ledger(folder, "pod-0").check(CONFIG)
    start(folder, "d", 134, steps=5)
    with pytest.raises(NoProgress, match="2 starts of this pod came no further than step 20"):
        Ledger(folder, "pod-0").check(CONFIG)


def test_a_killed_pod_counts_and_a_stopped_one_does_not(folder):
    start(folder, "a", None)
    for launcher in ("b", "c", "d"):
        start(folder, launcher, 143)
    Ledger(folder, "pod-0").check(CONFIG)
    start(folder, "e", None)
    with pytest.raises(NoProgress, match=r"killed \(SIGKILL\)"):
        Ledger(folder, "pod-0").check(CONFIG)


def test_evaluations_of_a_finished_run_are_no_wasted_starts(folder):
    for launcher in ("a", "b", "c"):
        start(folder, launcher, 0)
    start(folder, "d", 134)
    Ledger(folder, "pod-0").check(CONFIG)
    start(folder, "e", 134)
    with pytest.raises(NoProgress):
        Ledger(folder, "pod-0").check(CONFIG)


def test_of_a_long_sentence_the_beginning_is_kept(folder):
    ledger = Ledger(folder, "pod-1")
    ledger.record_start("a")
    ledger.record_end("a", 12, "rank 3: " + "x" * LONGEST_SENTENCE)
    kept = read_events(folder.pod_ledger("pod-1"))[-1]["text"]
    assert kept.startswith("rank 3: x") and len(kept) == LONGEST_SENTENCE


def test_the_deadline_counts_from_the_first_start(folder, monkeypatch):
    assert Ledger(folder, "pod-0").seconds_left(CONFIG) == pytest.approx(100, abs=1)
    start(folder, "a", 143, steps=7)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 60)
    start(folder, "b", 143)
    monkeypatch.setattr(time, "time", lambda: now + 99)
    Ledger(folder, "pod-0").check(CONFIG)
    monkeypatch.setattr(time, "time", lambda: now + 101)
    with pytest.raises(DeadlinePassed, match="TRAINER_DEADLINE_S=100 s ago and had reached step 7"):
        Ledger(folder, "pod-0").check(CONFIG)


def test_half_written_lines_and_other_kinds_do_not_disturb(folder):
    folder.metrics.write_text('{"step": 3, "kind": "event", "text": "x"}\n{"step": 9')
    assert reached_step(folder) == 3
    start(folder, "a", 134)
    with open(folder.pod_ledger("pod-0"), "a") as file:
        file.write('{"t": 1, "event": "ended", "exit')
    Ledger(folder, "pod-0").check(CONFIG)


def test_the_last_codes_are_those_of_pods_that_ended_since(folder):
    start(folder, "a", 10)
    between = time.time()
    for pod, code in (("pod-1", 134), ("pod-2", None)):
        ledger = Ledger(folder, pod)
        ledger.record_start(pod)
        if code:
            ledger.record_end(pod, code)
    assert read_last_codes(folder, 0) == {"pod-0": 10, "pod-1": 134}
    assert read_last_codes(folder, between) == {"pod-1": 134}


def test_what_a_pod_knows_of_its_end_stays_when_its_log_goes(folder):
    ledger = Ledger(folder, "pod-0")
    for launcher, text in (
        ("a", "rank 1: killed; 2.00 GiB are allowed"),
        ("b", "rank 1: killed; 3.00 GiB are allowed"),
    ):
        ledger.record_start(launcher)
        ledger.record_end(launcher, 137, text)
    last = json.loads(folder.pod_ledger("pod-0").read_text().splitlines()[-1])
    assert last["text"] == "rank 1: killed; 3.00 GiB are allowed" and "killed" in last["reason"]
    with pytest.raises(
        NoProgress, match="the last one ended with: rank 1: killed; 3.00 GiB are allowed; mend"
    ):
        Ledger(folder, "pod-0").check(CONFIG)
    ledger.record_end("b", 137, last["reason"])
    assert "text" not in json.loads(folder.pod_ledger("pod-0").read_text().splitlines()[-1])


def test_a_pod_is_named_by_kubernetes():
    assert read_pod_name({"HOSTNAME": "ddp-worker-0"}) == "ddp-worker-0"
    assert read_pod_name({})


def test_a_refused_pod_is_no_start_and_its_clock_does_not_run(folder, monkeypatch):
    ledger = Ledger(folder, "pod-0")
    for _ in range(3):
        ledger.record_refusal(4, "run.accelerator=nvidia.com/gpu: none visible")
    assert read_last_codes(folder, 0) == {"pod-0": 4}
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1000)
    Ledger(folder, "pod-0").check(CONFIG)
    assert Ledger(folder, "pod-0").seconds_left(CONFIG) == pytest.approx(100)


def test_a_start_that_never_had_all_its_peers_is_no_attempt(folder):
    """Two pods and one node: the lone one ended with 134 after ten minutes, and three of those were all it had."""
    for launcher in "abcde":
        start(folder, launcher, 134, met=False)
        Ledger(folder, "pod-0").check(CONFIG)
    for launcher in "fg":
        Ledger(folder, "pod-0").check(CONFIG)
        start(folder, launcher, 134)
    with pytest.raises(NoProgress, match="2 starts of this pod"):
        Ledger(folder, "pod-0").check(CONFIG)


def test_a_pod_waits_for_the_others_as_long_as_the_chart_says(folder, monkeypatch):
    config, now = Config(run="try", deadline_s=100, wait_s=1000), 1e9
    monkeypatch.setattr(time, "time", lambda: now)
    assert Ledger(folder, "pod-0").wait_left(config) == 1000
    start(folder, "a", 134, met=False)
    now += 600  # of torch
    start(folder, "b", 134, met=False)
    now += 350
    ledger = Ledger(folder, "pod-0")
    ledger.check(config)  # the deadline does not run yet
    assert (ledger.wait_left(config), ledger.seconds_left(config)) == (50, 100)
    now += 60
    with pytest.raises(DeadlinePassed, match="never all there at once for run.scheduling.waitSeconds=1000"):
        Ledger(folder, "pod-0").check(config)


def test_once_they_have_met_the_deadline_runs_and_waiting_begins_anew(folder, monkeypatch):
    config, now = Config(run="try", deadline_s=100, wait_s=1000), 1e9
    monkeypatch.setattr(time, "time", lambda: now)
    ledger = Ledger(folder, "pod-0")
    ledger.record_start("a")
    now += 900
    assert (ledger.wait_left(config), ledger.seconds_left(config)) == (100, 100)
    ledger.record_met("a")
    now += 30
    assert (ledger.wait_left(config), ledger.seconds_left(config)) == (1000, 70)
    ledger.record_end("a", 134)
    ledger = Ledger(folder, "pod-0")
    ledger.check(config)
    ledger.record_start("b")
    now += 20
    assert (ledger.wait_left(config), ledger.seconds_left(config)) == (980, 50)


def test_a_pod_that_was_stopped_while_it_waited_waits_anew(folder, monkeypatch):
    config, now = Config(run="try", wait_s=1000), 1e9
    monkeypatch.setattr(time, "time", lambda: now)
    start(folder, "a", 134, met=False)
    now += 900
    start(folder, "b", 143, met=False)
    assert Ledger(folder, "pod-0").wait_left(config) == 1000


def test_lines_of_nobody_are_passed_over(folder):
    """A hand or a crash may leave them; they must not end a run, least of all at its end."""
    start(folder, "a", 134)
    others = [
        {"foo": 1},
        {"event": "started"},
        {"t": "now", "event": "met"},
        {"t": 1.0, "event": "started", "step": "9"},
    ]
    for path in (folder.pod_ledger("pod-0"), folder.attempts):
        for line in others:
            append_line(path, line)
    folder.append_attempt("started", 1, "a", world_size=2)
    start(folder, "b", 134)
    with pytest.raises(NoProgress, match="2 starts of this pod came no further than step 0"):
        Ledger(folder, "pod-0").check(CONFIG)
    assert [line["attempt"] for line in folder.read_attempts()] == [1] and folder.read_world_sizes() == {1: 2}
    assert read_last_codes(folder, 0.0) == {"pod-0": 134}
