"""What to try next, by the rules R1 to R12: each that fires with its numbers, and the values to set.

The rules are data (advice_rules.py). Here are the named values that they look at, from a report and the run's settings
(None = not known), and how a rule is applied to them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stratlab.analysis.advice_rules import DOUBTS, HIGH_PCT, RULES, AdviceRule, Remedy, Severity, holds
from stratlab.analysis.run_facts import RunFacts
from stratlab.analysis.summaries import describe_collective, divide
from stratlab_spec.strategies import STRATEGIES

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
    """Return settings of config.json with their resolved values; unreadable ones are absent."""
    try:
        content = json.loads((folder / "config.json").read_bytes())
        return {**content["config"], **content["resolved"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def read_hosts(folder: Path, rows: Sequence[Row]) -> dict[int, str]:
    """Return rank -> host, from ranks/rank<i>.json, else from the trace; ranks without either are absent.

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
    """Return all values by the name that rules and texts use."""
    mean, run, step_ms = report["mean"], report["run"], report["mean"].get("step_ms")
    known = {name: settings.get(name, run.get(name)) for name in SETTINGS}
    row, imbalance = STRATEGIES.get(str(known["strategy"])), mean.get("compute_imbalance")
    recorded_ms = None if report.get("steps_from") == "recording" else mean.get("host_step_ms") or step_ms
    on_gpu, host_pct = report["source"] == "gpu", mean.get("host_wait_pct")
    launch_pct = mean.get("launch_wait_pct") or 0.0  # earlier versions: their host waited for both
    compute = mean.get("compute_pct")
    values = {
        **{name: value for name, value in mean.items() if name not in ("ranks", "steps")},
        **known,
        "source": report["source"],
        "foreign": "finished" in run and run["finished"] is None,  # traces without a run's end
        "unrecorded_launches": mean.get("unrecorded_launches") or 0,  # earlier versions did not count them
        "traced_steps": mean.get("steps"),
        "traced_ranks": mean.get("ranks"),
        "missing_ranks": _minus(known["world_size"], mean.get("ranks")),
        "step_time_ms_p50": run.get("step_time_ms_p50"),
        "slowdown": divide(recorded_ms, run.get("step_time_ms_p50")),
        "data_pct": mean.get("data_wait_pct") if on_gpu else divide(mean.get("data_ms"), step_ms, 100),
        "optimizer_pct": divide(mean.get("optimizer_ms"), step_ms, 100),
        "bubble_over_ideal": divide(mean.get("bubble_pct"), mean.get("bubble_ideal_pct")),
        "launching_pct": None if host_pct is None else host_pct + launch_pct,
        "imbalance_pct": None if imbalance is None else 100 * (imbalance - 1),
        "imbalance_of_step_pct": None if imbalance is None or compute is None else compute * (imbalance - 1),
        "bubble_excess_pct": _minus(mean.get("bubble_pct"), mean.get("bubble_ideal_pct")),
        "next_strategy": row.holds_less if row else "",
        "previous_strategy": row.sends_less if row else "",
    }
    return values | _memory(report) | _batches(known) | _communication(report, hosts) | _top_kernel(report)


def _memory(report: Row) -> dict[str, Any]:
    """Return the memory of the rank that holds most."""
    rows, whole = [report["mean"], *report["ranks"]], report["mean"].get("device_memory_gib")
    allocated, reserved = (
        max((row[name] for row in rows if row.get(name) is not None), default=None)
        for name in ("peak_allocated_gib", "peak_reserved_gib")
    )
    share = divide(allocated, whole, 100)
    return {
        "peak_allocated_gib": allocated,
        "peak_reserved_gib": reserved,
        "device_memory_gib": whole,
        "memory_pct": share,
        "free_pct": _minus(100.0, share),
        "held_back_pct": divide(_minus(reserved, allocated), reserved, 100),
    }


def _batches(known: Row) -> dict[str, Any]:
    """Return micro-batches twice and half as large, with an unchanged global batch."""
    micro, accumulated = known["micro_batch_size"], known["grad_accum_steps"]
    even = isinstance(accumulated, int) and accumulated % 2 == 0
    return {
        "double_micro_batch": 2 * micro if isinstance(micro, int) and even else None,
        "half_micro_batch": micro // 2 if isinstance(micro, int) and micro > 1 and micro % 2 == 0 else None,
    }


def _communication(report: Row, hosts: Mapping[int, str]) -> dict[str, Any]:
    """Return exposed transfer, the collective with most of it, and who came last most often."""
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
        "transfer_pct": divide(transfer_ms, mean.get("step_ms"), 100),
        "mostly": f", most of it {describe_collective(top['collective'], top.get('axis'))}"
        if top and top["ms"] and top.get("collective")
        else "",
        "late_rank": late,
        "late_calls": calls or None,
        "late_alike": matched if late is None and matched else None,
        "late": _say_late(late, calls, matched, hosts),
        "slowest": "" if late is None else f", {late}{_at(late, hosts)},",
    }


def _say_late(late: int | None, calls: int, matched: int, hosts: Mapping[int, str]) -> str:
    if late is None:
        return ": the ranks take turns, none is late by more than chance explains" if matched else ""
    counted = f"; it came last in {calls} of {matched} calls" if calls else ""
    return f": rank {late}{_at(late, hosts)} is late by more than chance explains{counted}"


def _top_kernel(report: Row) -> dict[str, Any]:
    """Return the compute kernel with most time over all ranks."""
    sums: Counter[str] = Counter()
    for row in report.get("kernels") or []:
        if row["type"] == "compute" and row["sum_ms"] is not None:
            sums[row["name"]] += row["sum_ms"]
    name, longest = sums.most_common(1)[0] if sums else ("", 0)
    if not longest:
        return {}
    return {
        "top_kernel": name if len(name) <= 80 else f"{name[:79]}…",
        "top_kernel_pct": 100 * longest / sum(sums.values()),
        "top_kernel_kind": next((kind for kind, found in KERNEL_KINDS if found.search(name)), "other"),
    }


def _at(rank: int | None, hosts: Mapping[int, str]) -> str:
    return f" on {hosts[rank]}" if rank is not None and rank in hosts else ""


def _minus(a: float | None, b: float | None) -> float | None:
    return a - b if a is not None and b is not None else None


ORDER: tuple[Severity, ...] = ("high", "medium", "low")
ON_CPU = "CPU: "


def build_recommendations(report: Mapping[str, Any], facts: RunFacts) -> list[dict[str, Any]]:
    """Return the rules that fire, the most severe first, then by the share of the step (of memory, of compute)
    concerned.

    Args:
        report: schema_version 2.
        facts: for config.json and the hosts of ranks/rank<i>.json.

    Returns:
        rule, severity, title, advice, at_most_ms, settings {name: value}, evidence {name: number}. at_most_ms is the
        largest saving in a recorded step; None = no time, or not known. `settings` names a value of the chart
        (`run.config.*`) or, without a dot, an environment variable for `run.env`. For traces of other programs
        neither text nor settings name a value of the chart.
    """
    hosts = read_hosts(facts.folder, report["ranks"])
    return apply_rules(build_values(report, read_settings(facts.folder), hosts))


def apply_rules(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the recommendations from named values."""
    on_cpu = values.get("source") == "cpu"
    fired = [rule for rule in RULES if not (rule.gpu_only and on_cpu) and holds(rule.when, values)]
    doubtful = any(rule.doubtful for rule in fired)
    found = []
    for id in dict.fromkeys(rule.id for rule in fired):
        first, *others = (rule for rule in fired if rule.id == id)
        entry = _build(first, values, on_cpu)
        for other in others:
            entry["advice"] += f" Also: {_fill(other.title, values)}."
            entry["evidence"] |= _evidence(other, values)
        if doubtful and id != DOUBTS:
            entry["severity"] = ORDER[min(ORDER.index(entry["severity"]) + 1, len(ORDER) - 1)]
        found.append((ORDER.index(entry["severity"]), -_read_lead(first, values), entry))
    return [entry for _, _, entry in sorted(found, key=lambda item: item[:2])]


def _build(rule: AdviceRule, values: Mapping[str, Any], on_cpu: bool) -> dict[str, Any]:
    remedy = next((each for each in rule.remedies if holds(each.when, values)), Remedy(rule.otherwise))
    if rule.elsewhere and values.get("foreign"):
        remedy = Remedy(rule.elsewhere)
    is_high = rule.severity == "medium" and _read_lead(rule, values) > HIGH_PCT
    title, wins, step_ms = _fill(rule.title, values), values.get(rule.wins), values.get("step_ms")
    return {
        "rule": rule.id,
        "severity": "high" if is_high else rule.severity,
        "title": (ON_CPU + title if on_cpu and rule.id != DOUBTS else title) + ".",
        "advice": _fill(remedy.advice, values),
        "at_most_ms": None if wins is None or step_ms is None else wins * step_ms / 100,
        "settings": {name: _fill(value, values) for name, value in remedy.settings.items()},
        "evidence": _evidence(rule, values),
    }


def _read_lead(rule: AdviceRule, values: Mapping[str, Any]) -> float:
    return 0.0 if rule.id == DOUBTS else values.get(rule.lead or rule.when[0][0]) or 0.0


def _evidence(rule: AdviceRule, values: Mapping[str, Any]) -> dict[str, float]:
    names = dict.fromkeys((*(condition[0] for condition in rule.when), *rule.evidence))
    return {
        name: value
        for name in names
        if isinstance(value := values.get(name), int | float) and not isinstance(value, bool)
    }


def _fill(template: str, values: Mapping[str, Any]) -> str:
    return template.format_map(values)
