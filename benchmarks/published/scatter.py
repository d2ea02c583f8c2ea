"""Measure the scatter of published figures: repeats of one system, and equal machines of several makers.

`stratlab expect` and `stratlab predict` call runs nearer than 6 % a tie across machines; this is where that comes from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from benchmarks.published.sources import OWN, read_table

FEWEST = 5
"""Repeats or machines of a group."""


def _group(
    rows: Iterable[dict[str, str]], keys: tuple[str, ...], value: str
) -> dict[tuple[str, ...], list[float]]:
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows:
        found[tuple(row[key] for key in keys)].append(float(row[value]))
    return found


def spread_pct(values: list[float]) -> float:
    """Return (largest - smallest) / median in percent."""
    return 100 * (max(values) - min(values)) / median(values)


def deviation_pct(values: list[float]) -> float:
    """Return the standard deviation in percent of the mean."""
    mean = sum(values) / len(values)
    return 100 * (sum((one - mean) ** 2 for one in values) / (len(values) - 1)) ** 0.5 / mean


def list_scatter() -> dict[str, list[float]]:
    """Return kind -> percent of each group, ascending."""
    logs = [row for row in read_table(OWN, "mlperf_training_llm") if row["status"] == "success"]
    system = ("round", "submitter", "system", "accelerators", "global_batch")
    repeats = [
        deviation_pct(one) for one in _group(logs, system, "throughput").values() if len(one) >= FEWEST
    ]
    found = {"repeats of one system, standard deviation": repeats}
    equal = _group(read_table(OWN, "lambda_ddp_hopper"), ("gpu", "form", "gpus", "task"), "throughput")
    for (card, _, gpus, _), values in equal.items():
        if gpus == "8" and len(values) >= FEWEST:
            found.setdefault(f"{len(values)} machines of 8 x {card}, range", []).append(spread_pct(values))
    return {name: sorted(values) for name, values in found.items()}
