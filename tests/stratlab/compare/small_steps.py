"""Traced steps with round numbers, and one pair of them explained. The analyses are stand-ins for report.json."""

from typing import Any

from stratlab.compare.attribution import build_pair
from stratlab.compare.step_difference import TracedStep, build_traced_step


def build_analysis(
    own: dict[str, float],
    exposed: dict[tuple[str, str], float],
    total: dict[tuple[str, str], float] | None = None,
    source: str = "gpu",
    sent: int | None = 1000,
    ranks: list[dict[str, float]] | None = None,
    **mean: str | None,
) -> dict[str, Any]:
    """An analysis/report.json of two equal ranks and one step; `total` communication is what is exposed if left out."""
    parts = [{"part": part, "collective": None, "axis": None, "ms": ms} for part, ms in own.items()]
    parts += [
        {"part": "comm", "collective": c, "axis": a or None, "ms": ms} for (c, a), ms in exposed.items()
    ]
    return {
        "source": source,
        "mean": {"ranks": 2, "steps": 1, "step_ms": sum(part["ms"] for part in parts), **mean},
        "parts": parts,
        "steps": [  # rank 1 is late
            {"rank": rank, "step": step, "step_ms": 100.0, "comm_exposed_ms": 20.0 - 10.0 * rank}
            for rank in range(2)
            for step in range(3)
        ],
        "ranks": [{"rank": i, "steps": 1, **row} for i, row in enumerate(ranks or [{}, {}])],
        "collectives": [
            {"collective": c, "axis": a or None, "total_ms": ms + 1.0, "wait_ms": 1.0, "bytes": sent}
            for (c, a), ms in (exposed if total is None else total).items()
            for _ in range(2)
        ],
    }


def build_step(*arguments: Any, **options: Any) -> TracedStep:
    step = build_traced_step(build_analysis(*arguments, **options))
    assert isinstance(step, TracedStep)
    return step


def explain(run: TracedStep, base: TracedStep, **measured: float) -> dict[str, Any]:
    run_ms, base_ms = measured.get("run_ms", run.step_ms), measured.get("base_ms", base.step_ms)
    return build_pair(("run", run, run_ms), ("base", base, base_ms))


def take(pair: dict[str, Any]) -> dict[tuple[str, str | None], float]:
    return {(row["cause"], row["collective"]): row["ms"] for row in pair["parts"]}


ALL_REDUCE, ALL_GATHER = ("all_reduce", ""), ("all_gather", "")
DDP = {
    "compute": 60.0,
    "copy": 1.0,
    "data": 2.0,
    "host": 4.0,
    "kernel_wait": 0.5,
    "other_idle": 0.5,
    "straggler": 1.0,
}


def build_rank(step_ms: float, compute_ms: float, wait_ms: float) -> dict[str, float]:
    return {
        "step_ms": step_ms,
        "compute_pct": 100 * compute_ms / step_ms,
        "straggler_pct": 100 * wait_ms / step_ms,
        **dict.fromkeys(("copy_exposed_pct", "data_wait_pct", "host_wait_pct"), 0.0),
    }
