"""Fine-tuning from a checkpoint shaped like google/vit-base-patch16-224: real loading code, real workers, offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import fork_ranks
from tests.trainer.data.cifar_like import build_cifar_like
from tests.trainer.ranks.test_worker import be_worker

STEPS = 3
RUNS = {  # strategy, processes, further settings
    "ddp": ("ddp", 2, {}),
    "zero2": ("zero2", 2, {}),
    "zero3": ("zero3", 2, {}),
    "lora": ("single", 1, {"TRAINER_LORA_RANK": "16", "TRAINER_GRAD_CHECKPOINTING": "true"}),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """86 million random weights with a head of 1000 classes, as transformers saves them."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "vit-base-patch16-224"
    ViTForImageClassification(ViTConfig(num_labels=1000)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def cifar_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_cifar_like(tmp_path_factory.mktemp("data") / "cifar-like", classes=100, train=100, test=40)


def fine_tune(results: Path, checkpoint: Path, run: str, data: dict[str, str]) -> dict[str, Any]:
    """Settings, summary and losses of one run, trained by the real worker."""
    strategy, processes, more = RUNS[run]
    env = {
        "TRAINER_RUN": run, "TRAINER_RESULTS": str(results), "TRAINER_STRATEGY": strategy,
        "TRAINER_MODEL_PATH": str(checkpoint), "TRAINER_INIT": "pretrained", "TRAINER_IMAGE_SIZE": "16",
        "TRAINER_GLOBAL_BATCH_SIZE": "32", "TRAINER_MICRO_BATCH_SIZE": "16", "TRAINER_STEPS": str(STEPS),
        "TRAINER_OPTIMIZER": "sgd", "TRAINER_LR": "0.01", "TRAINER_LOG_EVERY": "1", "TRAINER_PROFILE_STEPS": "0",
        "TRAINER_EVALUATE_EVERY": "1000", "HF_HUB_OFFLINE": "1", **data, **more,
    }  # fmt: skip
    done = fork_ranks(be_worker, processes, env=env, timeout_s=300)
    assert [r.exit_code for r in done] == [0] * processes, "\n".join(r.output[-3000:] for r in done)
    folder = results / "default" / run
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "resolved": json.loads((folder / "config.json").read_text())["resolved"],
        "summary": json.loads((folder / "summary.json").read_text()),
        "losses": [line["loss"] for line in lines if line["kind"] == "train"],
    }


@pytest.mark.parametrize("name", ["digits", "cifar-like"])
def test_every_strategy_fine_tunes_the_same_checkpoint(tmp_path, checkpoint, cifar_like, name):
    data = {"digits": {"TRAINER_DATASET": "digits"}, "cifar-like": {"TRAINER_DATASET_PATH": str(cifar_like)}}
    runs = {run: fine_tune(tmp_path, checkpoint, run, data[name]) for run in RUNS}
    classes = {"digits": 10, "cifar-like": 100}[name]
    body, head = 85_798_656, classes * 769
    for run in ("ddp", "zero2", "zero3"):
        resolved = runs[run]["resolved"]
        assert resolved["num_labels"] == classes
        assert resolved["parameters"] == resolved["trainable_parameters"] == body - PATCHES_LEFT_OUT + head
        assert resolved["initial_weights_sha256"] == runs["ddp"]["resolved"]["initial_weights_sha256"]
        assert runs[run]["losses"] == pytest.approx(runs["ddp"]["losses"], abs=1e-5)
    lora = runs["lora"]["resolved"]
    assert lora["trainable_parameters"] == 12 * 4 * 2 * 768 * 16 + head
    assert runs["lora"]["losses"][0] == pytest.approx(runs["ddp"]["losses"][0], abs=1e-5)  # B starts at 0
    assert runs["lora"]["losses"][1:] != pytest.approx(runs["ddp"]["losses"][1:], abs=1e-5)
    for run in runs.values():
        assert len(run["losses"]) == STEPS and run["summary"]["test_accuracy_pct"] is not None


# Position embeddings: 14 x 14 in the checkpoint, a single one for images of 16 pixels.
PATCHES_LEFT_OUT = (196 - 1) * 768
