"""Spoilt files of a run cost what stands in them, and only what the trainer has made may be taken away."""

import json
import os
import time
from pathlib import Path

import pytest

from stratlab import UserError
from stratlab.compare.comparison import compare
from stratlab.compare.report_files import check_file, check_folder, write_report
from stratlab.compare.run_sources import load_runs
from stratlab.rehearsal_plan import check_free
from stratlab.run_directory.files import is_run, read_world_size
from stratlab.run_directory.outcome import is_alive, look, read_standing
from stratlab.run_folders import find_run
from stratlab.verify import verify_run
from tests.codes import find_codes
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.raised import raised

HUGE = int("9" * 400)
DEEP = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.fixture
def root(tmp_path):
    for strategy in ("ddp", "fsdp"):
        build_run_dir(tmp_path / "demo", strategy, strategy)
    return tmp_path / "demo"


def change(path, *keys, to):
    content = json.loads(path.read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = to
    path.write_text(json.dumps(content))


def problems(run):
    return [(text.partition(":")[0], find_codes(text)) for text in run.problems]


@pytest.mark.parametrize(
    ("file", "line", "code"),
    [
        ("attempts.jsonl", {"foo": 1}, "SL-line-fields"),
        ("metrics.jsonl", {"kind": "train", "t": HUGE, "step": 3, "loss": 1.0}, "SL-line-fields"),
        ("metrics.jsonl", DEEP, "SL-line-not-json"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_line_that_is_not_the_trainer_s_is_counted_and_passed_over(root, tmp_path, file, line, code):
    path = root / "ddp" / file
    text = line if isinstance(line, str) else json.dumps(line)
    path.write_text(path.read_text() + text + "\n")
    runs = load_runs(root)
    assert problems(runs[0]) == [(file, [code])] and " 1 " in runs[0].problems[0]
    assert runs[0].status == "finished" and len(runs[0].series("train", "loss")) == 60
    write_report(compare(runs), runs, tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "keys", "to"),
    [
        ("config.json", ("config",), [1]),
        ("config.json", ("resolved", "world_size"), "2"),
        ("ranks/rank0.json", ("gpu",), "H100"),
    ],
)
def test_a_field_of_another_type_is_named_and_left_out(root, tmp_path, file, keys, to):
    change(root / "ddp" / file, *keys, to=to)
    runs = load_runs(root)
    assert (Path(file).name, ["SL-field-type"]) in problems(runs[0])
    assert any(f" {keys[-1]} " in text for text in runs[0].problems)
    report = compare(runs)
    assert report["runs"][0]["complete"] is False
    write_report(report, runs, tmp_path / "out")


def test_the_number_of_ranks_is_that_of_the_last_attempt_that_tells():
    told = [{"world_size": 4}, {"world_size": 8}, {"world_size": "9"}, {}]
    assert read_world_size({"world_size": 2}, told) == 8 and read_world_size({"world_size": 2}, []) == 2
    assert read_world_size({"world_size": 10**7}, [{"world_size": 0}]) == 1


def test_a_manifest_names_files_of_its_folder_alone(root):
    path = root / "ddp" / "traces" / "manifest.json"
    change(path, "files", to=[{"rank": 0, "file": "../../../../etc/passwd", "bytes": 1}])
    check = next(check for check in verify_run(root / "ddp", None) if check.name == "traces")
    assert check.state == "failed" and "passwd: 0 of 1 bytes" in check.text


@pytest.mark.parametrize("kept", ["config.json", "attempts.jsonl", "mlflow.json", "pods/pod-0.jsonl"])
def test_what_little_a_start_has_left_is_a_run(root, kept):
    run = root / "ddp"
    (run / "pods").mkdir()
    line = {"t": 1.0, "event": "refused", "exit_code": 4, "reason": "no accelerators", "text": "none"}
    (run / "pods" / "pod-0.jsonl").write_text(json.dumps(line) + "\n")
    for path in [path for path in run.rglob("*") if path.is_file() and path != run / kept]:
        path.unlink()
    assert is_run(run) and find_run(run) == run.absolute()


def test_a_run_at_work_stays(root):
    run = build_run_dir(root, "live", "ddp", status="unfinished")
    assert is_alive(run)
    with pytest.raises(UserError):
        find_run(run)
    with pytest.raises(UserError):
        check_free(run, replace=True)
    check_free(run, replace=False)  # an attempt that was killed is followed by another at once
    long_ago = time.time() - 600
    for path in run.rglob("*"):
        os.utime(path, (long_ago, long_ago))
    assert not is_alive(run) and find_run(run) == run.absolute()
    (run / "ranks" / "rank0.log").write_text("a line, just now")
    assert is_alive(run), "its newest file tells"
    assert not is_alive(root / "ddp"), "it has ended"


def test_a_report_overwrites_nothing_that_is_none(root, tmp_path):
    run = build_run_dir(root, "report", "zero2")
    for name in ("report.json", "comparison.csv"):
        (run / name).write_text("{}")
    runs = load_runs(root)
    assert [found.name for found in runs] == ["ddp", "fsdp", "report"], "a run called report is a run"
    with pytest.raises(UserError):
        check_folder(run)
    for name in ("report.html", "report.json", "comparison.csv"):
        (own := tmp_path / name / "own").mkdir(parents=True)
        (own / name).write_text("mine")
        assert name in str(raised(write_report, compare(runs), runs, own))
        assert (own / name).read_text() == "mine"
    for wrong in (tmp_path, tmp_path / "nowhere" / "x.json", root / "ddp" / "config.json"):
        with pytest.raises(UserError):
            check_file(wrong)
    for _ in range(2):  # its own it does
        write_report(compare(runs), runs, tmp_path / "out")
    check_file(tmp_path / "out" / "report.json")
    check_file(tmp_path / "new.json")


STARTED = {"t": 1.0, "attempt": 1, "event": "started", "launcher": "a"}


def ended(code, attempt=1, launcher="a"):
    return {"t": 2.0, "attempt": attempt, "event": "ended", "exit_code": code, "launcher": launcher}


def write(run_dir, *events, half=""):
    text = "".join(json.dumps(event) + "\n" for event in events)
    (run_dir / "attempts.jsonl").write_text(text + half)


SECOND = STARTED | {"attempt": 2}


@pytest.mark.parametrize(
    ("events", "is_ended", "exit_code"),
    [
        ([STARTED], False, None),
        ([STARTED, ended(0)], True, 0),
        ([STARTED, ended(10)], True, 10),
        ([STARTED, ended(143)], False, 143),
        ([STARTED, ended(143), SECOND], False, None),
        ([STARTED, ended(143), SECOND, ended(0, 2)], True, 0),
        ([STARTED, ended(10), ended(134, launcher="b")], True, 10),  # two nodes, one culprit
    ],
)
def test_what_attempts_say(tmp_path, events, is_ended, exit_code):
    write(tmp_path, *events)
    outcome = look(tmp_path, quiet=False)
    assert (outcome.ended, outcome.exit_code) == (is_ended, exit_code)
    assert f"attempt {events[-1]['attempt']} " in outcome.sentence
    assert look(tmp_path, quiet=True).ended == (is_ended or exit_code == 143), "nothing came after it"


def test_complete_traces_and_a_summary_are_an_end(tmp_path):
    write(tmp_path, STARTED)
    (tmp_path / "traces").mkdir()
    manifest = tmp_path / "traces" / "manifest.json"
    manifest.write_text('{"complete": false}')
    (tmp_path / "summary.json").write_text("{}")
    assert not look(tmp_path, quiet=False).ended
    manifest.write_text('{"complete": true}')
    assert look(tmp_path, quiet=False).ended
    (tmp_path / "summary.json").unlink()
    assert not look(tmp_path, quiet=False).ended


@pytest.mark.parametrize("line", ["\0\0\0\0", '{"attempt": 1, "ev', "[]", '{"event": "ended"}'])
def test_what_is_no_event_is_passed_over(tmp_path, line):
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "manifest.json").write_text(line)
    (tmp_path / "summary.json").write_text("{}")
    write(tmp_path, half=f"{line}\n{json.dumps(STARTED)}\n")
    assert look(tmp_path, quiet=False).exit_code is None
    write(tmp_path, half=f"{json.dumps(STARTED)}\n{line}\n{json.dumps(ended(13))}\n")
    assert look(tmp_path, quiet=False).exit_code == 13


def test_an_evaluation_has_ended_well_where_its_last_attempt_has(tmp_path):
    for codes, standing in (((10, 0), "finished"), ((0, 10), "failed")):
        attempts = [ended(code, attempt) for attempt, code in enumerate(codes, 1)]
        assert read_standing(tmp_path, "evaluate", attempts, has_summary=False)[0] == standing
    assert read_standing(tmp_path, "train", [ended(0)], has_summary=False)[0] == "unfinished"
