"""Each sweep file in both sizes: only sizes differ, and what it names is there. Rendered: longer/, slow/."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from experiments.catalogue import FOLDER, Part, list_experiments, read_yaml
from experiments.differences import find_clusters, find_differences
from experiments.prepared import PREPARED as SOURCES
from stratlab.sweep.definition import read_sweep
from stratlab.sweep.planned_release import expand

EXPERIMENTS = list_experiments()
PARTS = [part for experiment in EXPERIMENTS for part in experiment.parts]
each_part = pytest.mark.parametrize("part", PARTS, ids=[part.full_name for part in PARTS])


def test_there_is_a_small_form_of_each_part_and_nothing_is_prepared_that_nobody_reads() -> None:
    folders = {path for path in FOLDER.iterdir() if (path / "full").is_dir() or (path / "small").is_dir()}
    assert folders == {experiment.folder for experiment in EXPERIMENTS}, "a folder without README.md"
    for experiment in EXPERIMENTS:
        full, small = (
            {path.name for path in (experiment.folder / size).glob("*")} for size in ("full", "small")
        )
        assert full and full == small, experiment.name
    assert {name for part in PARTS for name in part.prepared()} == SOURCES.keys()


@each_part
def test_only_sizes_differ(part: Part) -> None:
    assert find_differences(read_yaml(part.full), read_yaml(part.small)) == []
    for path, rest in ((part.full, ""), (part.small, " --rehearse FOLDER")):
        told = f"# stratlab sweep experiments/{part.experiment}/{path.parent.name}/{path.name}{rest}"
        assert path.read_text().splitlines()[0] == told
    full, small = expand(read_sweep(part.full)), expand(read_sweep(part.small))
    assert list(full[0].point) == list(small[0].point) and len(small) <= len(full)
    assert {release.strategy for release in full} == {release.strategy for release in small}


def test_what_runs_on_several_nodes_names_the_file_of_its_cluster() -> None:
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
