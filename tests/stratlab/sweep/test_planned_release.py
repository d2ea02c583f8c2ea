"""Every release is rendered by the real helm before anything starts; all mistakes come at once."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from stratlab.rendering.helm import REPOSITORY, find_helm
from stratlab.sweep import planned_release
from stratlab.sweep.definition import Sweep, read_sweep
from stratlab.sweep.matrix import expand
from stratlab.sweep.planned_release import build_plan, foretell_all, hash_asked, merge_values

EXAMPLE = REPOSITORY / "examples" / "sweep.yaml"


def silent(text: str) -> None:
    pass


def build(folder: Path, **changes: object) -> Sweep:
    (folder / "base.yaml").write_text("run: {nodes: 2, accelerator: '', config: {lr: 0.5, steps: 20}}")
    asked = {"comparison": "demo", "charts": str(REPOSITORY / "charts"), "values": ["base.yaml"]}
    return Sweep.model_validate(
        asked | {"matrix": {"strategy": ["ddp"], "run.config.model": ["cnn"]}} | changes
    )


def test_the_example_renders_and_says_what_the_cluster_gets() -> None:
    sweep = read_sweep(EXAMPLE)
    plan = build_plan(sweep, EXAMPLE.parent, find_helm(), silent)
    assert [planned.release for planned in plan] == expand(sweep)
    first = plan[0]
    assert first.facts.run_directory == f"/results/{sweep.comparison}/{first.release.name}"
    assert (first.facts.results_claim, first.facts.processes) == ("stratlab-results", 2)
    assert first.api.name == "pytorchjob" and first.has_analysis
    assert first.values["run"]["config"]["model"] == "cnn", "of the values file"
    assert first.values["run"]["config"]["epochs"] == 3, "`set` wins over the file"
    worker = first.workload.object["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert worker["replicas"] == 2


def test_later_values_win_and_the_file_is_relative_to_the_sweep(tmp_path: Path) -> None:
    sweep = build(
        tmp_path, set={"run.config.lr": 0.25}, matrix={"strategy": ["ddp"], "run.config.steps": [30]}
    )
    (planned,) = build_plan(sweep, tmp_path, find_helm(), silent)
    container = planned.workload.object["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"][
        "containers"
    ][0]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert (env["TRAINER_LR"], env["TRAINER_STEPS"], env["TRAINER_COMPARISON"]) == ("0.25", "30", "demo")


def test_the_trainer_is_told_the_processes_of_a_node(tmp_path: Path) -> None:
    """As an operator would: 2 nodes of 3."""
    (planned,) = build_plan(build(tmp_path, set={"run.processesPerNode": 3}), tmp_path, find_helm(), silent)
    assert planned.facts.processes == 6
    told = (planned.environment["PET_NNODES"], planned.environment["PET_NPROC_PER_NODE"])
    assert told == ("2", "3")


def test_the_second_file_wins_over_the_first(tmp_path: Path) -> None:
    (tmp_path / "over.yaml").write_text("run: {config: {lr: 0.5}}")
    (tmp_path / "empty.yaml").write_text("")
    sweep = build(tmp_path, values=["base.yaml", "over.yaml", "empty.yaml"])
    base = build(tmp_path)
    (tmp_path / "base.yaml").write_text("run: {config: {lr: 0.25, model: cnn}}")
    for asked, lr in ((sweep, 0.5), (base, 0.25)):
        config = build_plan(asked, tmp_path, find_helm(), silent)[0].values["run"]["config"]
        assert (config["lr"], config["model"]) == (lr, "cnn")


def test_what_does_not_fit_is_foretold_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = build_plan(build(tmp_path, repeats=3), tmp_path, find_helm(), silent)
    names = [each.release.name for each in plan[:3]]
    said = dict(zip(names, ("a: fits", "", "c: does not"), strict=True))
    monkeypatch.setattr(planned_release, "foretell", lambda name, env: said.get(name, ""))
    assert foretell_all(plan) == ["c: does not", "a: fits"]


def test_without_analysis_none_is_expected(tmp_path: Path) -> None:
    (planned,) = build_plan(
        build(tmp_path, set={"run.analysis.enabled": False}), tmp_path, find_helm(), silent
    )
    assert not planned.has_analysis


def test_what_a_chart_refuses_is_told_once_for_all_releases_it_concerns(tmp_path: Path) -> None:
    matrix = {"strategy": ["ddp", "fsdp"], "run.config.model": ["cnn", "cmm"], "run.nodes": [1, 0]}
    with pytest.raises(ValueError) as failure:
        build_plan(build(tmp_path, matrix=matrix, set={"run.config.lrr": 1}), tmp_path, find_helm(), silent)
    text = str(failure.value)
    assert "lrr: did you mean lr?" in text
    assert "minimum: got 0, want 1" in text
    assert "demo-ddp-cmm-nodes0" in text and "demo-fsdp-cmm-nodes1" in text
    (fine_but_lrr,) = [line for line in text.splitlines() if line.strip().startswith("demo-ddp-cnn-nodes1")]
    assert "demo-ddp-cnn-nodes0" not in fine_but_lrr


def test_a_sweep_names_its_api(tmp_path: Path) -> None:
    """Which one `auto` is shows on the cluster alone, and a sweep is planned before."""
    with pytest.raises(ValueError, match=r"run\.workload\.api=auto: a sweep .* name it"):
        build_plan(build(tmp_path, set={"run.workload.api": "auto"}), tmp_path, find_helm(), silent)
    (planned,) = build_plan(
        build(tmp_path, set={"run.workload.api": "trainjob"}), tmp_path, find_helm(), silent
    )
    assert planned.api.name == "trainjob"


def test_missing_charts_and_files_are_told_together(tmp_path: Path) -> None:
    sweep = build(tmp_path, values=["base.yaml", "nope.yaml"], matrix={"strategy": ["ddp", "fdsp"]})
    with pytest.raises(ValueError) as failure:
        build_plan(sweep, tmp_path, find_helm(), silent)
    text = str(failure.value)
    assert "matrix: strategy fdsp: no chart" in text
    told = text.partition("there is ")[2].splitlines()[0].split(", ")
    folders = {path.parent.name for path in (REPOSITORY / "charts").glob("*/Chart.yaml")}
    assert set(told) == folders - {"prepare", "run"} and told == sorted(told)
    assert "strategy ddp" not in text
    assert f"values: {tmp_path}/nope.yaml: No such file or directory" in text


def test_merging_is_that_of_helm(tmp_path: Path) -> None:
    base = {"run": {"env": [{"name": "A"}], "nodes": 1, "config": {"lr": 1}}}
    over = {"run": {"env": [], "nodes": 2, "config": {"model": "cnn"}}, "more": {"a": 1}}
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: probe, version: 0.1.0}")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "a.yaml").write_text("{{ .Values | toJson }}")
    for name, values in (("a", base), ("b", over)):
        (tmp_path / f"{name}.json").write_text(json.dumps(values))
    command = [str(find_helm()), "template", "r", str(tmp_path)]
    command += ["-f", str(tmp_path / "a.json"), "-f", str(tmp_path / "b.json")]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seen = json.loads(next(line for line in rendered.splitlines() if line.startswith("{")))
    assert merge_values(base, over) == {key: value for key, value in seen.items() if key != "global"}
    assert base["run"]["nodes"] == 1, "the base is left as it was"


def test_the_hash_does_not_depend_on_how_helm_keeps_numbers() -> None:
    typed, stored = {"a": 1.0, "b": [{"c": 2.0}], "d": 0.1}, {"d": 0.1, "b": [{"c": 2}], "a": 1}
    assert hash_asked("ddp", typed) == hash_asked("ddp", stored)
    assert hash_asked("ddp", typed) != hash_asked("fsdp", typed)
    assert hash_asked("ddp", typed) != hash_asked("ddp", typed | {"d": 0.2})
    assert hash_asked("ddp", {"a": True}) != hash_asked("ddp", {"a": 1})
