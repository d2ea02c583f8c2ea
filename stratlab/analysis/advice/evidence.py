"""The named values that the rules look at, from a report and the run's settings. None = not known."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stratlab.tables.strategies import find_other

Row = Mapping[str, Any]

KERNEL_KINDS = (  # of a compute kernel, by its name; the first that matches
    ("attention", re.compile(r"softmax|masked_fill", re.I)),
    ("flash attention", re.compile(r"flash|fmha|attention", re.I)),
    ("gemm", re.compile(r"gemm|cutlass|cublas|nvjet|xmma|matmul", re.I)),
    ("elementwise", re.compile(r"elementwise|vectorized|pointwise", re.I)),
)
SETTINGS = (
    *("strategy", "offload", "compile", "activation_checkpointing", "micro_batch_size", "profile_memory"),
    *("grad_accum_steps", "world_size", "nodes", "processes_per_node", "data_residence", "precision"),
)


def read_settings(folder: Path) -> dict[str, Any]:
    """Settings of config.json with what they resolved to; what cannot be read is absent."""
    try:
        content = json.loads((folder / "config.json").read_bytes())
        return {**content["config"], **content["resolved"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def read_hosts(folder: Path, rows: Sequence[Row]) -> dict[int, str]:
    """Rank -> host, by ranks/rank<i>.json, else by the trace; of those that are told.

    Args:
        rows: `ranks` of the report.
    """
    hosts = {row["rank"]: row["host"] for row in rows if row.get("host")}
    for rank in (row["rank"] for row in rows):
        try:
            hosts[rank] = str(json.loads((folder / "ranks" / f"rank{rank}.json").read_bytes())["host"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return hosts


def build_values(report: Row, settings: Row, hosts: Mapping[int, str]) -> dict[str, Any]:
    """Everything by the name under which rules and texts ask for it."""
    mean, run = report["mean"], report["run"]
    known = {name: settings.get(name, run.get(name)) for name in SETTINGS}
    step_ms = mean.get("step_ms")
    values: dict[str, Any] = {**{k: v for k, v in mean.items() if k not in ("ranks", "steps")}, **known}
    values |= {
        "source": report["source"],
        "foreign": "finished" in run
        and run["finished"] is None,  # of traces that tell nothing of a run's end
        "unrecorded_launches": mean.get("unrecorded_launches") or 0,  # earlier versions did not count them
        "traced_steps": mean.get("steps"),
        "traced_ranks": mean.get("ranks"),
        "missing_ranks": _minus(known["world_size"], mean.get("ranks")),
        "step_time_ms_p50": run.get("step_time_ms_p50"),
        "slowdown": _divide(mean.get("host_step_ms") or step_ms, run.get("step_time_ms_p50"))
        if report.get("steps_from") != "recording"
        else None,
        "data_pct": mean.get("data_wait_pct")
        if report["source"] == "gpu"
        else _divide(mean.get("data_ms"), step_ms, 100),
        "optimizer_pct": _divide(mean.get("optimizer_ms"), step_ms, 100),
        "bubble_over_ideal": _divide(mean.get("bubble_pct"), mean.get("bubble_ideal_pct")),
        "launching_pct": _plus(mean.get("host_wait_pct"), mean.get("launch_wait_pct")),
        "imbalance_pct": None if (i := mean.get("compute_imbalance")) is None else 100 * (i - 1),
        "next_strategy": find_other(known["strategy"], "holds_less"),
        "previous_strategy": find_other(known["strategy"], "sends_less"),
        "doubts": 0.0,
    }
    return values | _memory(report) | _batches(known) | _communication(report, hosts) | _top_kernel(report)


def _memory(report: Row) -> dict[str, Any]:
    """Of the rank that holds most."""
    rows = [report["mean"], *report["ranks"]]
    peaks = {
        name: max((row[name] for row in rows if row.get(name) is not None), default=None)
        for name in ("peak_allocated_gib", "peak_reserved_gib")
    }
    whole = report["mean"].get("device_memory_gib")
    allocated, reserved = peaks["peak_allocated_gib"], peaks["peak_reserved_gib"]
    share = _divide(allocated, whole, 100)
    held_back = _divide(_minus(reserved, allocated), reserved, 100)
    return peaks | {
        "device_memory_gib": whole,
        "memory_pct": share,
        "free_pct": _minus(100.0, share),
        "held_back_pct": held_back,
    }


def _batches(known: Row) -> dict[str, Any]:
    """Micro-batches twice and half as large with the global batch as it is."""
    micro, accumulated = known["micro_batch_size"], known["grad_accum_steps"]
    even = isinstance(accumulated, int) and accumulated % 2 == 0
    return {
        "double_micro_batch": 2 * micro if isinstance(micro, int) and even else None,
        "half_micro_batch": micro // 2 if isinstance(micro, int) and micro > 1 and micro % 2 == 0 else None,
    }


def _communication(report: Row, hosts: Mapping[int, str]) -> dict[str, Any]:
    """Exposed transfer, the collective with most of it, and who came last most often."""
    mean = report["mean"]
    parts = [part for part in report.get("parts") or [] if part["ms"] is not None]
    transfers = [part for part in parts if part["part"] == "comm"]
    transfer_ms = sum(part["ms"] for part in transfers) if parts else None
    top = max(transfers, key=lambda part: part["ms"], default=None)
    last: Counter[int] = Counter()
    for row in report.get("collectives") or []:
        last[row["rank"]] += row.get("arrived_last") or 0
    late, matched = mean.get("slowest_rank"), last.total()
    calls = last[late] if late is not None else 0
    return {
        "transfer_ms": transfer_ms,
        "transfer_pct": _divide(transfer_ms, mean.get("step_ms"), 100),
        "mostly": f", most of it {_name(top)}" if top and top["ms"] and top.get("collective") else "",
        "late_rank": late,
        "late_calls": calls or None,
        "late_alike": matched if late is None and matched else None,
        "late": _say_late(late, calls, matched, hosts),
        "slowest": "" if late is None else f", {late}{_at(late, hosts)},",
    }


def _say_late(late: int | None, calls: int, matched: int, hosts: Mapping[int, str]) -> str:
    if late is None:
        return ": no rank is late by more than chance explains" if matched else ""
    counted = f"; it came last in {calls} of {matched} calls" if calls else ""
    return f": rank {late}{_at(late, hosts)} is late by more than chance explains{counted}"


def _top_kernel(report: Row) -> dict[str, Any]:
    """The compute kernel with most time over all ranks."""
    sums: Counter[str] = Counter()
    for row in report.get("kernels") or []:
        if row["type"] == "compute" and row["sum_ms"] is not None:
            sums[row["name"]] += row["sum_ms"]
    if not sums or not sum(sums.values()):
        return {"top_kernel": None, "top_kernel_pct": None, "top_kernel_kind": None}
    name, longest = sums.most_common(1)[0]
    kind = next((kind for kind, pattern in KERNEL_KINDS if pattern.search(name)), "other")
    shown = name if len(name) <= 80 else f"{name[:79]}…"
    return {
        "top_kernel": shown,
        "top_kernel_pct": 100 * longest / sum(sums.values()),
        "top_kernel_kind": kind,
    }


def _name(part: Row) -> str:
    return str(part["collective"]).replace("_", "-") + (f" over {part['axis']}" if part.get("axis") else "")


def _at(rank: int | None, hosts: Mapping[int, str]) -> str:
    return f" on {hosts[rank]}" if rank is not None and rank in hosts else ""


def _divide(a: float | None, b: float | None, factor: float = 1.0) -> float | None:
    return factor * a / b if a is not None and b else None


def _plus(a: float | None, b: float | None) -> float | None:
    """An analysis of an earlier version has no `launch_wait_pct`: its host waited for both."""
    return a + (b or 0.0) if a is not None else None


def _minus(a: float | None, b: float | None) -> float | None:
    return a - b if a is not None and b is not None else None
