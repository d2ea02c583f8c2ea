"""The run's final numbers, one flat object; every name ends in its unit."""

from __future__ import annotations

import statistics
from typing import Any

from trainer.forecast.deviation import compare_forecast
from trainer.forecast.memory import FORECAST
from trainer.outcome.peak_flops import read_peak_flops
from trainer.outcome.tracking import TIMES, Work
from trainer.record.rungs import RUNGS
from trainer.settings.config import Config
from trainer.settings.starting_weights import INITIAL_WEIGHTS, describe_starting_weights
from trainer.tasks.measures import Evaluation

FROM_RESOLVED = (
    "backend",
    "device_type",
    "device_name",
    "world_size",
    "nodes",
    "steps",
    "grad_accum_steps",
    "flops_per_sample",
    "parameters",
    "trainable_parameters",
    "precision",
)
NO_RESULTS = (
    *("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep", "dimensions", "seq_len"),
    "train_accuracy_pct",  # a series of its own
    "peak_memory_step",
    *("peak_flops_per_device", "flops_per_token", "flops_per_token_literature", "flops_per_useful_token"),
)
FROM_CONFIG = (
    "run",
    "comparison",
    "strategy",
    "seed",
    "global_batch_size",
    "micro_batch_size",
)


def build_summary(
    config: Config,
    resolved: dict[str, Any],
    ranks: list[dict[str, Any]],
    measured: list[tuple[float, ...]],
    work: Work,
    last: dict[str, float],
    test: Evaluation,
) -> dict[str, Any]:
    """The content of summary.json.

    mfu_pct = 100 x samples_per_s x flops_per_sample / (peak_flops_per_device x world_size): model FLOP utilisation as
    defined in the PaLM paper (arXiv 2204.02311, appendix B). flops_per_sample is forward and backward of one image
    without recomputation, the peak is the dense one of the data sheet in the precision that is computed in. It is null
    on devices without a known peak, such as CPUs.

    wire_bytes_per_step are what the busiest rank sends in one step (trainer/measuring/wire.py),
    collectives_per_step the operations of rank 0.

    Args:
        resolved: of config.json.
        ranks: the facts of every rank (ranks/rank*.json).
        measured: times in ms of the steps that count, in the order of `TIMES`.
        work: what these steps have done.
        last: train_loss, the validation's measures, skipped_steps, train_time_s at the end, and the numbers of
            `course.read_course`.
    """
    columns = list(zip(*measured, strict=True))
    medians = {name: statistics.median(column) for name, column in zip(TIMES, columns, strict=False)}
    seconds = sum(columns[0]) / 1e3 if columns else None
    samples_per_s = work.samples / seconds if seconds else None
    peak = read_peak_flops(resolved["device_name"], resolved["precision"])
    largest = _largest(ranks)
    mfu_pct = _mfu_pct(samples_per_s, resolved["flops_per_sample"], peak, resolved["world_size"])
    return {
        **{name: getattr(config, name) for name in FROM_CONFIG},
        "model": config.model_name,
        "dataset": config.dataset_name,
        **{name: resolved[name] for name in FROM_RESOLVED},
        INITIAL_WEIGHTS: describe_starting_weights(config),
        **resolved["axes"],
        **({"rung": len(rungs)} if (rungs := resolved.get(RUNGS)) else {}),
        **last,
        **{f"test_{name}": value for name, value in test.measures().items()},
        "measured_steps": len(measured),
        "step_time_ms_p50": medians.get("step_time_ms"),
        "step_time_ms_p95": _percentile(columns[0], 0.95) if columns else None,
        **{f"{name}_p50": medians.get(name) for name in TIMES[1:]},
        "samples_per_s": samples_per_s,
        "peak_flops_per_device": peak,
        "mfu_pct": mfu_pct,
        **(_text_numbers(config, resolved, work, seconds, peak) if config.is_text else {}),
        "trainable_parameters_pct": 100.0 * resolved["trainable_parameters"] / resolved["parameters"],
        **largest,
        **compare_forecast(resolved.get(FORECAST), largest["peak_memory_gib"], ranks),
        **_traffic(ranks),
        **{name: ranks[0][name] for name in ("data_order_sha256", "initial_weights_sha256")},
        **{
            f"dtype_{kind}": "+".join(sorted({t for r in ranks for t in r["dtypes"][kind]}))
            for kind in ("parameters", "gradients", "optimizer", "reductions", "products")
        },
    }


def find_results(summary: dict[str, Any]) -> dict[str, float]:
    """The numbers of summary.json that a run is judged by, for the line of kind `result`, which becomes metrics of the
    MLflow run: all but settings and facts, which are its params, and what the last validation's line holds already. The
    numbers of an axis are called `wire_bytes_per_axis/tp`."""
    flat = dict(summary)
    sent = flat.pop("wire_bytes_per_axis")
    flat |= {f"wire_bytes_per_axis/{axis}": size for axis, size in sent.items()}
    known = {*FROM_CONFIG, *FROM_RESOLVED, *NO_RESULTS}
    return {
        name: value
        for name, value in flat.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and name not in known
        and not name.startswith("validation_")
    }


def _flops_per_useful_token(config: Config, resolved: dict[str, Any], work: Work) -> float | None:
    """Of the documents that the measured steps have seen: their weights' part as it is, of attention's part, which is
    that of a row as one document, the share s / seq_len, where s = sum of squared lengths / sum of lengths."""
    if not work.useful_tokens:
        return None
    causal, literature = resolved["flops_per_token"], resolved["flops_per_token_literature"]
    seen = work.token_pairs / work.useful_tokens
    return float(causal - (literature - causal) * (1.0 - seen / config.seq_len))


def _mfu_pct(
    units_per_s: float | None, flops: float | None, peak: float | None, devices: int
) -> float | None:
    return 100.0 * units_per_s * flops / (peak * devices) if units_per_s and flops and peak else None


def _text_numbers(
    config: Config, resolved: dict[str, Any], work: Work, seconds: float | None, peak: float | None
) -> dict[str, Any]:
    """Throughput in tokens, padding included and left out; MFU as the literature counts attention (not causal), and of
    useful work alone: no padding, and attention inside documents; the layout of nd."""
    tokens_per_s = work.tokens / seconds if seconds else None
    useful_per_s = work.useful_tokens / seconds if seconds else None
    useful_flops = _flops_per_useful_token(config, resolved, work)
    literature = resolved["flops_per_token_literature"]
    layout = resolved.get("layout") or {}
    return {
        "seq_len": config.seq_len,
        "tokens_per_s": tokens_per_s,
        "useful_tokens_per_s": useful_per_s,
        "useful_tokens_pct": 100.0 * work.useful_tokens / work.tokens if work.tokens else None,
        "flops_per_token": resolved["flops_per_token"],
        "flops_per_token_literature": literature,
        "mfu_literature_pct": _mfu_pct(tokens_per_s, literature, peak, resolved["world_size"]),
        "flops_per_useful_token": useful_flops,
        "mfu_useful_pct": _mfu_pct(useful_per_s, useful_flops, peak, resolved["world_size"]),
        "layout": layout.get("name"),
        "dimensions": layout.get("dimensions"),
        "degenerate": bool(layout.get("missing")),
        "missing_dimensions": layout.get("missing") or [],
        "sequence_parallel": layout.get("sequence_parallel"),
    }


def _largest(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    device, reserved = (
        max((r[name] for r in ranks if r[name] is not None), default=None)
        for name in ("peak_memory_gib", "peak_reserved_gib")
    )
    state = {
        f"{name}_memory_gib": max(r["state_memory_gib"][kind] for r in ranks)
        for name, kind in (
            ("parameter", "parameters"),
            ("gradient", "gradients"),
            ("optimizer", "optimizer"),
        )
    }
    found = [r["alloc_retries"] for r in ranks if r["alloc_retries"] is not None]
    return {
        "peak_memory_gib": device,
        "peak_reserved_gib": reserved,
        "peak_host_memory_gib": max(r["peak_host_memory_gib"] for r in ranks),
        "data_set_memory_gib": max(r["data_set_memory_gib"] for r in ranks),
        "alloc_retries": sum(found) if found else None,
        **_fullest_moment(ranks),
        **state,
        "state_memory_gib": sum(state.values()),
    }


def _fullest_moment(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Where the rank that held most did so: the last step of the window, and the phase."""
    known = [r["training_memory"] for r in ranks if r["training_memory"] is not None]
    if not known:
        return {"peak_memory_step": None, "peak_memory_phase": None}
    fullest = max(known, key=lambda memory: memory["peak_gib"])
    return {"peak_memory_step": fullest["peak_steps"][1], "peak_memory_phase": fullest["peak_phase"]}


def _per_axis(ranks: list[dict[str, float]]) -> dict[str, float]:
    """Of each axis, what its busiest rank sends."""
    axes = sorted({axis for sent in ranks for axis in sent})
    return {axis: max(sent.get(axis, 0.0) for sent in ranks) for axis in axes}


def _traffic(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    sent = [r["wire_bytes_per_step"] for r in ranks if r["wire_bytes_per_step"] is not None]
    counted = ranks[0]["collectives_per_step"]
    return {
        "wire_bytes_per_step": max(sent, default=None),
        "wire_bytes_per_axis": _per_axis([r["wire_bytes_per_axis"] or {} for r in ranks]),
        "collectives_per_step": sum(count for count, _ in counted.values()) if counted is not None else None,
    }


def _percentile(values: tuple[float, ...], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]
