"""Predictions of runs that nobody has measured yet, to be judged when somebody does.

    python -m benchmarks.backtest.forecasts reports/forecasts.csv

Three models on 1, 8, 64 and 512 H100 and H200, one micro-batch per step, nodes of 8. Each row is what `stratlab predict
--gpu` prints on the day of its commit; a later model of time does not change the file.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stratlab.predict import Prediction, predict
from stratlab.predict.timing import Speed, predict_speed
from stratlab_spec.memory.profiles import Question
from stratlab_spec.memory.recording import NotRecorded
from stratlab_spec.memory.simulated import CannotStart, simulate_run
from stratlab_spec.step_time.kernels import CARDS, Card
from stratlab_spec.strategies import STRATEGIES

MODELS = {
    "qwen2.5-3b": {"dataset": "metamathqa", "seq_len": "2048", "micro_batch_size": "2"},
    "llama-3.1-8b": {"dataset": "metamathqa", "seq_len": "4096", "micro_batch_size": "1"},
    "vit_huge": {"dataset": "timm/imagenet-1k", "micro_batch_size": "64"},
}
GPUS = (1, 8, 64, 512)
NODE_GPUS = 8
COLUMNS = (
    *("model", "gpu", "gpus", "strategy", "verdict", "on_device_gib", "step_ms", "low_ms", "high_ms"),
    *("unit", "units_per_s", "mfu_pct", "host_wait_pct", "exposed_communication_pct"),
)


def forecast(model: str, strategy: str, gpus: int, card: Card) -> tuple[Prediction, Speed] | None:
    """Return the memory and the speed of a run; None if one is not known or the run cannot start."""
    rows = int(MODELS[model]["micro_batch_size"])
    settings = {"model": model, "strategy": strategy, **MODELS[model], "global_batch_size": str(rows * gpus)}
    question = Question(strategy, settings, gpus, min(gpus, NODE_GPUS), rows, rows * gpus)
    try:
        memory = predict(question, simulate_run(question), card.memory_gib)
    except (NotRecorded, CannotStart):
        return None
    speed = predict_speed(memory, card)
    return (memory, speed) if isinstance(speed, Speed) else None


def list_rows() -> Iterator[dict[str, Any]]:
    """Yield every forecast."""
    for model in MODELS:
        for card in (CARDS["h100"], CARDS["h200"]):
            for gpus in GPUS:
                for strategy in STRATEGIES:
                    if (strategy == "single") != (
                        gpus == 1
                    ) or strategy == "nd":  # no operations with tp and pp
                        continue
                    found = forecast(model, strategy, gpus, card)
                    if found is not None:
                        yield _describe(model, card, gpus, strategy, *found)


def _describe(
    model: str, card: Card, gpus: int, strategy: str, memory: Prediction, speed: Speed
) -> dict[str, Any]:
    low, high = (speed.step_ms * (1 + pct / 100) for pct in speed.band_pct)
    return {
        "model": model,
        "gpu": card.name,
        "gpus": gpus,
        "strategy": strategy,
        "verdict": str(memory.verdict),
        "on_device_gib": round(memory.needs_gib, 2),
        "step_ms": round(speed.step_ms, 1),
        "low_ms": round(low, 1),
        "high_ms": round(high, 1),
        "unit": speed.unit,
        "units_per_s": round(speed.per_s),
        "mfu_pct": "" if speed.mfu_pct is None else round(speed.mfu_pct, 1),
        "host_wait_pct": round(speed.idle_pct, 1),
        "exposed_communication_pct": round(speed.exposed_pct, 1),
    }


def main(arguments: list[str]) -> int:
    """Write the file."""
    (name,) = arguments
    with Path(name).open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(list_rows())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
