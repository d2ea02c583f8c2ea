"""The forecast beside what a run has measured: by how much they differ, and which part it is.

peak of the device ──────────────┐
engine's state, as walked ───────┼─▶ foreseen less measured, by part ─▶ outside of the band: the part furthest off
what else is kept between steps ─┘
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BAND_PCT = 5.0
"""A peak outside of it is marked. Of counts by operators (docs/memory.md), with the allocator's rounding."""
PARTS = {
    "parameters": ("parameters", "master copies"),
    "gradients": ("gradients", "gradient buckets"),
    "optimizer": ("optimizer state",),
    "teacher": ("teacher",),
}
"""What a run tells apart of an engine's state -> causes of a count. Buckets of DDP hold the gradients themselves."""
MEASURED = {"gradients": ("gradients", "buckets")}
"""Parts that a run measures under several names; others have their own."""
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
    if measured_gib is None:
        return {"forecast_memory_gib": forecast["peak_gib"]}
    foreseen_gib = forecast["peak_gib"] + forecast["workspace_gib"]
    found: dict[str, Any] = {"forecast_memory_gib": foreseen_gib}
    error_pct = 100.0 * (foreseen_gib / measured_gib - 1.0)
    by_part = _errors(forecast, foreseen_gib - measured_gib, ranks)
    marked = find_deviating(error_pct, by_part, forecast["at_most"])
    return {
        **found,
        "forecast_memory_error_pct": error_pct,
        **{f"forecast_{name}_error_gib": gib for name, gib in by_part.items()},
        "forecast_memory_deviates": marked,
    }


def find_deviating(error_pct: float, errors: Mapping[str, float], at_most: bool = False) -> str | None:
    """The part that is furthest off in the peak's direction, of a peak outside of its band; None inside.

    Args:
        errors: part -> foreseen less measured.
        at_most: what was foreseen is an upper bound: less is no deviation.
    """
    if -BAND_PCT <= error_pct <= BAND_PCT or (error_pct > BAND_PCT and at_most):
        return None
    sign = 1.0 if error_pct > 0 else -1.0
    return max(errors, key=lambda name: sign * errors[name], default=REST)


def _errors(
    forecast: Mapping[str, Any], off_gib: float, ranks: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Foreseen less measured, GiB, of each part of the rank that held most; they add up to the peak's, `off_gib`.

    The engine's state is compared as it is at the update, where it is whole: at the peak a part of the gradients may
    not be there yet. What is not state, nor kept beside it, is the rest.
    """
    known = [rank["training_memory"] for rank in ranks if rank["training_memory"] is not None]
    if not known:
        return {}
    fullest = max(known, key=lambda memory: float(memory["peak_gib"]))
    state, kept = fullest["state_gib"], fullest["kept_gib"] or {}
    update = forecast["update_gib"]
    errors = {}
    for part, causes in PARTS.items():
        foreseen = sum(update.get(name, 0.0) for name in causes)
        measured = sum(state.get(name, 0.0) for name in MEASURED.get(part, (part,)))
        if foreseen or measured:
            errors[part] = foreseen - measured
    for part, gib in kept.items():
        errors[part] = errors.get(part, 0.0) - gib
    errors[REST] = off_gib - sum(errors.values())
    return errors
