"""Results that are kept: of every part, of the small form as it is now, and small enough for git."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.catalogue import Part, list_experiments
from experiments.result import Outcome, find_complaints, keep_result, read_report, take_folder_out
from stratlab.sweep.definition import read_sweep
from stratlab.sweep.planned_release import expand
from tests.codes import find_codes
from tests.experiments.test_forms import PARTS, each_part

MOST_BYTES, MOST_BYTES_OF_A_PART = 350_000, 240_000
"""Of an experiment; of one with several parts more."""
(OFFLOAD,) = (part for part in PARTS if part.experiment == "offload")


@each_part
def test_each_part_has_the_result_of_its_small_form(part: Part) -> None:
    folder = part.full.parents[1] / "result" / part.name
    again = f"make experiments NAMES={part.full_name}"
    kept = json.loads((folder / "result.json").read_text())
    assert kept.get("form") == part.form(), f"the small form has changed since: {again}"
    names = [release.name for release in expand(read_sweep(part.small))]
    assert kept["result"] == "passed" and kept["complaints"] == []
    assert sorted(kept["runs"]) == sorted(names)
    assert find_complaints(read_report(folder), names) == []
    assert len(kept["commit"]) == 40 and kept["hardware"] and kept["backend"] == "gloo"
    assert (folder / "table.txt").is_file()


def test_results_are_small_and_name_no_folder_of_a_machine() -> None:
    for experiment in list_experiments():
        parts = {part.name for part in experiment.parts}
        files = [path for path in (experiment.folder / "result").rglob("*") if path.is_file()]
        assert {path.relative_to(experiment.folder / "result").parts[0] for path in files} == parts
        most = max(MOST_BYTES, MOST_BYTES_OF_A_PART * len(parts))
        assert sum(path.stat().st_size for path in files) < most, experiment.name
        for text in (path.read_text() for path in files):
            assert "/experiments-results" not in text
            assert not re.search(r'title="FOLDER[^"]*">(?!FOLDER/…)', text)


@pytest.mark.parametrize("changed", ["small", "values"])
def test_a_result_is_of_the_form_as_it_is(tmp_path: Path, changed: str) -> None:
    home = tmp_path / "offload"
    shutil.copytree(OFFLOAD.full.parents[1], home)
    part = replace(OFFLOAD, full=home / "full" / OFFLOAD.full.name, small=home / "small" / OFFLOAD.small.name)
    file = part.small if changed == "small" else home / "values.yaml"
    text = file.read_text()
    file.write_text(text + "\n# a remark\n")
    assert part.form() == OFFLOAD.form()
    file.write_text(re.sub(r": [0-9.]+$", ": 7", text, count=1, flags=re.MULTILINE))
    assert part.form() != OFFLOAD.form()


def test_an_earlier_result_stays_where_the_new_one_is_no_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where somebody was stopped while it was exchanged, or while the new one was written."""
    report, folder = tmp_path / "report", tmp_path / "result" / "example"
    report.mkdir()

    def keep(text: str, *complaints: str) -> None:
        (report / "summary.md").write_text(text)
        outcome = Outcome("an/example", 1.0, complaints, {})
        keep_result(report, folder, outcome, "stratlab sweep", 1, "0123")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    keep("first")
    keep("second", "a is failed")
    assert (folder / "summary.md").read_text() == "first"
    assert json.loads((folder / "result.json").read_text())["result"] == "passed"
    keep("third")
    assert (folder / "summary.md").read_text() == "third"
    folder.rename(folder.with_name(".example.old"))  # stopped between two renames
    keep("fourth", "a is failed")
    with monkeypatch.context() as patch:
        patch.setattr("experiments.result.describe_outcome", fail)
        with pytest.raises(KeyboardInterrupt):
            keep("fifth")
    assert (folder / "summary.md").read_text() == "third" and (folder / "result.json").is_file()
    keep("sixth")
    assert [path.name for path in folder.parent.iterdir()] == ["example"], "nothing half-made lies beside it"


def test_a_page_shows_no_folder_of_this_machine() -> None:
    page = '<td><span title="/home/me/out/runs/_prepared/food101">/home/me/out…</span></td> /home/me/out/a'
    wanted = '<td><span title="FOLDER/runs/_prepared/food101">FOLDER/…</span></td> FOLDER/a'
    assert take_folder_out(page, Path("/home/me/out")) == wanted


def test_a_run_that_is_missing_or_failed_is_a_complaint() -> None:
    rows = [
        {"run": "a", "status": "finished", "complete": True},
        {"run": "b", "status": "failed", "complete": True},
        {"run": "c", "status": "finished", "complete": False},
    ]
    assert find_complaints({"runs": rows}, ["a"]) == []
    found = find_complaints({"runs": rows}, ["a", "b", "c", "d"])
    assert find_codes(found) == ["SL-small-run-missing", "SL-small-run-unfinished", "SL-small-run-unfinished"]
    assert [text.split()[0] for text in found] == ["d", "b", "c"]
