"""What offloading takes from the device is found again in host memory, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ranks import run_ranks

STATE = ("parameters", "master copies", "gradients", "optimizer state")
PLACES = [
    *(("fsdp", "all"), ("zero2", "optimizer")),
    *(("zero1", "optimizer"), ("zero3", "optimizer"), ("zero3", "all"), ("hsdp", "all"), ("zeropp", "all")),
]
LEAVE = {
    "optimizer": ("master copies", "optimizer state"),
    "all": ("parameters", "master copies", "optimizer state"),
}
SMALL = 0.01
"""Share of the parameters that may stay on the device: those below `persistent_elements`, buffers."""


@pytest.mark.parametrize(("strategy", "offload"), PLACES)
def test_state_leaves_the_device(strategy: str, offload: str, tmp_path: Path) -> None:
    def run() -> None:
        from trainer.counting.inputs import find_pictures
        from trainer.counting.steps import count
        from trainer.settings.config import Config

        given = {"model": "vit_base", "dataset": "synthetic", "model_layers": 2, "precision": "bf16"}
        batch = {"micro_batch_size": 4, "global_batch_size": 32}
        found = {}
        for place in ("none", offload):
            config = Config(run="x", strategy=strategy, offload=place, **given, **batch)
            counted = count(config, 4, 0, find_pictures(config, 10, 3), per_node=2)
            found[place] = {
                "device": counted.windows["optimizer"].by_cause(),
                "between": counted.between.by_cause(),
                "peak": counted.peak.by_cause(),
                "host": counted.host.by_cause(),
                "total": (counted.peak.total, counted.host.total),
            }
        (tmp_path / "found.json").write_text(json.dumps(found))

    run_ranks(run, 1)
    found = json.loads((tmp_path / "found.json").read_text())
    without, moved = found["none"], found[offload]
    assert without["total"][1] == 0, "nothing is on the host where nothing is offloaded"
    for cause in LEAVE[offload]:
        held = without["between"][cause]
        assert moved["host"][cause] >= (1 - SMALL) * held, cause
        assert moved["between"][cause] <= SMALL * held, cause
    for cause in ("activations", "data", "logits and loss"):
        assert moved["peak"][cause] == without["peak"][cause], cause
    assert moved["total"][0] < without["total"][0]
