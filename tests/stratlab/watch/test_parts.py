"""The pure parts: the console line, a pod's row, who is to blame."""

import json

import pytest

from stratlab.cluster.pod_phase import build_row
from stratlab.watch_state import (
    ADVICE,
    TrainingProgress,
    find_culprit,
    format_seconds,
    parse_attempt,
    parse_event,
    parse_progress,
    read_termination,
)
from stratlab_spec import exit_codes as failures
from tests.stratlab.watch.objects import build_pod, ended
from trainer.metrics.progress import Straggler
from trainer.metrics.tracking import Recorder

LINE = "step 120/600  loss 0.4321  812 samples/s  78.9 ms/step  about 38 s left"


def test_the_line_of_the_contract():
    assert parse_progress(LINE) == TrainingProgress(120, 600, 0.4321, 812.0, 78.9, 38)
    assert parse_progress("[1,0]<stdout>:" + LINE) == parse_progress(LINE)
    assert str(parse_progress(LINE)) == LINE
    for other in ("", LINE.replace("step ", "stop ", 1), LINE[:-5], LINE.replace("120", "x")):
        assert parse_progress(other) is None


def test_slow_ranks_and_what_is_not_finite_as_the_trainer_really_says_it(caplog, tmp_path):
    recorder = Recorder(tmp_path / "metrics.jsonl", 1, 10, nodes=("a", "b"))
    recorder._report(30, Straggler(1, 13, 2.04, 51.0))
    recorder.close()
    said = caplog.messages[-1]
    assert "rank 1" in said and parse_event(f"[1,0]<stderr>:{said}\n") == parse_event(said) == said
    for rest in (
        "loss of step 8 is not finite, first on rank 0 (node a); of",
        "gradient of step 9 is not finite",
    ):
        assert parse_event(f"step 10: the {rest}") == f"step 10: the {rest}"
    for other in (LINE, "rank 1: loss not finite: the loss of step 12 is not finite", "step 3: done"):
        assert parse_event(other) is None
    assert parse_attempt("demo: attempt 2, rank 0 of 4 on cpu, gloo") == 2
    assert parse_attempt("demo: rank 0 of 4 on cpu") is None
    assert parse_attempt("2 attempts, attempt 3") is None
    assert [format_seconds(each) for each in (38, 700, 12000)] == ["38 s", "12 min", "3 h 20 min"]


def waits(reason, message=""):
    return {"waiting": {"reason": reason, "message": message}}


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "1 cpu"}


@pytest.mark.parametrize(
    ("pod", "phase", "note"),
    [
        (build_pod(0), "Running", ""),
        (
            build_pod(0, "Pending", state=waits("ImagePullBackOff", "none")),
            "Pending",
            "ImagePullBackOff: none",
        ),
        (build_pod(0, "Pending", conditions=[UNSCHEDULABLE]), "Pending", "Unschedulable: 1 cpu"),
        (build_pod(0, "Failed", state=ended(137, reason="OOMKilled")), "Failed", "OOMKilled, exit code 137"),
        (build_pod(0, "Failed", reason="Evicted", message="low on disk"), "Failed", "Evicted: low on disk"),
    ],
)
def test_a_pod_says_why_it_does_not_run(pod, phase, note):
    row = build_row(pod)
    assert (row.name, row.phase, row.node, row.note) == ("demo-worker-0", phase, "node-a", note)


def test_a_pod_that_was_killed_and_runs_again_says_so():
    pod = build_pod(0)
    status = pod["status"]["containerStatuses"][0]
    status |= {"restartCount": 2, "lastState": ended(137, reason="OOMKilled")}
    row = build_row(pod)
    assert (row.restarts, row.note) == (2, "before: OOMKilled, exit code 137")
    status["state"] = waits("CrashLoopBackOff")
    assert build_row(pod).note == "CrashLoopBackOff (before: OOMKilled, exit code 137)"
    pod["metadata"]["deletionTimestamp"] = "now"
    assert build_row(pod).phase == "Terminating"


def said(code, reason="r", message="m"):
    return json.dumps({"exit_code": code, "reason": reason, "message": message}) + "\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("not json", (10, "Error", "")),
        ("warning first\n" + said(12), (12, "r", "m")),  # what it says counts, not the code of a shell
        (said(12) + "warning after", (10, "Error", "")),
    ],
)
def test_the_last_line_that_a_pod_leaves_counts(text, found):
    end = read_termination(build_pod(1, "Failed", state=ended(10, text)))
    assert end and end.pod == "demo-worker-1" and (end.exit_code, end.reason, end.message) == found
    assert read_termination(build_pod(0)) is None


def test_of_a_pod_that_runs_again_the_newest_end_counts():
    pod = build_pod(0, "Failed", state=ended(12, at="2"))
    status = pod["status"]["containerStatuses"][0]
    status["lastState"] = ended(137, at="1")
    for found in ((12, "2"), (137, "1")):
        end = read_termination(pod)
        assert end and (end.exit_code, end.finished) == found
        status["state"] = {"running": {}}


@pytest.mark.parametrize(
    ("codes", "culprit"),
    [
        ([134, 10], 10),
        ([137, 134, 143], 137),
        ([137, 14], 14),  # the one that gave up
        ([0, 0], None),
    ],
)
def test_the_culprit_is_not_a_survivor(codes, culprit):
    pods = [build_pod(index, "Failed", state=ended(code, said(code))) for index, code in enumerate(codes)]
    found = find_culprit(filter(None, map(read_termination, pods)))
    assert (found.exit_code if found else None) == culprit


ADVISED = {
    failures.BAD_CONFIG: "helm uninstall",
    failures.DATA_MISSING: "run.config.dataset_path",
    failures.ACCELERATORS_MISSING: "run.accelerator",
    failures.OUT_OF_MEMORY: "run.config.micro_batch_size",
    failures.NOT_FINITE: "run.config.lr",
    failures.STORAGE_FULL: "claim",
    failures.NO_PROGRESS: "log",
    failures.DEADLINE_PASSED: "run.config.deadline_s",
    137: "run.resources.limits.memory",
}
"""What each advice has to name, by exit code."""


def test_advice_is_for_the_code_that_the_trainer_has():
    assert ADVISED.keys() == ADVICE.keys() == {code for code in failures.REASONS if 1 < code < 128} | {137}
    for code, named in ADVISED.items():
        assert [other for other, text in ADVICE.items() if named in text] == [code]
