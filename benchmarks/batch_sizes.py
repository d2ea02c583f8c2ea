"""Find the micro-batch that fits an H100, per image model and strategy, by counting without a device.

    python -m benchmarks.batch_sizes                 # ten minutes of one core; writes reports/batch_sizes.json
    python -m benchmarks.batch_sizes --only cnn      # models whose names begin like that; others stay in the file

Peak memory of one rank of eight is counted (docs/memory.md) at the sources' micro-batch for the pair, and at twice
that. It grows by the same amount for each sample, so that the two give the largest power of two that fits.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.memory.configurations import Configuration, count_one, describe_code, warm_up

REPORT = Path("reports/batch_sizes.json")
RANKS = 8
DEVICE_GIB = 80e9 / 2**30
"""An H100 of 80 GB, as its data sheet counts."""
KEPT_FREE_GIB = 6.5
"""An estimate: CUDA's context, NCCL's buffers, workspaces of cuDNN, fragmentation; counted nowhere."""
BUDGET_GIB = DEVICE_GIB - KEPT_FREE_GIB
LARGEST = 4096
STRATEGIES = ("ddp", "zero2", "zero3")
MICRO = {  # micro-batches of ddp, zero2, zero3 in the sources
    "cnn": (32, 64, 128),
    "mobilenet": (32, 64, 128),
    "efficientnet": (16, 32, 64),
    "vgg": (8, 16, 32),
    "resnet": (16, 32, 64),
    "ensemble": (4, 8, 16),
}
NOT_COUNTED = {
    "cnn_lstm": "its LSTM has no count: the memory of cuDNN's recurrent kernels is not known beforehand"
}
SETTINGS = "dataset=cifar100 image_size=224 precision=bf16 optimizer=adamw"


def main(arguments: list[str]) -> int:
    """Count all pairs; return 0, or 1 if a count has failed."""
    parser = argparse.ArgumentParser("python -m benchmarks.batch_sizes", None, __doc__)
    parser.add_argument("--only", default="", metavar="MODEL")
    parser.add_argument("--output", type=Path, default=REPORT)
    given = parser.parse_args(arguments)
    warm_up()
    before = json.loads(given.output.read_text())["rows"] if given.output.exists() else []
    rows = [row for row in before if not row["model"].startswith(given.only)]
    for model, sizes in MICRO.items():
        for strategy, micro in zip(STRATEGIES, sizes, strict=True):
            if model.startswith(given.only):
                rows.append(measure(model, strategy, micro))
                print(rows[-1], file=sys.stderr, flush=True)
    rows.sort(key=lambda row: (list(MICRO).index(row["model"]), STRATEGIES.index(row["strategy"])))
    content = {
        "what": f"peak memory of one rank of {RANKS}, counted on fake tensors, without a device",
        "date": datetime.now(UTC).date().isoformat(),
        "code": describe_code(),
        "settings": SETTINGS,
        "ranks": RANKS,
        "budget_gib": round(BUDGET_GIB, 2),
        "not_counted": NOT_COUNTED,
        "rows": rows,
    }
    given.output.write_text(json.dumps(content, indent=1) + "\n")
    return int(any("failed" in row for row in rows))


def measure(model: str, strategy: str, micro: int) -> dict[str, Any]:
    """Return the row of a pair: model, strategy, micro_batch_size, peak_gib, per_sample_gib, fits, largest (the largest
    power of two that fits, at most LARGEST).
    """
    found = [count(model, strategy, size) for size in (micro, 2 * micro)]
    row: dict[str, Any] = {"model": model, "strategy": strategy, "micro_batch_size": micro}
    if failed := [each for each in found if isinstance(each, str)]:
        return {**row, "failed": failed[0]}
    once, twice = found
    assert not isinstance(once, str) and not isinstance(twice, str)
    per_sample = (twice - once) / micro
    return {
        **row,
        "peak_gib": round(once, 3),
        "per_sample_gib": round(per_sample, 5),
        "fits": once <= BUDGET_GIB,
        "largest": find_largest(once, per_sample, micro),
    }


def find_largest(peak_gib: float, per_sample_gib: float, micro: int) -> int:
    """Return the largest power of two whose peak is within the budget; 0 = one sample exceeds it."""
    fixed = peak_gib - per_sample_gib * micro
    size = LARGEST
    while size and fixed + per_sample_gib * size > BUDGET_GIB:
        size //= 2
    return size


def count(model: str, strategy: str, micro: int) -> float | str:
    """Return GiB, or the error."""
    batch = f"micro_batch_size={micro} global_batch_size={micro * RANKS}"
    settings = f"strategy={strategy} model={model} {SETTINGS} {batch}"
    _, found = count_one(Configuration(f"{model} {strategy} {micro}", settings, ranks=RANKS, labels=100))
    return str(found["failed"])[-300:] if "failed" in found else float(found["gib"]["peak"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
