from __future__ import annotations

from tests.codes import find_codes
from trainer.layout.shape_rules import shape_problems
from trainer.settings.config import Config


def test_rules_of_mesh_and_placement_come_together():
    batch = {"global_batch_size": 9, "micro_batch_size": 3}
    asked = Config(run="x", strategy="zero3", compile=True, model="vit_tiny", dataset="synthetic", **batch)
    assert {"SL-axes-batch-indivisible", "SL-deepspeed-compile"} <= set(
        find_codes(shape_problems(asked, 2, 2))
    )
