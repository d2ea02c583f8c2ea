"""What a call of the Python API leaves, loads and configures, against what the trainer's own run has."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch

from tests.documents.commands import ROOT
from tests.programs import find_python
from tests.run_directories import list_differences
from tests.trainer.kept_runs import KEPT, read
from trainer.api import ExperimentFailed, deepspeed_config, experiment, load_data, load_model, run_experiment
from trainer.record.provenance import hash_weights

QUICK = {
    "model": "cnn", "image_size": 8, "steps": 12, "global_batch_size": 16, "micro_batch_size": 8, "lr": 3e-3,
    "profile_steps": 0,
}  # fmt: skip
GIVEN = {
    name.removeprefix("TRAINER_").lower(): value
    for name, value in KEPT.items()
    if name.startswith("TRAINER_")
}


def test_it_leaves_what_the_command_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(experiment.sys, "executable", find_python())
    monkeypatch.chdir(tmp_path)
    ours = run_experiment(strategy="single", processes=1, results="python", **QUICK)
    assert re.fullmatch(r"python/default/single-\d{8}-\d{6}", str(ours))
    pairs = ["strategy=single", "results=cli", "run=typed", *(f"{name}={QUICK[name]}" for name in QUICK)]
    command = [find_python(), "-m", "trainer", "--processes", "1"]
    command += [word for pair in pairs for word in ("--set", pair)]
    assert subprocess.run(command, capture_output=True).returncode == 0
    theirs = Path("cli/default/typed")
    assert list_differences(ours, theirs) == []
    content = read(theirs, "summary.json")
    (theirs / "summary.json").write_text(json.dumps(content | {"gradient_memory_gib": 1.0}))
    assert len(list_differences(ours, theirs)) == 1, "what compares sees one field"
    with pytest.raises(ExperimentFailed) as failed:
        run_experiment(run="odd", echo=False, **{**QUICK, "global_batch_size": 17})
    assert failed.value.exit_code == 2 and failed.value.folder == Path("results/runs/default/odd")
    assert {path.name for path in tmp_path.iterdir()} == {"python", "cli"}


def test_a_model_and_its_batches_are_those_of_the_run(uninterrupted) -> None:
    """The first line of the run's metrics, computed by hand: same weights, same samples, same augmentation."""
    folder = uninterrupted("single", 1)
    model, data = load_model(**GIVEN), load_data(**GIVEN)
    assert hash_weights(model) == read(folder, "config.json")["resolved"]["initial_weights_sha256"]
    batch = next(data.batches())
    loss, correct = (sum(parts) for parts in zip(*(model(*micro) for micro in batch.micro), strict=True))
    line = next(json.loads(line) for line in (folder / "metrics.jsonl").open() if '"train"' in line)
    assert line["step"] == 1
    assert float(loss.detach() / batch.global_labels) == pytest.approx(line["loss"], rel=1e-6)
    assert float(100 * correct / batch.global_samples) == pytest.approx(line["train_accuracy_pct"])
    assert len(list(data.batches(first_step=10))) == 3  # of 12
    assert len(data.class_names) == 10 and len(data.splits.test) == 359


def test_the_weights_that_a_run_left_have_its_accuracy(uninterrupted) -> None:
    folder = uninterrupted("single", 1)
    data, model = load_data(folder), load_model(folder)
    assert not model.training
    correct = samples = 0
    for inputs, labels in data.evaluation_batches():
        with torch.no_grad():
            found = model(inputs).argmax(1)
        correct, samples = correct + int((found == labels).sum()), samples + int((labels >= 0).sum())
    own = read(folder, "evaluation.json")
    assert samples == own["samples"] and 100 * correct / samples == pytest.approx(own["accuracy_pct"])


def test_text_is_tokenised_where_it_is_not_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"config": ROOT / "examples/llm_tiny.yaml", "seq_len": 64, "train_samples": 64, "steps": 2}
    given |= {"strategy": "single", "dimensions": None, "global_batch_size": 4, "micro_batch_size": 2}
    data, model = load_data(**given), load_model(**given)
    (inputs, labels), _ = next(data.batches()).micro
    assert inputs.shape == (2, 2, 64) and labels.shape == (2, 64) and data.class_names == []
    loss, _ = model(inputs, labels)
    assert torch.isfinite(loss)
    whole = sum(len(inputs) for inputs, _ in data.evaluation_batches("validation"))
    assert whole >= len(data.splits.validation) > 0


def test_the_configuration_of_deepspeed_is_the_run_s(uninterrupted) -> None:
    folder = uninterrupted("zero2", 2)
    asked = deepspeed_config(strategy="zero2", processes=2, device="cpu", **GIVEN)
    assert asked == read(folder, "deepspeed.json")
