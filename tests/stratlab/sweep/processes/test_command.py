"""The verb: a dry run with the real charts, with and without a cluster."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from stratlab import cli
from stratlab.cluster import connection
from stratlab.commands import sweep as sweep_tables
from stratlab.helm import REPOSITORY
from stratlab.sweep import State, only_one, state_file, tuning_file
from stratlab.sweep import execution as cluster_place
from stratlab.sweep import execution as sweep
from tests.codes import find_codes

SWEEP = """
comparison: demo
namespace: lab
charts: {charts}
matrix: {{strategy: [ddp], run.nodes: [1, 2]}}
set: {{run.accelerator: "", run.config.global_batch_size: 128}}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nope"))
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP.format(charts=REPOSITORY / "charts"))
    return path


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["stratlab", "sweep", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_a_dry_run_needs_no_cluster_and_starts_nothing(file, monkeypatch, capsys):
    assert call(monkeypatch, file, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "demo-ddp-nodes1" in shown and "demo-ddp-nodes2" in shown
    assert [path.name for path in file.parent.iterdir()] == ["sweep.yaml"], "no state is written"
    assert call(monkeypatch, file) == 2, "a sweep does need one"
    assert capsys.readouterr().err
    with only_one(state_file(file)):
        assert call(monkeypatch, file) == 2
    assert find_codes(capsys.readouterr().err) == ["SL-already-at-work"]


def test_what_the_trainer_refuses_is_told_before_a_cluster_is_asked(file, monkeypatch, capsys):
    given = file.read_text().replace("run.nodes: [1, 2]", "run.config.profile_steps: [3, 24]")
    file.write_text(given.replace('"",', '"", run.nodes: 1, run.processesPerNode: 2, run.config.epochs: 1,'))
    assert call(monkeypatch, file) == 2
    (line,) = capsys.readouterr().err.splitlines()[1:]
    assert "demo-ddp-ps24: run.config.profile_steps=24:" in line


def test_a_rehearsal_looks_at_data_before_its_first_run(file, monkeypatch, capsys):
    data = "run.config.dataset: imagefolder, run.config.dataset_path: /results/pets,"
    text = file.read_text().replace("[1, 2]", "[1]")
    file.write_text(text.replace('"",', f'"", run.processesPerNode: 2, run.config.model: cnn, {data}'))
    here = file.parent / "here"
    assert call(monkeypatch, file, "--dry-run", "--rehearse", here) == 2
    error = capsys.readouterr().err
    assert "run.config.dataset_path=" in error and f"{here}/runs/pets" in error and not here.exists()
    assert call(monkeypatch, file, "--dry-run") == 0


def test_a_rehearsal_prints_how_texts_are_read(file, monkeypatch, capsys):
    texts = file.parent / "chat.jsonl"
    texts.write_text(json.dumps({"question": "2 + 2?", "answer": "4", "level": 1}) + "\n")
    given = file.read_text().replace("[1, 2]", "[1]")
    data = f"run.config.model: qwen_tiny, run.config.dataset_path: {texts},"
    file.write_text(given.replace('"",', f'"", run.processesPerNode: 2, {data}'))
    assert call(monkeypatch, file, "--dry-run", "--rehearse", file.parent / "here") == 0
    shown = capsys.readouterr().out
    assert "run.config.text_columns=query=question,response=answer" in "".join(shown.split("\n"))


def test_a_tuned_sweep_ends_with_no_release_left(file, monkeypatch):
    gone: list[str] = []
    tuned: list[Any] = []

    def bring(self: Any, plan: Any, state: State, **options: Any) -> tuple[State, list[str]]:
        stage = "failed" if state.comparison == "demo-tuning" else "succeeded"
        for planned in plan:
            state = state.record(planned.release.name, stage=stage, asked=planned.asked, sentence="badly")
        return state, []

    def compare(self: Any, plan: Any, comparison: str, output: Any, tuning: Any, varied: Any) -> Any:
        tuned.append(tuning)
        return {"runs": [], "origin": {}}

    monkeypatch.setattr(connection, "connect", lambda **_: None)
    monkeypatch.setattr(cluster_place.ClusterPlace, "bring", bring)
    monkeypatch.setattr(cluster_place.ClusterPlace, "compare", compare)
    monkeypatch.setattr(sweep, "uninstall", lambda helm, namespace, name, context: gone.append(name))
    monkeypatch.setattr(sweep_tables, "print_result", lambda *given: None)
    text = file.read_text().replace(", run.nodes: [1, 2]", "").replace('"",', '"", run.nodes: 2,')
    file.write_text(f"{text}tune: {{knobs: {{ddp: {{reduce_bucket_mib: [50]}}}}, steps: 20}}\n")
    assert call(monkeypatch, file, "--uninstall") == 0
    candidates = sorted(json.loads(tuning_file(file).read_text())["releases"])
    assert candidates == ["demo-ddp-defaults", "demo-ddp-reduce-bucket-mib-50"]
    assert sorted(gone) == sorted([*candidates, "demo-ddp"])
    assert tuned[0]["searches"][0]["chosen"] == {}
