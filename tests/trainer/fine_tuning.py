"""Fine-tuning from a folder in the format of google/vit-base-patch16-224: every strategy, real workers, offline."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import fork_ranks
from tests.trainer.kept_runs import be_worker

STEPS = 3
IMAGE_SIZE = 16
RUNS = {  # strategy, processes, further settings
    "ddp": ("ddp", 2, {}),
    "zero2": ("zero2", 2, {}),
    "zero3": ("zero3", 2, {}),
    "lora": ("single", 1, {"TRAINER_LORA_RANK": "16", "TRAINER_ACTIVATION_CHECKPOINTING": "blocks"}),
}


@dataclass(frozen=True)
class Shape:
    """Of a vision transformer that sees patches of 16 x 16 of images of 224 x 224."""

    layers: int = 12
    width: int = 768
    heads: int = 12

    def write(self, folder: Path) -> Path:
        """Random weights with a head of 1000 classes, as transformers saves them; returns the folder."""
        import torch
        from transformers import ViTConfig, ViTForImageClassification

        torch.manual_seed(0)
        config = ViTConfig(
            num_hidden_layers=self.layers, hidden_size=self.width, num_attention_heads=self.heads,
            intermediate_size=4 * self.width, num_labels=1000,
        )  # fmt: skip
        ViTForImageClassification(config).save_pretrained(folder)
        return folder

    @property
    def body(self) -> int:
        """Parameters without the head, for images of one patch: one position besides that of the class."""
        width = self.width
        block = 12 * width**2 + 13 * width
        return self.layers * block + ((3 * 16 * 16 + 1) * width + width + 2 * width) + 2 * width

    def head(self, classes: int) -> int:
        return classes * (self.width + 1)

    @property
    def adapters(self) -> int:
        """Of LoRA with rank 16 on the four products of attention."""
        return self.layers * 4 * 2 * self.width * 16


def check_every_strategy_fine_tunes(
    results: Path, checkpoint: Path, shape: Shape, data: Mapping[str, str], classes: int
) -> None:
    """All start from the same weights with a new head, train the same, and LoRA starts where they do."""
    runs = {run: _fine_tune(results, checkpoint, run, data) for run in RUNS}
    for run in ("ddp", "zero2", "zero3"):
        resolved = runs[run]["resolved"]
        assert resolved["num_labels"] == classes
        assert resolved["parameters"] == resolved["trainable_parameters"] == shape.body + shape.head(classes)
        assert resolved["initial_weights_sha256"] == runs["ddp"]["resolved"]["initial_weights_sha256"]
        assert runs[run]["losses"] == pytest.approx(runs["ddp"]["losses"], abs=1e-5)
    assert runs["lora"]["resolved"]["trainable_parameters"] == shape.adapters + shape.head(classes)
    assert runs["lora"]["losses"][0] == pytest.approx(runs["ddp"]["losses"][0], abs=1e-5)  # B starts at 0
    assert runs["lora"]["losses"][1:] != pytest.approx(runs["ddp"]["losses"][1:], abs=1e-5)
    for run in runs.values():
        assert len(run["losses"]) == STEPS and run["summary"]["test_accuracy_pct"] is not None


def _fine_tune(results: Path, checkpoint: Path, run: str, data: Mapping[str, str]) -> dict[str, Any]:
    """Settings, summary and losses of one run, trained by the real worker."""
    strategy, processes, more = RUNS[run]
    env = {
        "TRAINER_RUN": run, "TRAINER_RESULTS": str(results), "TRAINER_STRATEGY": strategy,
        "TRAINER_MODEL_PATH": str(checkpoint), "TRAINER_INIT": "pretrained", "TRAINER_IMAGE_SIZE": str(IMAGE_SIZE),
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
