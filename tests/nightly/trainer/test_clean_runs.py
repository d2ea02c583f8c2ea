"""Runs as they are, counted whole, lie in the band of what an operations file foresees: twenty, none is marked.

Foreseen is from other depths, other micro-batches and, where the strategy lets it, another number of ranks.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.nightly.trainer.test_scaled_operations import environment
from tests.ranks import run_ranks
from tests.trainer.counting.real_steps import make_config

TEXT = (
    "model=qwen_tiny dataset=arithmetic precision=bf16 seq_len=256 loss_chunk_tokens=256 model_vocab=8192 "
    "model_layers=14"
)
STRATEGIES = {
    "ddp": "strategy=ddp",
    "fsdp": "strategy=fsdp",
    "zero2": "strategy=zero2",
    "nd": "strategy=nd layout=given dp_shard=8",
}
RANKS = 8
RUNS = [(1, 12), (2, 12), (3, 12), (4, 14), (6, 14)]
"""Rows and layers; five of each strategy are twenty."""


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_clean_run_is_marked(strategy: str, tmp_path: Path) -> None:
    """Whole counts, against what one operations file foresees."""

    def run() -> None:
        from stratlab.predict.operations_file import read_operations_file
        from trainer.counting.inputs import find_pictures
        from trainer.counting.operations import build_operations
        from trainer.counting.steps import count
        from trainer.forecast.deviation import find_deviating

        asked = environment(f"{TEXT} {STRATEGIES[strategy]}", 2, 32)
        path = tmp_path / "operations.json"
        path.write_text(json.dumps(build_operations(asked, RANKS, RANKS, say=lambda text: None)))
        file = read_operations_file(path)
        for rows, layers in RUNS:
            text = f"{TEXT} {STRATEGIES[strategy]}".replace("model_layers=14", f"model_layers={layers}")
            config = make_config(f"{text} micro_batch_size={rows} global_batch_size={2 * rows * RANKS}")
            found = count(config, RANKS, 0, find_pictures(config)).peak
            foreseen = file.peak(rows, RANKS, layers)
            errors = {name: foreseen.causes.get(name, 0) - size for name, size in found.by_cause().items()}
            error_pct = 100 * (foreseen.total / found.total - 1)
            assert find_deviating(error_pct, errors) is None, (rows, layers, error_pct, errors)

    run_ranks(run, 1)
