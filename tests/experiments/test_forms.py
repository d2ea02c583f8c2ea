"""Each sweep file in both sizes: it renders, the trainer takes it, and only sizes differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.catalogue import FOLDER, PREPARED, Part, list_experiments, read_yaml
from experiments.differences import find_clusters, find_differences
from experiments.prepared import PREPARED as SOURCES
from stratlab.rendering.helm import find_helm
from stratlab.sweep.definition import read_sweep
from stratlab.sweep.matrix import expand
from stratlab.sweep.planned_release import Planned, build_plan
from trainer.launch.preflight import check_elsewhere, read_pods
from trainer.settings.config import Config

EXPERIMENTS = list_experiments()
PARTS = [part for experiment in EXPERIMENTS for part in experiment.parts]
NAMES = [f"{part.experiment}/{part.name}" for part in PARTS]
each_part = pytest.mark.parametrize("part", PARTS, ids=NAMES)


def plan(file: Path) -> Sequence[Planned]:
    return build_plan(read_sweep(file), file.parent, find_helm(), lambda text: None)


def test_there_is_a_small_form_of_each_part_and_no_other() -> None:
    assert PARTS
    folders = {path for path in FOLDER.iterdir() if (path / "full").is_dir() or (path / "small").is_dir()}
    assert folders == {experiment.folder for experiment in EXPERIMENTS}, "a folder without README.md"
    for experiment in EXPERIMENTS:
        full, small = (
            {path.name for path in (experiment.folder / size).glob("*")} for size in ("full", "small")
        )
        lacking = [f"small/{name}" for name in full - small] + [f"full/{name}" for name in small - full]
        assert full and not lacking, f"{experiment.name}: lacks {', '.join(lacking) or 'a file in full/'}"


@each_part
def test_only_sizes_differ(part: Part) -> None:
    assert find_differences(read_yaml(part.full), read_yaml(part.small)) == []


@each_part
def test_both_say_how_they_are_started(part: Part) -> None:
    for path, rest in ((part.full, ""), (part.small, " --rehearse FOLDER")):
        told = f"# stratlab sweep experiments/{part.experiment}/{path.parent.name}/{path.name}{rest}"
        assert path.read_text().splitlines()[0] == told


@each_part
def test_the_full_form_renders_and_the_trainer_takes_it(part: Part) -> None:
    """As `stratlab sweep FILE --dry-run` does, in this process."""
    for planned in plan(part.full):
        check_elsewhere(Config.from_env(planned.environment), read_pods(planned.environment))


@each_part
def test_what_runs_on_several_nodes_names_the_file_of_its_cluster(part: Part) -> None:
    """And the README says which, and how to take another."""
    sweep = read_yaml(part.full)
    nodes = max([sweep["set"].get("run.nodes", 1), *sweep["matrix"].get("run.nodes", [])])
    files = find_clusters(sweep)
    assert len(files) == (nodes > 1)
    readme = (part.full.parents[1] / "README.md").read_text()
    for file in files:
        assert (part.full.parent / file).is_file()
        name = Path(file).name
        assert f"examples/{name}" in readme
        of_cluster = yaml.safe_load((part.full.parent / file).read_text())
        assert of_cluster.keys() == {"run"} and "config" not in of_cluster["run"], "no part of the recipe"
        asked = of_cluster["run"]["pod"].get("annotations", {})
        for planned in plan(part.full):
            assert template(planned.workload.object)["metadata"].get("annotations", {}) == asked


def template(job: Mapping[str, Any]) -> Mapping[str, Any]:
    return job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]


@each_part
def test_the_small_form_renders_with_the_same_names_and_axes(part: Part) -> None:
    full, small = expand(read_sweep(part.full)), expand(read_sweep(part.small))
    assert list(full[0].point) == list(small[0].point)
    assert {release.strategy for release in full} == {release.strategy for release in small}
    assert len(plan(part.small)) == len(small) <= len(full)


@each_part
def test_what_it_reads_is_known(part: Part) -> None:
    assert set(part.prepared()) <= SOURCES.keys()


def test_nothing_is_prepared_that_nobody_reads() -> None:
    assert {name for part in PARTS for name in part.prepared()} == SOURCES.keys()
    assert PREPARED == "/results/_prepared/"
