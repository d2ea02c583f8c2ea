"""The batches of the image models that fit one H100, from the kept counts."""

from __future__ import annotations

import json
from pathlib import Path

REPORT = Path("reports/batch_sizes.json")
HEAD = """# Batches that fit an H100

Micro-batch per rank on 8 ranks with images of 224 pixels, bf16, AdamW and 100 classes. Each cell has a usual size, its
peak, and the largest power of two that fits, up to 4096. The figures are **counted** (`python -m
benchmarks.batch_sizes` writes `reports/batch_sizes.json`), not measured. The limit is 68.0 GiB: 80 GB without 6.5 GiB
for CUDA, NCCL and workspaces (an estimate). `stratlab predict` has [another limit](../predict.md#read-the-answer).

| model | ddp | zero2 | zero3 |
|---|---|---|---|
"""
END = """
`cnn_lstm` cannot be counted: the memory of cuDNN's recurrent kernels is not known in advance. The state of these models
is below 2 GiB, so ZeRO does not make their batches larger.
"""


def write_batches(repository: Path) -> str:
    """Return Markdown with a row per model."""
    cells: dict[str, list[str]] = {}
    for row in json.loads((repository / REPORT).read_text())["rows"]:
        cell = f"{row['micro_batch_size']}: {row['peak_gib']:.2f} GiB, up to {row['largest']}"
        cells.setdefault(row["model"], []).append(cell)
    return HEAD + "".join(f"| `{model}` | {' | '.join(row)} |\n" for model, row in cells.items()) + END
