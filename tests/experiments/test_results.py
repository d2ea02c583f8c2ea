"""Results that are kept: of every part, of the small form as it is now, and small enough for git."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.catalogue import Experiment, Part, list_experiments
from experiments.result import Outcome, find_complaints, keep_result, read_report, take_folder_out
from stratlab.sweep.definition import read_sweep
from stratlab.sweep.matrix import expand
from tests.experiments.test_forms import each_part

MOST_BYTES, MOST_BYTES_OF_A_PART = 350_000, 240_000
"""Of an experiment; of one with several parts more."""
EXPERIMENTS = list_experiments()


@each_part
def test_each_part_has_the_result_of_its_small_form(part: Part) -> None:
    folder = part.full.parents[1] / "result" / part.name
    again = f"make experiments NAMES={part.full_name}"
    assert (folder / "result.json").is_file(), f"no result is kept: {again}"
    kept = json.loads((folder / "result.json").read_text())
    assert kept.get("form") == part.form(), f"the small form has changed since: {again}"
    names = [release.name for release in expand(read_sweep(part.small))]
    assert kept["result"] == "passed" and kept["complaints"] == []
    assert sorted(kept["runs"]) == sorted(names)
    assert find_complaints(read_report(folder), names) == []
    assert len(kept["commit"]) == 40 and kept["hardware"] and kept["backend"] == "gloo"
    lines = [line for line in (folder / "table.txt").read_text().splitlines() if line.startswith("│")]
    shown = "".join(line.split("│")[1].strip() for line in lines)
    begins = f"{read_sweep(part.small).comparison}-"
    assert shown in ("".join(sorted(name.removeprefix(begins) for name in names)), "".join(sorted(names)))


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=[e.name for e in EXPERIMENTS])
def test_results_are_small_and_name_no_folder_of_a_machine(experiment: Experiment) -> None:
    parts = {part.name for part in experiment.parts}
    files = [path for path in (experiment.folder / "result").rglob("*") if path.is_file()]
    assert {path.relative_to(experiment.folder / "result").parts[0] for path in files} == parts
    most = max(MOST_BYTES, MOST_BYTES_OF_A_PART * len(parts))
    assert sum(path.stat().st_size for path in files) < most
    for path in files:
        text = path.read_text()
        assert "/experiments-results" not in text
        assert not re.search(r'title="FOLDER[^"]*">(?!FOLDER/…)', text), path


OFFLOAD = next(
    part for experiment in EXPERIMENTS for part in experiment.parts if part.experiment == "offload"
)


@pytest.mark.parametrize("changed", ["small", "values"])
def test_a_result_is_of_the_form_as_it_is(tmp_path: Path, changed: str) -> None:
    home = tmp_path / "offload"
    shutil.copytree(OFFLOAD.full.parents[1], home)
    part = replace(OFFLOAD, full=home / "full" / OFFLOAD.full.name, small=home / "small" / OFFLOAD.small.name)
    assert part.form() == OFFLOAD.form()
    file = part.small if changed == "small" else home / "values.yaml"
    text = file.read_text()
    file.write_text(text + "\n# a remark\n")
    assert part.form() == OFFLOAD.form()
    changed_text = re.sub(r": [0-9.]+$", ": 7", text, count=1, flags=re.MULTILINE)
    assert changed_text != text
    file.write_text(changed_text)
    assert part.form() != OFFLOAD.form()


def keep(folder: Path, report: Path, *complaints: str) -> None:
    keep_result(report, folder, Outcome("an/example", 1.0, complaints, {}), "stratlab sweep", 1, "0123")


def test_what_failed_takes_no_good_result_away(tmp_path: Path) -> None:
    report, folder = tmp_path / "report", tmp_path / "result" / "example"
    report.mkdir()
    (report / "summary.md").write_text("first")
    keep(folder, report)
    assert (folder / "summary.md").read_text() == "first"
    (report / "summary.md").write_text("second")
    keep(folder, report, "a is failed")
    assert (folder / "summary.md").read_text() == "first"
    assert json.loads((folder / "result.json").read_text())["result"] == "passed"
    keep(folder, report)
    assert (folder / "summary.md").read_text() == "second"
    assert [path.name for path in folder.parent.iterdir()] == ["example"], "nothing half-made lies beside it"


def test_a_result_that_was_being_exchanged_comes_back(tmp_path: Path) -> None:
    report, folder = tmp_path / "report", tmp_path / "result" / "example"
    report.mkdir()
    (report / "summary.md").write_text("first")
    keep(folder, report)
    folder.rename(folder.with_name(".example.old"))  # stopped between two renames
    (report / "summary.md").write_text("second")
    keep(folder, report, "a is failed")
    assert (folder / "summary.md").read_text() == "first"
    assert [path.name for path in folder.parent.iterdir()] == ["example"]


def test_a_result_that_cannot_be_written_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, folder = tmp_path / "report", tmp_path / "result" / "example"
    report.mkdir()
    (report / "summary.md").write_text("first")
    keep(folder, report)
    (report / "summary.md").write_text("second")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.result.describe_outcome", fail)
    with pytest.raises(KeyboardInterrupt):
        keep(folder, report)
    assert (folder / "summary.md").read_text() == "first" and (folder / "result.json").is_file()


def test_a_page_shows_no_folder_of_this_machine() -> None:
    page = '<td><span title="/home/me/out/runs/_prepared/food101">/home/me/out…</span></td> /home/me/out/a'
    wanted = '<td><span title="FOLDER/runs/_prepared/food101">FOLDER/…</span></td> FOLDER/a'
    assert take_folder_out(page, Path("/home/me/out")) == wanted


def test_a_run_that_is_missing_or_failed_is_a_complaint() -> None:
    rows = [
        {"run": "a", "status": "finished", "complete": True},
        {"run": "b", "status": "failed", "complete": False},
        {"run": "c", "status": "finished", "complete": False},
    ]
    assert find_complaints({"runs": rows}, ["a"]) == []
    assert find_complaints({"runs": rows}, ["a", "b", "c", "d"]) == [
        "d is missing in the report",
        "b is failed, not complete",
        "c is finished, not complete",
    ]
    assert find_complaints({}, ["a"]) == ["a is missing in the report"]
