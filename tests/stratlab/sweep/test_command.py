"""The verb: a dry run with the real charts, with and without a cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from stratlab import cli
from stratlab.cluster import connection
from stratlab.rendering.helm import REPOSITORY, find_helm
from stratlab.sweep import cluster_place, sweep, sweep_tables
from stratlab.sweep.state import State, only_one, state_file, tuning_file
from stratlab.sweep.sweep import Result
from tests.stratlab.cluster.fake_api import FakeApi, serve

SWEEP = """
comparison: demo
namespace: lab
charts: {charts}
matrix: {{strategy: [ddp, fsdp], run.nodes: [1, 2]}}
set: {{run.accelerator: "", run.config.global_batch_size: 128}}
"""

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u, namespace: other}}}}]
clusters: [{{name: c, cluster: {{server: "{address}"}}}}]
users: [{{name: u, user: {{}}}}]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP.format(charts=REPOSITORY / "charts"))
    return path


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["stratlab", "sweep", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_a_dry_run_needs_no_cluster_and_starts_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nope"))
    assert call(monkeypatch, str(file), "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "the cluster was not looked at: no cluster" in shown
    for name in ("demo-ddp-nodes1", "demo-ddp-nodes2", "demo-fsdp-nodes1", "demo-fsdp-nodes2"):
        assert name in shown
    assert "4 releases, all charts render, no setting is refused; nothing was started" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"], "no state is written"
    assert call(monkeypatch, str(file)) == 2, "a sweep does need one"
    assert "error: no cluster" in capsys.readouterr().err


def test_a_dry_run_finds_what_the_cluster_lacks(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    api = FakeApi(namespaces=set())
    with serve(api) as address:
        config = tmp_path / "config"
        config.write_text(KUBECONFIG.format(address=address))
        monkeypatch.setenv("KUBECONFIG", str(config))
        assert call(monkeypatch, str(file), "--dry-run") == 2
    error = capsys.readouterr().err
    assert "there is no namespace lab" in error and "does not serve PyTorchJob" in error


def test_a_wrong_file_is_one_list_of_mistakes(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(file.read_text().replace("run.nodes: [1, 2]", "run.nodes: [0], run.config.modl: [cnn]"))
    assert call(monkeypatch, str(file), "--dry-run") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: the sweep cannot start:")
    assert "minimum: got 0, want 1" in error and "modl: did you mean model or mode? allowed are the " in error
    file.write_text("comparison: demo\nmatrx: {}\n")
    assert call(monkeypatch, str(file), "--dry-run") == 2
    assert "matrx: no such key, did you mean matrix?" in capsys.readouterr().err


def test_what_the_trainer_refuses_is_told_before_a_cluster_is_asked(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nope"))
    given = file.read_text().replace("run.nodes: [1, 2]", "run.config.profile_steps: [3, 24]")
    file.write_text(given.replace('"",', '"", run.nodes: 1, run.processesPerNode: 2, run.config.epochs: 1,'))
    assert call(monkeypatch, str(file)) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "error: the sweep cannot start:\n  demo-ddp-ps24, demo-fsdp-ps24: run.config.profile_steps=24:"
    )
    assert "no cluster" not in error and "ps3" not in error


def test_a_rehearsal_looks_at_data_before_its_first_run(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """On this machine, where a cluster's /results is the folder's runs/; a dry run for a cluster looks at no folder."""
    text = file.read_text().replace("[1, 2]", "[1]")
    data = "run.config.dataset: imagefolder, run.config.dataset_path: /results/pets,"
    file.write_text(text.replace('"",', f'"", run.processesPerNode: 2, run.config.model: cnn, {data}'))
    assert call(monkeypatch, str(file), "--dry-run", "--rehearse", str(tmp_path / "here")) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "error: the sweep cannot start:\n  demo-ddp-nodes1, demo-fsdp-nodes1: run.config.dataset_path="
    )
    assert f"{tmp_path}/here/runs/pets" in error and not (tmp_path / "here").exists()
    assert call(monkeypatch, str(file), "--dry-run") == 0


def test_a_second_sweep_of_the_file_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with only_one(state_file(file)):
        assert call(monkeypatch, str(file)) == 2
    assert "another `stratlab sweep` is at work on it" in capsys.readouterr().err


def test_a_tuned_sweep_ends_with_no_release_left(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Candidates and comparison; what is done to the cluster has stand-ins, which note it."""
    gone: list[str] = []
    tuned: list[Any] = []
    reported = {"runs": [], "origin": {}}

    def bring(self: Any, plan: Any, state: State, **options: Any) -> tuple[State, list[str]]:
        for planned in plan:
            name = planned.release.name
            if name not in state.releases:
                state = state.record(name, stage="failed", asked=planned.asked, sentence="badly")
        return state, []

    def run_sweep(todo: Any, state: State, site: Any, choices: Any, display: Any) -> Result:
        tuned.append(choices.tuning)
        for planned, _ in todo:
            state = state.record(planned.release.name, stage="succeeded", asked=planned.asked)
        return Result(state, reported, [])

    monkeypatch.setattr(connection, "connect", lambda **_: None)
    monkeypatch.setattr(cluster_place.ClusterPlace, "bring", bring)
    monkeypatch.setattr(sweep, "decide_all", lambda plan, *rest: [(each, None) for each in plan])
    monkeypatch.setattr(sweep, "run_sweep", run_sweep)
    monkeypatch.setattr(sweep, "uninstall", lambda helm, namespace, name, context: gone.append(name))
    monkeypatch.setattr(sweep_tables, "count_steps", lambda todo: "")
    monkeypatch.setattr(sweep_tables, "print_result", lambda *given: None)
    file.write_text(
        file.read_text().replace(", run.nodes: [1, 2]", "").replace('"",', '"", run.nodes: 2,')
        + "tune: {knobs: {ddp: {reduce_bucket_mib: [50]}}, steps: 20}\n"
    )
    assert call(monkeypatch, str(file), "--uninstall") == 0
    candidates = sorted(json.loads(tuning_file(file).read_text())["releases"])
    assert candidates == ["demo-ddp-defaults", "demo-ddp-reduce-bucket-mib-50"]
    assert sorted(gone) == sorted([*candidates, "demo-ddp", "demo-fsdp"])
    assert tuned[0]["searches"][0]["why_not"] == "none of its candidates gave a number"


HELM = """#!/bin/sh
case "$1" in template|show|version) exec {helm} "$@" ;; esac
echo "$@" >> {log}
echo "Error: release: not found" >&2
exit 1
"""


def test_context_names_the_cluster_to_helm_and_to_us(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Two clusters; the current one is not there at all."""
    log = tmp_path / "helm.log"
    (tmp_path / "helm").write_text(HELM.format(helm=find_helm(), log=log))
    (tmp_path / "helm").chmod(0o755)
    monkeypatch.setenv("STRATLAB_HELM", str(tmp_path / "helm"))
    monkeypatch.setattr(sweep, "check_cluster", lambda *given: [])
    with serve(FakeApi()) as address:
        kubeconfig = yaml.safe_load(KUBECONFIG.format(address="http://127.0.0.1:1"))
        kubeconfig["contexts"].append({"name": "far", "context": {"cluster": "far", "user": "u"}})
        kubeconfig["clusters"].append({"name": "far", "cluster": {"server": address}})
        (tmp_path / "config").write_text(json.dumps(kubeconfig))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        assert call(monkeypatch, str(file), "--dry-run", "--context", "far", "--json") == 0
        releases = json.loads(capsys.readouterr().out)["releases"]
        assert [(each["name"], each["step"]) for each in releases][:2] == [
            ("demo-ddp-nodes1", "install"),
            ("demo-ddp-nodes2", "install"),
        ]
        assert releases[1]["point"] == {"strategy": "ddp", "run.nodes": 2}
        asked = log.read_text().splitlines()
        assert len(asked) == 4 and all(line.endswith("--kube-context far") for line in asked)
        assert call(monkeypatch, str(file), "--dry-run", "--context", "near") == 0
    assert "no context 'near'; there is c, far" in capsys.readouterr().out


def test_what_was_done_on_one_cluster_is_not_taken_for_another_s(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    State(state_file(file), "demo", "far/lab").record("demo-ddp-nodes1", stage="succeeded", asked="x")
    assert call(monkeypatch, str(file), "--dry-run", "--context", "near") == 2
    assert "belongs to comparison demo in namespace far/lab, the sweep says demo in near/lab" in (
        capsys.readouterr().err
    )
