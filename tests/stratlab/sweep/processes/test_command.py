"""The verb: a dry run with the real charts, with and without a cluster."""

import json

import pytest

from stratlab.helm import REPOSITORY
from stratlab.sweep.state import only_one, state_file
from tests.codes import find_codes

SWEEP = """
comparison: demo
namespace: lab
charts: {charts}
matrix: {{strategy: [ddp], run.nodes: [1, 2]}}
set: {{run.accelerator: "", run.config.global_batch_size: 128}}
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nope"))
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP.format(charts=REPOSITORY / "charts"))
    return path


def test_a_dry_run_needs_no_cluster_and_starts_nothing(file, stratlab):
    code, shown, _ = stratlab("sweep", file, "--dry-run")
    assert code == 0 and "demo-ddp-nodes1" in shown and "demo-ddp-nodes2" in shown
    assert [path.name for path in file.parent.iterdir()] == ["sweep.yaml"], "no state is written"
    code, _, err = stratlab("sweep", file)
    assert code == 2 and err, "a sweep does need one"
    with only_one(state_file(file)):
        code, _, err = stratlab("sweep", file)
    assert code == 2 and find_codes(err) == ["SL-already-at-work"]


def test_a_rehearsal_prints_how_texts_are_read(file, stratlab):
    texts = file.parent / "chat.jsonl"
    texts.write_text(json.dumps({"question": "2 + 2?", "answer": "4", "level": 1}) + "\n")
    given = file.read_text().replace("[1, 2]", "[1]")
    data = f"run.config.model: qwen_tiny, run.config.dataset_path: {texts},"
    file.write_text(given.replace('"",', f'"", run.processesPerNode: 2, {data}'))
    code, shown, _ = stratlab("sweep", file, "--dry-run", "--rehearse", file.parent / "here")
    assert code == 0 and "run.config.text_columns=query=question,response=answer" in "".join(
        shown.split("\n")
    )
