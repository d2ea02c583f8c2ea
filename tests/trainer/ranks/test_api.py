"""What a call of the Python API loads and configures, against what the trainer's own run has."""

import json
from pathlib import Path

import pytest
import torch

from tests.documents.commands import ROOT
from tests.trainer.kept_runs import KEPT, read
from trainer.api import deepspeed_config, load_data, load_model
from trainer.run import hash_weights

GIVEN = {
    name.removeprefix("TRAINER_").lower(): value
    for name, value in KEPT.items()
    if name.startswith("TRAINER_")
}


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
