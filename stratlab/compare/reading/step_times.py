"""The step times of a run: one number of each kind for the whole comparison, with where it comes from."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from stratlab.compare.reading.warmup import find_cut
from stratlab.run_directory.files import is_number
from stratlab.run_directory.record import RunRecord

PHASE_TIMES = ("data_ms", "forward_ms", "backward_ms", "optimizer_ms")
FROM_SUMMARY = (
    *("samples_per_s", "step_time_ms_p50", "step_time_ms_p95", "measured_steps", "mfu_pct"),
    *("tokens_per_s", "useful_tokens_per_s", "useful_tokens_pct"),  # of text
    *("mfu_literature_pct", "mfu_useful_pct"),
    *(f"{name}_p50" for name in PHASE_TIMES),
)


def build_step_times(run: RunRecord) -> dict[str, Any]:
    """Throughput and times of the steps behind the warm-up; of summary.json where metrics.jsonl has none.

    Throughput is what a step of the median time does on the average: of two runs with equal steps the one with the
    shorter median step is the faster one in every number and sentence. (That of summary.json is over the mean time.)

    Returns:
        the names of FROM_SUMMARY, step_time_ms_mean, step_times_from (metrics.jsonl | summary.json | None) and warmup:
        {steps: left out at the beginning, first_step: that counts, method, settled}, None from a summary.
    """
    lines = _undisturbed(run)
    times = [line["step_time_ms"] for line in lines]
    cut = find_cut(times)
    kept, counted = lines[cut.steps :], times[cut.steps :]
    if not counted or run.status != "finished":
        found = {name: run.summary.get(name) for name in FROM_SUMMARY}
        return {
            **found,
            "step_time_ms_mean": None,
            "step_times_from": "summary.json" if found["step_time_ms_p50"] is not None else None,
            "warmup": None,
        }
    step_ms = statistics.median(counted)
    seconds = len(counted) * step_ms / 1e3
    samples, tokens, useful = (_sum(kept, name) for name in ("samples", "tokens", "useful_tokens"))
    samples_per_s, tokens_per_s = _divide(samples, seconds), _divide(tokens, seconds)
    useful_per_s, useful_share = _divide(useful, seconds), _divide(useful, tokens)
    return {
        "samples_per_s": samples_per_s,
        "tokens_per_s": tokens_per_s,
        "useful_tokens_per_s": useful_per_s,
        "useful_tokens_pct": None if useful_share is None else 100 * useful_share,
        "step_time_ms_p50": step_ms,
        "step_time_ms_p95": find_quantile(counted, 0.95),
        "step_time_ms_mean": statistics.fmean(counted),
        "measured_steps": len(counted),
        "mfu_pct": _mfu_pct(run.summary, samples_per_s, "flops_per_sample"),
        "mfu_literature_pct": _mfu_pct(run.summary, tokens_per_s, "flops_per_token_literature"),
        "mfu_useful_pct": _mfu_pct(run.summary, useful_per_s, "flops_per_useful_token"),
        **{f"{name}_p50": _median([line.get(name) for line in kept]) for name in PHASE_TIMES},
        "step_times_from": "metrics.jsonl",
        "warmup": {
            "steps": cut.steps,
            "first_step": kept[0]["step"],
            "method": cut.method,
            "settled": cut.settled,
        },
    }


def find_quantile(values: Sequence[float], share: float) -> float:
    """The value at this share of the ordered ones, as the trainer finds its p95."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def _undisturbed(run: RunRecord) -> list[dict[str, Any]]:
    """Training steps in order, without the profiled ones and the one after them, which writes the traces."""
    newest = {
        line["step"]: line
        for line in run.metrics
        if line.get("kind") == "train" and is_number(line.get("step")) and is_number(line.get("step_time_ms"))
    }
    profiled = {step for step, line in newest.items() if line.get("profiled")}
    return [newest[s] for s in sorted(newest) if s not in profiled and s - 1 not in profiled]


def _mfu_pct(summary: dict[str, Any], units_per_s: float | None, cost: str) -> float | None:
    """Model FLOP utilisation as the trainer defines it (PaLM, arXiv 2204.02311, appendix B).

    Args:
        units_per_s: samples, or tokens.
        cost: the field of the summary that says what one of them costs.
    """
    flops, peak, ranks = (summary.get(name) for name in (cost, "peak_flops_per_device", "world_size"))
    if not (units_per_s and is_number(flops) and is_number(peak) and is_number(ranks) and peak and ranks):
        return None
    return float(100 * units_per_s * flops / (peak * ranks))


def _sum(lines: Sequence[dict[str, Any]], name: str) -> float | None:
    """None where a line does not tell."""
    known = [line[name] for line in lines if is_number(line.get(name))]
    return float(sum(known)) if len(known) == len(lines) else None


def _divide(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _median(values: Sequence[Any]) -> float | None:
    return statistics.median(values) if values and all(is_number(v) for v in values) else None
