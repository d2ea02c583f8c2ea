"""The forecast beside what a run has measured: by how much they differ, and which part it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BAND_PCT = 5.0
"""A peak outside of it is marked. Of counts by operators (docs/memory.md), with the allocator's rounding."""
PARTS = {
    "parameters": ("parameters", "master copies"),
    "gradients": ("gradients",),
    "optimizer": ("optimizer state",),
    "buckets": ("gradient buckets",),
    "teacher": ("teacher",),
}
"""What a run tells apart -> causes of a count; `rest` is all others."""
REST = "rest"


def compare_forecast(
    forecast: Mapping[str, Any] | None, measured_gib: float | None, ranks: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Numbers for the summary; none where nothing was foreseen.

    Args:
        forecast: of config.json.
        measured_gib: peak of the device's memory; None on a CPU.
        ranks: the facts of every rank.
    """
    if not forecast:
        return {}
    found: dict[str, Any] = {"forecast_memory_gib": forecast["peak_gib"]}
    if measured_gib is None:
        return found
    error_pct = 100.0 * (forecast["peak_gib"] / measured_gib - 1.0)
    by_part = _errors(forecast["causes_gib"], ranks)
    marked = find_deviating(error_pct, by_part, forecast["at_most"])
    return {
        **found,
        "forecast_memory_error_pct": error_pct,
        **{f"forecast_{name}_error_gib": gib for name, gib in by_part.items()},
        "forecast_memory_deviates": marked,
    }


def find_deviating(error_pct: float, errors: Mapping[str, float], at_most: bool = False) -> str | None:
    """The part that is furthest off, of a peak outside of its band; None inside.

    Args:
        errors: part -> foreseen less measured.
        at_most: what was foreseen is an upper bound: less is no deviation.
    """
    if -BAND_PCT <= error_pct <= BAND_PCT or (error_pct > BAND_PCT and at_most):
        return None
    return max(errors, key=lambda name: abs(errors[name]), default=REST)


def _errors(causes: Mapping[str, float], ranks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Foreseen less measured, GiB, of each part of the rank that held most."""
    known = [rank["training_memory"] for rank in ranks if rank["training_memory"] is not None]
    if not known:
        return {}
    held = max(known, key=lambda memory: float(memory["peak_gib"]))["held_gib"]
    foreseen = {part: sum(causes.get(name, 0.0) for name in names) for part, names in PARTS.items()}
    foreseen[REST] = sum(causes.values()) - sum(foreseen.values())
    return {part: gib - held.get(part, 0.0) for part, gib in foreseen.items() if gib or held.get(part)}
