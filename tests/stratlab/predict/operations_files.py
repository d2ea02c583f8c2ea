"""Operations files with round numbers, and questions to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stratlab.predict.extrapolation import Sample
from stratlab.predict.question import Question

CHUNK = 2


def held(layers: int, rows: int, ranks: int) -> dict[str, dict[str, int]]:
    """Two windows, the second one the fuller of few rows; logits stop growing at CHUNK rows."""
    state = {"parameters": (100 + 10 * layers) * 840 // ranks, "gathered": 500}
    loss = 1000 * min(rows, CHUNK)
    return {
        "forward": {**state, "activations": 7 * layers * rows, "logits and loss": loss},
        "backward, end": {**state, "gradients": 9000},
    }


SAMPLES = [
    *(Sample(layers, rows, 8, 0, held(layers, rows, 8)) for layers in (4, 8) for rows in (1, 2, 4)),
    *(Sample(layers, 4, 2, 0, held(layers, 4, 2)) for layers in (4, 8)),
]
SETTINGS: dict[str, Any] = {
    "model": "qwen2.5-3b",
    "strategy": "fsdp",
    "seq_len": 2048,
    "packing": True,
    "precision": "bf16",
    "activation_checkpointing": "none",
    "loss_chunk_tokens": 2048,
    "lora_rank": 0,
}
DEFAULTS = {**SETTINGS, "model": "vit_tiny", "strategy": "single", "seq_len": 512}


def write_file(folder: Path, settings: dict[str, Any] | None = None, **others: Any) -> Path:
    """Of fsdp on 8 ranks, unless `settings` say otherwise; they are in both tables, as a count writes them."""
    given = settings or {}
    of_all = {name: SETTINGS.get(name, value) for name, value in given.items()}
    content = {
        "schema_version": 1,
        "key": "0123",
        "settings": SETTINGS | given,
        "defaults": DEFAULTS | of_all,
        "layers": 36,
        **dict.fromkeys(("scales_depth", "scales_ranks", "accumulates"), True),
        **dict.fromkeys(("labels", "channels"), 0),
        "versions": {},
        "samples": [
            {
                "layers": s.layers,
                "rows": s.rows,
                "ranks": s.ranks,
                "rank": 0,
                "windows": s.windows,
                "axes": {},
            }
            for s in SAMPLES
        ],
        **others,
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps(content))
    return path


def ask(settings: dict[str, str], ranks: int = 8, global_batch: int = 0, whole: bool = True) -> Question:
    """Micro-batches of one row; a step of `global_batch`, where 0 is several."""
    return Question("x", settings, ranks, ranks, rows=1, global_batch=global_batch, whole=whole)
