"""The decoders with presets: hub ids, parameters and the dims that `nd` splits, from the table of shapes."""

from __future__ import annotations

from pathlib import Path

from stratlab_spec.models.decoder import count_parameters
from stratlab_spec.models.decoder_config import QUANTIZED, SHAPES, TEXT_HUB_IDS


def write_decoders(repository: Path) -> str:
    """Return Markdown with a row per preset; `repository` is not read."""
    rows = []
    for name, shape in SHAPES.items():
        if hub := TEXT_HUB_IDS.get(name):
            weights = "quantized: random weights only" if name in QUANTIZED else ""
            rows.append(
                f"| `{name}` | {hub} | {count_parameters(shape):,} | {', '.join(shape.dims)} | {weights} |"
            )
    return "\n".join(
        [
            "# Decoders\n",
            "Presets of `run.config.model` with the exact shape of a published decoder, generated from "
            "`stratlab_spec/models/decoder_config.py`. Parameters are unique ones. `nd` splits these dims "
            "in addition to data. [Models](../models.md#decoders) has the limits of each family.\n",
            "| preset | Hugging Face hub | parameters | `nd` splits | weights |",
            "|---|---|--:|---|---|",
            *rows,
            "",
        ]
    )
