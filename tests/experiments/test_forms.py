"""Each experiment in both sizes, its README, and its results that are kept. Rendered: slow/.
The command of the experiments, and what a small form may differ in."""

import copy
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from experiments import __main__ as command
from experiments import part_run
from experiments.catalogue import FOLDER, list_experiments, read_yaml
from experiments.differences import find_clusters, find_differences
from experiments.kept_runs import ARCHIVE
from experiments.prepared import PREPARED
from experiments.prepared import PREPARED as SOURCES
from experiments.result import Outcome, find_complaints, keep_result, read_report
from stratlab.sweep.definition import read_sweep
from stratlab.sweep.planned_release import expand
from tests.codes import find_codes
from tests.documents.commands import FENCE, split
from tests.documents.test_commands import find_problems

EXPERIMENTS = list_experiments()
PARTS = [part for experiment in EXPERIMENTS for part in experiment.parts]
each_part = pytest.mark.parametrize("part", PARTS, ids=[part.full_name for part in PARTS])


def test_there_is_a_small_form_of_each_part_and_nothing_is_prepared_that_nobody_reads():
    folders = {path for path in FOLDER.iterdir() if (path / "full").is_dir() or (path / "small").is_dir()}
    assert folders == {experiment.folder for experiment in EXPERIMENTS}, "a folder without README.md"
    for experiment in EXPERIMENTS:
        full, small = (
            {path.name for path in (experiment.folder / size).glob("*")} for size in ("full", "small")
        )
        assert full and full == small, experiment.name
    assert {name for part in PARTS for name in part.prepared()} == SOURCES.keys()


@each_part
def test_only_sizes_differ(part):
    assert find_differences(read_yaml(part.full), read_yaml(part.small)) == []
    for path, rest in ((part.full, ""), (part.small, " --rehearse FOLDER")):
        told = f"# stratlab sweep experiments/{part.experiment}/{path.parent.name}/{path.name}{rest}"
        assert path.read_text().splitlines()[0] == told
    full, small = expand(read_sweep(part.full)), expand(read_sweep(part.small))
    assert list(full[0].point) == list(small[0].point) and len(small) <= len(full)
    assert {release.strategy for release in full} == {release.strategy for release in small}


def test_what_runs_on_several_nodes_names_the_file_of_its_cluster():
    """And the README says which, and how to take another."""
    for part in PARTS:
        sweep = read_yaml(part.full)
        nodes = max([sweep["set"].get("run.nodes", 1), *sweep["matrix"].get("run.nodes", [])])
        files = find_clusters(sweep)
        assert len(files) == (nodes > 1), part.full_name
        for file in files:
            assert f"examples/{Path(file).name}" in (part.full.parents[1] / "README.md").read_text()
            of_cluster = yaml.safe_load((part.full.parent / file).read_text())
            assert of_cluster.keys() == {"run"} and "config" not in of_cluster["run"], "no part of the recipe"


HEADINGS = ("**Purpose.**", "**Compared.**", "**GPUs.**", "## Start", "## Look at", "## Expected")
MOST_LINES = 60
"""One screen, or little more."""


def commands(readme):
    lines = "\n".join(FENCE.findall(readme.read_text())).replace("\\\n", " ").splitlines()
    return [" ".join(line.split("  #")[0].split()) for line in lines if line.startswith(("helm", "stratlab"))]


def prepared_by(line):
    """The name below _prepared/ that a line of helm fills, with what is known to go there."""
    given = dict(re.findall(r"prepare\.(\w+)=([^, ]+)", line))
    name = given.get("name") or split(line)[2]
    known = PREPARED[name]
    assert given[known.kind] == known.source, line
    return name


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=[e.name for e in EXPERIMENTS])
def test_it_says_what_a_reader_needs_and_starts_each_part_behind_what_it_reads(experiment):
    text, lines = experiment.readme.read_text(), commands(experiment.readme)
    assert [word for word in HEADINGS if word not in text] == [] and len(text.splitlines()) <= MOST_LINES
    names = [prepared_by(line) for line in lines if line.startswith("helm install")]
    begun = lines[len(names) :]
    wanted = {
        f"stratlab sweep experiments/{experiment.name}/full/{part.full.name}" for part in experiment.parts
    }
    assert set(begun) == wanted and len(begun) == len(wanted)
    assert set(names) == {name for part in experiment.parts for name in part.prepared()}


def test_their_programs_take_the_lines():
    for readme in (FOLDER / "README.md", *(experiment.readme for experiment in EXPERIMENTS)):
        assert [problem for line in commands(readme) for problem in find_problems(line)] == []


MOST_BYTES, MOST_BYTES_OF_A_PART = 350_000, 240_000
"""Of an experiment; of one with several parts more."""
(OFFLOAD,) = (part for part in PARTS if part.experiment == "offload")


@each_part
def test_each_part_has_the_result_of_its_small_form(part):
    folder = part.full.parents[1] / "result" / part.name
    again = f"make experiments NAMES={part.full_name}"
    kept = json.loads((folder / "result.json").read_text())
    assert kept.get("form") == part.form(), f"the small form has changed since: {again}"
    names = [release.name for release in expand(read_sweep(part.small))]
    assert kept["result"] == "passed" and kept["complaints"] == [] and sorted(kept["runs"]) == sorted(names)
    assert find_complaints(read_report(folder), names) == []
    assert len(kept["commit"]) == 40 and kept["hardware"] and kept["backend"] == "gloo"
    assert (folder / "table.txt").is_file()


def test_results_are_small_and_name_no_folder_of_a_machine():
    for experiment in list_experiments():
        parts = {part.name for part in experiment.parts}
        files = [path for path in (experiment.folder / "result").rglob("*") if path.is_file()]
        assert {path.relative_to(experiment.folder / "result").parts[0] for path in files} == parts
        most = max(MOST_BYTES, MOST_BYTES_OF_A_PART * len(parts))
        assert sum(path.stat().st_size for path in files) < most, experiment.name
        for text in (path.read_text() for path in files if path.name != ARCHIVE):
            assert "/experiments-results" not in text
            assert not re.search(r'title="FOLDER[^"]*">(?!FOLDER/…)', text)


@pytest.mark.parametrize("changed", ["small", "values"])
def test_a_result_is_of_the_form_as_it_is(tmp_path, changed):
    home = tmp_path / "offload"
    shutil.copytree(OFFLOAD.full.parents[1], home)
    part = replace(OFFLOAD, full=home / "full" / OFFLOAD.full.name, small=home / "small" / OFFLOAD.small.name)
    file = part.small if changed == "small" else home / "values.yaml"
    text = file.read_text()
    file.write_text(text + "\n# a remark\n")
    assert part.form() == OFFLOAD.form()
    file.write_text(re.sub(r": [0-9.]+$", ": 7", text, count=1, flags=re.MULTILINE))
    assert part.form() != OFFLOAD.form()


def test_an_earlier_result_stays_where_the_new_one_is_no_good(tmp_path, monkeypatch):
    """Also where somebody was stopped while it was exchanged, or while the new one was written."""
    report, folder = tmp_path / "report", tmp_path / "result" / "example"
    report.mkdir()

    def keep(text, *complaints):
        (report / "summary.md").write_text(text)
        outcome = Outcome("an/example", 1.0, complaints, {})
        keep_result(report, folder, outcome, "stratlab sweep", 1, "0123", None)

    def fail(*_):
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


def test_a_run_that_is_missing_or_failed_is_a_complaint():
    rows = [
        {"run": "a", "status": "finished", "complete": True},
        {"run": "b", "status": "failed", "complete": True},
        {"run": "c", "status": "finished", "complete": False},
    ]
    assert find_complaints({"runs": rows}, ["a"]) == []
    found = find_complaints({"runs": rows}, ["a", "b", "c", "d"])
    assert find_codes(found) == ["SL-small-run-missing", "SL-small-run-unfinished", "SL-small-run-unfinished"]
    assert [text.split()[0] for text in found] == ["d", "b", "c"]


def test_what_lies_in_a_folder_of_somebody_else_stays(tmp_path, capsys):
    kept = tmp_path / "volume" / "data"
    kept.parent.mkdir()
    kept.write_text("theirs")
    assert command.main(["--out", str(tmp_path), "--keep", str(tmp_path / "kept"), "offload"]) == 2
    assert find_codes(capsys.readouterr().err) == ["SL-out-of-others"] and kept.read_text() == "theirs"


def test_two_do_not_share_a_folder(tmp_path, capsys):
    with command._claim(tmp_path / "out"):
        words = ["--out", str(tmp_path / "out"), "--keep", str(tmp_path / "kept"), "offload"]
        assert command.main(words) == 2
    assert str(tmp_path / "out") in capsys.readouterr().err and not (tmp_path / "out" / "volume").exists()
    with command._claim(tmp_path / "out"):
        pass  # the other one has ended


def test_a_misspelt_name_is_told_with_the_nearest(capsys):
    assert command.main(["ofload", "zzz"]) == 2
    said = capsys.readouterr().err
    assert find_codes(said) == ["SL-experiment-unknown"] * 2 and "offload?" in said and "NAMES=zzz" in said


def test_a_form_that_changes_while_it_runs_gives_no_result(tmp_path, monkeypatch):
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


def test_a_sweep_that_ends_without_a_report_is_told_once(tmp_path, monkeypatch):
    part = list_experiments()[0].parts[0]
    monkeypatch.setattr(part_run, "_fill", lambda part, out, runs: runs.mkdir(parents=True))
    monkeypatch.setattr(part_run, "_run", lambda line: 2)
    outcome = part_run.run_part(part, tmp_path / "out", tmp_path / "kept", 1)
    assert find_codes(outcome.complaints) == ["SL-sweep-no-report"]
    assert "exit code 2" in str(outcome.complaints)


FULL = {
    "comparison": "a",
    "values": "../values.yaml",
    "set": {"run.nodes": 2, "run.config.epochs": 3, "run.config.lr": 0.1},
    "matrix": {
        "strategy": ["ddp", "zeropp"],
        "run.processesPerNode": [1, 8],
        "run.config.micro_batch_size": [16, 32, 64],
        "run.config.zeropp": ["hpz", "hpz,qgz"],
    },
    "exclude": [
        {"strategy": "ddp", "run.processesPerNode": 8},
        {"strategy": "ddp", "run.config.micro_batch_size": 64},
    ],
}


def smaller():
    small = copy.deepcopy(FULL)
    small["set"] |= {"run.nodes": 1, "run.config.epochs": 1}
    small["matrix"] |= {
        "run.processesPerNode": [1, 2],
        "run.config.micro_batch_size": [4],
        "run.config.zeropp": ["hpz"],
    }
    small["exclude"] = [{"strategy": "ddp", "run.processesPerNode": 2}]
    return small


def test_smaller_numbers_are_allowed_and_what_is_switched_off_in_both_forms():
    off = {"set": {"run.config.profile_steps": 0}}
    for full, small in ((FULL, FULL), (FULL, smaller()), (off, off)):
        assert find_differences(full, small) == []


@pytest.mark.parametrize(
    ("place", "value", "code"),
    [
        ("comparison", "b", "SL-form-differs"),
        ("values", "extra.yaml", "SL-form-other-file"),
        ("tune", {"steps": 3}, "SL-form-differs"),
        ("set run.config.lr", 0.01, "SL-form-differs"),
        ("set run.config.seed", 1, "SL-form-differs"),
        *(("set run.config.epochs", odd, "SL-form-not-smaller") for odd in (4, 0, -3, True, 0.5)),
        ("matrix strategy", ["ddp"], "SL-form-axis"),
        ("matrix run.processesPerNode", [1, 16], "SL-form-axis-not-smaller"),
        ("matrix run.config.micro_batch_size", [1, 2, 3, 4], "SL-form-axis-not-smaller"),
        ("matrix run.config.zeropp", ["hpz,qwz"], "SL-form-no-part"),
        ("matrix run.config.seed", [1], "SL-form-axes"),
        ("exclude", [], "SL-form-exclude"),
    ],
)
def test_every_other_key_is_refused(place, value, code):
    small = smaller()
    node, *rest = place.split()
    if rest:
        small[node][rest[0]] = value
    else:
        small[node] = value
    found = find_differences(FULL, small)
    assert code in find_codes(found) and place.split()[-1] in str(found)


def test_the_file_of_a_cluster_is_the_full_forms_alone():
    full = FULL | {"values": ["../values.yaml", "../../../examples/cluster-a.yaml"]}
    assert find_differences(full, smaller()) == []
    assert find_clusters(full) == ["../../../examples/cluster-a.yaml"] and find_clusters(smaller()) == []
    assert find_differences(full | {"values": ["../../../examples/cluster-a.yaml"]}, smaller())
