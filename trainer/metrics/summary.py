"""The run's final numbers, one flat object, with units in the names; it compares the memory forecast with the
measurement; step_forecast.py compares the step time.

    peak of the device ──────────────────┐
    engine's state, as walked ───────────┼─▶ forecast less measured, by part ─▶ outside the band: the largest deviation
    other memory kept between steps ─────┘
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratlab_spec.memory.prediction import FORECAST
from stratlab_spec.registry import INITIAL_WEIGHTS, describe_starting_weights
from stratlab_spec.run_directory import RUNGS
from stratlab_spec.schedule import TimedSteps, build_step_numbers
from stratlab_spec.settings.config import Config
from stratlab_spec.step_time.step_forecast import STEP_FORECAST, compare_step
from trainer.distributed.nccl_transport import sum_up_transports
from trainer.tasks.evaluation import Evaluation

BAND_PCT = 5.0
"""A peak outside of it is marked. Of counts by operators (docs/memory.md), with the allocator's rounding."""
PARTS = {
    "parameters": ("parameters", "master copies"),
    "gradients": ("gradients", "gradient buckets"),
    "optimizer": ("optimizer state",),
    "teacher": ("teacher",),
}
"""Parts of an engine's state in a run -> causes of a count. Buckets of DDP hold the gradients themselves."""
MEASURED = {"gradients": ("gradients", "buckets")}
"""Parts that a run measures under several names; others have their own."""
REST = "rest"


def compare_forecast(
    forecast: Mapping[str, Any] | None, measured_gib: float | None, ranks: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the forecast's numbers for the summary; empty without a forecast.

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
    error_pct = 100.0 * (foreseen_gib / measured_gib - 1.0)
    by_part = _errors(forecast, foreseen_gib - measured_gib, ranks)
    return {
        "forecast_memory_gib": foreseen_gib,
        "forecast_memory_error_pct": error_pct,
        **{f"forecast_{name}_error_gib": gib for name, gib in by_part.items()},
        "forecast_memory_deviates": find_deviating(error_pct, by_part, forecast["at_most"]),
    }


def find_deviating(error_pct: float, errors: Mapping[str, float], at_most: bool = False) -> str | None:
    """Return the part with the largest deviation in the peak's direction if the peak is outside its band; None inside.

    Args:
        errors: part -> forecast less measured.
        at_most: the forecast is an upper bound, so that a smaller peak does not deviate.
    """
    if -BAND_PCT <= error_pct <= BAND_PCT or (error_pct > BAND_PCT and at_most):
        return None
    sign = 1.0 if error_pct > 0 else -1.0
    return max(errors, key=lambda name: sign * errors[name], default=REST)


def _errors(
    forecast: Mapping[str, Any], off_gib: float, ranks: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Return forecast less measured, GiB, for each part of the rank that held most; the sum is `off_gib`.

    The engine's state is compared at the update, when it is whole: at the peak some gradients may not exist yet. The
    rest is all memory except state and tensors kept next to it.
    """
    if (fullest := _find_fullest(ranks)) is None:
        return {}
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


def _find_fullest(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return `training_memory` of the rank that held most; None if no step was counted."""
    known = [rank["training_memory"] for rank in ranks if rank["training_memory"] is not None]
    return max(known, key=lambda memory: float(memory["peak_gib"]), default=None)


TERA = 1e12


def _peaks(fp32: float, half: float, bf16: bool = True) -> dict[str, float]:
    """Return the peaks; fp32: of the CUDA cores, without TF32. half: of the tensor cores with sums in fp32, without
    sparsity.
    """
    return {"fp32": fp32 * TERA, "fp16": half * TERA, **({"bf16": half * TERA} if bf16 else {})}


# sparsity doubles the tensor cores' number on most data sheets: halved here
_A100 = _peaks(19.5, 312)
_A30, _A40 = _peaks(10.3, 165), _peaks(37.4, 149.7)
_A10, _A10G = _peaks(31.2, 125), _peaks(35, 70)
_L4, _L40, _L40S = _peaks(30.3, 121), _peaks(90.5, 181), _peaks(91.6, 362)
_HOPPER_SXM, _HOPPER_NVL, _H100_PCIE = _peaks(67, 989), _peaks(60, 835), _peaks(51, 756)
_H20 = _peaks(44, 148)
_B200, _GB200 = _peaks(75, 2250), _peaks(80, 2500)
_V100_SXM, _V100_PCIE = _peaks(15.7, 125, bf16=False), _peaks(14, 112, bf16=False)
_V100S = _peaks(16.4, 130, bf16=False)
_T4 = _peaks(8.1, 65, bf16=False)

# A part of a name says too little: "L4" is in "NVIDIA L40", "H100" is three cards whose peaks differ by 30 %, and a
# slice of an A100 carries the name of the whole card. A name that is not in the table has no known peak.
PEAK_FLOPS: dict[str, dict[str, float]] = {
    "NVIDIA B200": _B200,
    "NVIDIA GB200": _GB200,
    "NVIDIA H200": _HOPPER_SXM,
    "NVIDIA H200 NVL": _HOPPER_NVL,
    "NVIDIA GH200 120GB": _HOPPER_SXM,
    "NVIDIA GH200 480GB": _HOPPER_SXM,
    "NVIDIA GH200 144G HBM3e": _HOPPER_SXM,
    "NVIDIA H100 80GB HBM3": _HOPPER_SXM,
    "NVIDIA H100 NVL": _HOPPER_NVL,
    "NVIDIA H100 PCIe": _H100_PCIE,
    "NVIDIA H800": _HOPPER_SXM,
    "NVIDIA H20": _H20,
    "A100-SXM4-40GB": _A100,  # drivers before 455 leave the maker out
    "A100-PCIE-40GB": _A100,
    "NVIDIA A100-SXM4-40GB": _A100,
    "NVIDIA A100-SXM4-80GB": _A100,
    "NVIDIA A100-SXM-64GB": _A100,
    "NVIDIA A100-PCIE-40GB": _A100,
    "NVIDIA A100 80GB PCIe": _A100,
    "NVIDIA A800-SXM4-80GB": _A100,
    "NVIDIA A800 80GB PCIe": _A100,
    "NVIDIA A40": _A40,
    "NVIDIA A30": _A30,
    "NVIDIA A10": _A10,
    "NVIDIA A10G": _A10G,
    "NVIDIA L40S": _L40S,
    "NVIDIA L40": _L40,
    "NVIDIA L4": _L4,
    "Tesla V100-SXM2-16GB": _V100_SXM,
    "Tesla V100-SXM2-32GB": _V100_SXM,
    "Tesla V100-PCIE-16GB": _V100_PCIE,
    "Tesla V100-PCIE-32GB": _V100_PCIE,
    "Tesla V100S-PCIE-32GB": _V100S,
    "Tesla T4": _T4,
}
"""Name as torch and NVML give it -> precision -> FLOP/s of one device: the dense peak of its maker's data sheet."""


def read_peak_flops(device_name: str, precision: str) -> float | None:
    """Return the FLOP/s of one device in this precision.

    None for a device that is missing in the table, such as a MIG slice, and for a precision that its tensor cores
    lack.

    fp32 is the peak without TF32, which the trainer switches off (`trainer.distributed.world.apply_whole_fp32`).
    """
    return PEAK_FLOPS.get(device_name.strip(), {}).get(precision.removesuffix("_native"))


FROM_RESOLVED = (
    *("backend", "device_type", "device_name", "world_size", "nodes", "steps", "grad_accum_steps"),
    *("flops_per_sample", "parameters", "trainable_parameters", "precision"),
)
NO_RESULTS = (
    *("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep", "dimensions", "seq_len"),
    "train_accuracy_pct",  # a series of its own
    "peak_memory_step",
    *("peak_flops_per_device", "flops_per_token", "flops_per_token_literature", "flops_per_useful_token"),
)
OF_TEXT = (
    *("tokens_per_s", "useful_tokens_per_s", "useful_tokens_pct", "mfu_literature_pct", "mfu_useful_pct"),
)
"""Numbers of the timed steps, only in text runs."""
FROM_CONFIG = ("run", "comparison", "strategy", "seed", "global_batch_size", "micro_batch_size")


def build_summary(
    config: Config,
    resolved: dict[str, Any],
    ranks: list[dict[str, Any]],
    timed: TimedSteps,
    last: dict[str, float],
    test: Evaluation,
) -> dict[str, Any]:
    """Return the content of summary.json.

    mfu_pct uses flops_per_sample, forward and backward of one image without recomputation, and the data sheet's dense
    peak of the precision in use. It is null on devices without a known peak, such as CPUs.

    wire_bytes_per_step: sent by the busiest rank in one step (trainer/measuring/operators.py). collectives_per_step:
    the operations of rank 0.

    Args:
        resolved: of config.json.
        ranks: the facts of every rank (ranks/rank*.json).
        last: train_loss, the validation's measures, skipped_steps, train_time_s at the end, and the numbers of
            `final.build_course`.
    """
    facts = {
        "world_size": resolved["world_size"],
        "peak_flops_per_device": read_peak_flops(resolved["device_name"], resolved["precision"]),
        "flops_per_sample": resolved["flops_per_sample"],
        **(_text_facts(config, resolved, timed) if config.is_text else {}),
    }
    numbers = build_step_numbers(timed, facts)
    if not config.is_text:
        numbers = {name: value for name, value in numbers.items() if name not in OF_TEXT}
    over_ranks = _over_ranks(ranks)
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
        **facts,
        **numbers,
        "trainable_parameters_pct": 100.0 * resolved["trainable_parameters"] / resolved["parameters"],
        **over_ranks,
        **sum_up_transports([each.get("transport") for each in ranks]),
        **compare_forecast(resolved.get(FORECAST), over_ranks["peak_memory_gib"], ranks),
        **compare_step(resolved.get(STEP_FORECAST), numbers),
        **{name: ranks[0][name] for name in ("data_order_sha256", "initial_weights_sha256")},
        **{
            f"dtype_{kind}": "+".join(sorted({t for r in ranks for t in r["dtypes"][kind]}))
            for kind in ("parameters", "gradients", "optimizer", "reductions", "products")
        },
    }


def find_results(summary: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of summary.json by which a run is judged, for the line of kind `result`.

    They become metrics of the MLflow run. Settings and facts, which are its params, are left out, and so are the
    numbers of the last validation's line. The numbers of an axis are called `wire_bytes_per_axis/tp`.
    """
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


def _text_facts(config: Config, resolved: dict[str, Any], timed: TimedSteps) -> dict[str, Any]:
    """Return the operations per token, and the layout of nd."""
    layout = resolved.get("layout") or {}
    return {
        "seq_len": config.seq_len,
        "flops_per_token": resolved["flops_per_token"],
        "flops_per_token_literature": resolved["flops_per_token_literature"],
        "flops_per_useful_token": _flops_per_useful_token(config, resolved, timed),
        "layout": layout.get("name"),
        "dimensions": layout.get("dimensions"),
        "degenerate": bool(layout.get("missing")),
        "missing_dimensions": layout.get("missing") or [],
        "sequence_parallel": layout.get("sequence_parallel"),
    }


def _flops_per_useful_token(config: Config, resolved: dict[str, Any], timed: TimedSteps) -> float | None:
    """Return the operations per useful token for the documents of the timed steps.

    The weights' part is unchanged. Attention's part, counted for a row as one document, is multiplied by s / seq_len,
    where s = sum of squared lengths / sum of lengths.
    """
    useful_tokens, token_pairs = timed.sum_up("useful_tokens"), timed.sum_up("token_pairs")
    if not useful_tokens or token_pairs is None:
        return None
    causal, literature = resolved["flops_per_token"], resolved["flops_per_token_literature"]
    seen = token_pairs / useful_tokens
    return float(causal - (literature - causal) * (1.0 - seen / config.seq_len))


def _over_ranks(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return memory of the rank that held most, and bytes sent by the busiest rank, in all and along each axis."""

    def known(name: str) -> list[Any]:
        return [r[name] for r in ranks if r[name] is not None]

    state = {
        f"{name}_memory_gib": max(r["state_memory_gib"][kind] for r in ranks)
        for name, kind in (("parameter", "parameters"), ("gradient", "gradients"), ("optimizer", "optimizer"))
    }
    retries, sent = known("alloc_retries"), known("wire_bytes_per_axis")
    fullest, counted = _find_fullest(ranks), ranks[0]["collectives_per_step"]
    return {
        "peak_memory_gib": max(known("peak_memory_gib"), default=None),
        "peak_reserved_gib": max(known("peak_reserved_gib"), default=None),
        "peak_host_memory_gib": max(known("peak_host_memory_gib")),
        "data_set_memory_gib": max(known("data_set_memory_gib")),
        "alloc_retries": sum(retries) if retries else None,
        "peak_memory_step": fullest["peak_steps"][1] if fullest else None,
        "peak_memory_phase": fullest["peak_phase"] if fullest else None,
        **state,
        "state_memory_gib": sum(state.values()),
        "wire_bytes_per_step": max(known("wire_bytes_per_step"), default=None),
        "wire_bytes_per_axis": {
            axis: max(each.get(axis, 0.0) for each in sent) for axis in sorted(set().union(*sent))
        },
        "collectives_per_step": sum(count for count, _ in counted.values()) if counted is not None else None,
    }
