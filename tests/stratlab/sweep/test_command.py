"""The verb: a dry run with the real charts, with and without a cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stratlab import cli
from stratlab.rendering.helm import REPOSITORY
from stratlab.sweep.state import only_one, state_file
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
    api = FakeApi()
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
    assert "minimum: got 0, want 1" in error and "modl: did you mean model?" in error
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


def test_a_second_sweep_of_the_file_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with only_one(state_file(file)):
        assert call(monkeypatch, str(file)) == 2
    assert "another `stratlab sweep` is at work on it" in capsys.readouterr().err
