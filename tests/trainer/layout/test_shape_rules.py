from __future__ import annotations

from stratlab_spec.layout.mesh_rules import shape_problems
from stratlab_spec.settings.config import Config
from tests.codes import find_codes


def test_rules_of_mesh_and_placement_come_together():
    batch = {"global_batch_size": 9, "micro_batch_size": 3}
    asked = Config(run="x", strategy="zero3", compile=True, model="vit_tiny", dataset="synthetic", **batch)
    assert {"SL-axes-batch-indivisible", "SL-deepspeed-compile"} <= set(
        find_codes(shape_problems(asked, 2, 2))
    )
