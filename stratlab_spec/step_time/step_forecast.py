"""The forecast of a run's step time, by part, and how it compares with the measurement.

    settings, ranks, device's name ─▶ forecast_step_time ─▶ config.json ─┬─▶ summary.json: total and phases, each run
                                                                         └─▶ analysis/report.json: parts, with traces

A forecast needs a card of kernels.CARDS. A CPU is none of them, so such a run has a reason instead of a forecast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.memory.recording import NotRecorded
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.step_time.collectives import EFA_P5
from stratlab_spec.step_time.kernels import find_card_of_device
from stratlab_spec.step_time.measured_machine import MeasuredMachine
from stratlab_spec.step_time.time_prediction import predict_step_time
from stratlab_spec.strategies import STRATEGIES

STEP_FORECAST = "step_time_forecast"
"""In `resolved` of config.json."""
BAND_PCT = (-30, 30)
"""Of a step on a machine that has not been measured: an uncalibrated predictor is 9 to 16 % off in the mean on public
tables, and equal machines of several makers differ by 6 to 38 %."""
HOST_BOUND_PCT = (-10, 100)
"""The same under stage 3, and of compiled shards: our runs on an H200 and an H100 took 1.3 to 1.9 times as long as
predicted, because the host does more there than its records show."""
PHASES = ("data", "forward", "backward", "optimizer")
COMPUTE, COMMUNICATION, HOST, REST = "compute", "comm", "host", "other_idle"
OF_STEP_PARTS: Mapping[str, tuple[str, ...]] = {
    COMPUTE: ("compute", "copy", "kernel_wait"),
    COMMUNICATION: ("comm", "straggler", "bubble"),
    HOST: ("host", "launch"),
    REST: ("data", "other_idle"),
}
"""Part of a forecast -> the keys of step_parts that it stands for. Kernel times have the short gaps after kernels and
the batch's copy in them."""


def find_band(config: Config) -> tuple[int, int]:
    """Return how far a step may be from its forecast, in percent of the forecast."""
    return HOST_BOUND_PCT if _is_host_bound(config) else BAND_PCT


def find_measured_band(config: Config, ranks: int, of_node: int, machine: MeasuredMachine) -> tuple[int, int]:
    """Return the same on a calibrated machine, from the uncertainties of its scalars."""

    def predict(moved: MeasuredMachine) -> float:
        return predict_step_time(config, ranks, of_node, moved.card, moved.host, moved.links).step_ms

    return machine.find_band_pct(predict, _is_host_bound(config))


def _is_host_bound(config: Config) -> bool:
    sharded = config.strategy in ("fsdp", "hsdp", "zero1", "zero2", "nd")
    return STRATEGIES[config.strategy].deepspeed_stage == 3 or (config.compile and sharded)


def forecast_step_time(config: Config, ranks: int, per_node: int, device_name: str) -> dict[str, Any]:
    """Return the forecast for config.json; without one, `step_ms` is None and `reason` says why."""
    card = find_card_of_device(device_name)
    if card is None:
        return _without(f"no rates of {device_name}")
    if config.mode != "train":
        return _without(f"mode={config.mode}")
    try:
        time = predict_step_time(config, ranks, per_node, card)
    except (NotRecorded, DataMissing) as failure:
        return _without(f"no recorded operations for {failure}")
    except ConfigError as failure:
        return _without("; ".join(failure.problems))
    line = time.timeline
    parts = {COMPUTE: line.device_s, COMMUNICATION: line.exposed_s, HOST: line.idle_s}
    parts[REST] = max(0.0, line.step_s - sum(parts.values()))
    return {
        "step_ms": time.step_ms,
        "reason": None,
        "card": card.name,
        "network": EFA_P5.name if ranks > per_node else None,
        "band_pct": [*find_band(config)],
        "parts_ms": {name: 1e3 * seconds for name, seconds in parts.items()},
        "phases_ms": {name: 1e3 * line.phases.get(name, 0.0) for name in PHASES},
    }


def _without(reason: str) -> dict[str, Any]:
    return {"step_ms": None, "reason": reason}


def describe_forecast(forecast: Mapping[str, Any]) -> str:
    """Return `90.2 ms on h200 (-30 to +30 %): compute 90.2, ...`; without a forecast, the reason."""
    if forecast["step_ms"] is None:
        return f"not known: {forecast['reason']}"
    low, high = forecast["band_pct"]
    parts = ", ".join(f"{name} {ms:.1f}" for name, ms in forecast["parts_ms"].items() if ms >= 0.05)
    return f"{forecast['step_ms']:.1f} ms on {forecast['card']} ({low:+d} to {high:+d} %): {parts}"


def find_late_part(
    forecast: Mapping[str, Any], measured_ms: float, errors_ms: Mapping[str, float]
) -> str | None:
    """Return the part with the largest error in the step's direction if the step is outside its band; None inside.

    Args:
        errors_ms: part -> forecast less measured.
    """
    low, high = forecast["band_pct"]
    off_pct = 100.0 * (measured_ms / forecast["step_ms"] - 1.0)
    if low <= off_pct <= high:
        return None
    sign = -1.0 if off_pct > 0 else 1.0
    return max(errors_ms, key=lambda name: sign * errors_ms[name], default=REST)


def compare_step(forecast: Mapping[str, Any] | None, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the forecast's numbers for the summary; empty without a forecast or without timed steps.

    Args:
        forecast: of config.json.
        measured: medians of the timed steps, by their names in summary.json.
    """
    step_ms = measured.get("step_time_ms_p50")
    if not forecast or forecast["step_ms"] is None or not step_ms:
        return {}
    errors = {
        name: forecast["phases_ms"][name] - known
        for name in PHASES
        if (known := measured.get(f"{name}_ms_p50")) is not None
    }
    return {
        "forecast_step_ms": forecast["step_ms"],
        "forecast_step_error_pct": 100.0 * (forecast["step_ms"] / step_ms - 1.0),
        **{f"forecast_{name}_error_ms": ms for name, ms in errors.items()},
        "forecast_step_deviates": find_late_part(forecast, step_ms, errors),
    }


def compare_parts(forecast: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the forecast next to the measured parts of recorded steps, for report.json.

    Args:
        forecast: of config.json, as it was read; empty = a run from before forecasts, or of another program.
        parts: of report.json, measured on a GPU; empty = no traces.
    """
    if not _is_forecast(forecast):
        return _without(str(forecast.get("reason") or "the run has no forecast"))
    sums = {
        name: sum(part["ms"] or 0.0 for part in parts if part["part"] in keys)
        for name, keys in OF_STEP_PARTS.items()
    }
    if not (measured_ms := sum(sums.values())):
        return _without("no recorded steps of a GPU")
    foreseen = {name: forecast["parts_ms"].get(name, 0.0) for name in sums}
    return {
        "step_ms": forecast["step_ms"],
        "reason": None,
        "card": forecast.get("card"),
        "band_pct": forecast["band_pct"],
        "error_pct": 100.0 * (forecast["step_ms"] / measured_ms - 1.0),
        "parts": [{"part": name, "ms": foreseen[name], "measured_ms": sums[name]} for name in sums],
        "deviates": find_late_part(
            forecast, measured_ms, {name: foreseen[name] - sums[name] for name in sums}
        ),
    }


def _is_forecast(read: Mapping[str, Any]) -> bool:
    """Return whether a file of anybody has a forecast in its form."""
    parts, band = read.get("parts_ms"), read.get("band_pct")
    if not (isinstance(parts, dict) and isinstance(band, list) and len(band) == 2):
        return False
    numbers = [read.get("step_ms"), *band, *parts.values()]
    known = [isinstance(one, int | float) and not isinstance(one, bool) for one in numbers]
    return all(known) and read["step_ms"] > 0
