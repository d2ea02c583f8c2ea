"""What `load_model`, `load_data` and `deepspeed_config` give, against what real runs of the same settings had."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.documents.commands import ROOT, read_commands, split
from tests.trainer.kept_runs import KEPT, read
from trainer.api import ConfigError, DataMissing, deepspeed_config, load_data, load_model
from trainer.api.command import main
from trainer.record.provenance import hash_weights

GIVEN = {
    name.removeprefix("TRAINER_").lower(): value
    for name, value in KEPT.items()
    if name.startswith("TRAINER_")
}


def test_a_model_and_its_batches_are_those_of_the_run(uninterrupted, tmp_path: Path) -> None:
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


def test_the_configuration_is_the_run_s(uninterrupted) -> None:
    folder = uninterrupted("zero3", 2)
    asked = deepspeed_config(strategy="zero3", processes=2, device="cpu", **GIVEN)
    assert asked == read(folder, "deepspeed.json")


@pytest.mark.parametrize("command", [c for c in read_commands() if " trainer.settings deepspeed --" in c])
def test_the_documents_command(command: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    assert main(split(command)[4:]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["zero_optimization"]["stage"] == 3 and printed["gradient_clipping"] == 0.0
    hpz = printed["zero_optimization"]["zero_hpz_partition_size"]
    assert hpz == (2 if "zeropp" in command else 1)
    assert printed["flops_profiler"]["enabled"] is ("flops_profiler" in command)
    assert printed["bf16"]["enabled"] is False and printed["communication_data_type"] == "fp32"


def test_what_a_gpu_changes() -> None:
    zero3 = deepspeed_config(strategy="zero3", processes=2, offload="all", precision="bf16_native", **GIVEN)
    section = zero3["zero_optimization"]
    assert section["stage"] == 3 and section["offload_param"] == {"device": "cpu", "pin_memory": True}
    assert zero3["bf16"]["enabled"] and zero3["train_micro_batch_size_per_gpu"] == 8
    zeropp = deepspeed_config(strategy="zeropp", processes=2, nodes=2, **GIVEN)
    assert zeropp["zero_optimization"]["zero_hpz_partition_size"] == 2
    assert zeropp["gradient_accumulation_steps"] == 1


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(
        ConfigError, match="'ddp': not DeepSpeed's; expected one of zero1, zero2, zero3, zeropp"
    ):
        deepspeed_config(strategy="ddp", processes=2)
    with pytest.raises(ConfigError, match="hpz has no effect on one node"):
        deepspeed_config(strategy="zeropp", processes=2)
    with pytest.raises(ConfigError, match="processes='0': expected a number from 1"):
        deepspeed_config(strategy="zero1", processes=0)
    with pytest.raises(ConfigError, match="device='tpu': expected cuda or cpu"):
        deepspeed_config(strategy="zero1", processes=1, device="tpu")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="^lrr: unknown setting"):
        load_data(lrr=1)


def test_beside_a_run_directory_stands_nothing_else(uninterrupted, tmp_path: Path) -> None:
    folder = uninterrupted("single", 1)
    with pytest.raises(ConfigError, match="lr: not beside a run directory, whose settings hold"):
        load_model(folder, lr=1e-3)
    with pytest.raises(ConfigError, match="not a run directory"):
        load_model(tmp_path)
    with pytest.raises(DataMissing, match="no model in Hugging Face format"):
        load_model(folder, weights=str(tmp_path))


def test_the_command_says_it_in_a_sentence() -> None:
    command = [sys.executable, "-m", "trainer.settings", "deepspeed", "--set", "strategy=fsdp"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    assert "'fsdp': not DeepSpeed's" in done.stderr
