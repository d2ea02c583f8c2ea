import json
from pathlib import Path
from typing import Any

import pytest

from stratlab.run_directory.files import find_rank_logs, find_rank_traces, is_beside
from stratlab.run_directory.outcome import look, read_standing

STARTED = {"t": 1.0, "attempt": 1, "event": "started", "launcher": "a"}


def ended(code: int, attempt: int = 1, launcher: str = "a") -> dict[str, Any]:
    return {"t": 2.0, "attempt": attempt, "event": "ended", "exit_code": code, "launcher": launcher}


def write(run_dir: Path, *events: dict[str, Any], half: str = "") -> None:
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


def test_files_of_ranks_go_by_their_number(tmp_path):
    for folder, name in (("traces", "rank{}_trace.json"), ("ranks", "rank{}.log")):
        (tmp_path / folder).mkdir()
        for rank in (10, 9, 0):
            (tmp_path / folder / name.format(rank)).touch()
    (tmp_path / "traces" / "manifest.json").touch()
    (tmp_path / "ranks" / "rank0.json").touch()
    assert list(find_rank_traces(tmp_path)) == list(find_rank_logs(tmp_path)) == [0, 9, 10]
    assert find_rank_logs(tmp_path)[9].name == "rank9.log"
    assert find_rank_traces(tmp_path / "absent") == {}


def test_a_page_lies_beside_a_run_in_its_results(tmp_path):
    run = tmp_path / "out" / "runs" / "demo" / "ddp"
    pages = {"out/runs/demo/report": True, "out/report": True, "out": True, "elsewhere": False, ".": False}
    assert {page: is_beside(run, tmp_path / page) for page in pages} == pages
    assert not is_beside(Path("/results/demo/ddp"), Path("/tmp/report")), "the root holds no results"
    assert is_beside(Path("/results/demo/ddp"), Path("/results/demo/report"))


def test_an_evaluation_has_ended_well_where_its_last_attempt_has(tmp_path):
    for codes, standing in (((10, 0), "finished"), ((0, 10), "failed")):
        attempts = [ended(code, attempt) for attempt, code in enumerate(codes, 1)]
        assert read_standing(tmp_path, "evaluate", attempts, has_summary=False)[0] == standing
    assert read_standing(tmp_path, "train", [ended(0)], has_summary=False)[0] == "unfinished"
