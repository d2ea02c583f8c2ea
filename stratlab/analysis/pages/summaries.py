"""Rows over all ranks, for readers: the page and the Markdown show these, the tables have every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stratlab.analysis.pages.part_names import describe_collective, split_row

Row = Mapping[str, Any]
PHASES = ("data", "forward", "backward", "optimizer", "other")


def mean_known(values: Iterable[float | None]) -> float | None:
    """Mean of the known values; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def sum_known(values: Iterable[float | None]) -> float | None:
    """Sum of the known values; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def group_rows(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Rows by key, both in the order of the rows."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def drop_empty(rows: Mapping[Any, Mapping[str, float | None]]) -> dict[Any, dict[str, float | None]]:
    """The same without parts that are nothing in every row, for a short legend."""
    used = {name for row in rows.values() for name, value in row.items() if value}
    return {label: {n: v for n, v in row.items() if n in used} for label, row in rows.items()}


def build_phase_parts(report: Row) -> dict[str, dict[str, float | None]]:
    """Phase -> {part: ms of the mean step}; the phases sum to the step. Empty without rows."""
    rows = report.get("phases") or []
    steps = len({(row["rank"], row["step"]) for row in rows})
    groups = group_rows(rows, lambda row: row["phase"])
    return drop_empty(
        {
            phase: _divide(_sum_parts(groups[phase]), steps)
            for phase in sorted(groups, key=lambda p: PHASES.index(p) if p in PHASES else len(PHASES))
        }
    )


def build_rank_parts(report: Row) -> dict[int, dict[str, float | None]]:
    """Rank -> {part: ms of its mean step}."""
    groups = group_rows(report["steps"], lambda row: row["rank"])
    return drop_empty({rank: _divide(_sum_parts(rows), len(rows)) for rank, rows in groups.items()})


def _divide(parts: Mapping[str, float | None], by: int) -> dict[str, float | None]:
    return {name: None if value is None else value / by for name, value in parts.items()}


def _sum_parts(rows: Sequence[Row]) -> dict[str, float | None]:
    split = [split_row(row) for row in rows]
    return {name: sum_known(parts[name] for parts in split) for name in split[0]}


def build_kernel_summary(report: Row, most: int) -> list[dict[str, Any]]:
    """The kernels with most time: counts and times of all ranks together, percentiles as means of the ranks'."""
    rows = report.get("kernels") or []
    ranks = len({row["rank"] for row in rows})
    found = []
    for (name, kind), mine in group_rows(rows, lambda row: (row["name"], row["type"])).items():
        count, sum_ms = sum_known(r["count"] for r in mine), sum_known(r["sum_ms"] for r in mine)
        shares = sum_known(r["pct"] for r in mine)
        found.append(
            {
                "name": name,
                "type": kind,
                "count": count,
                "sum_ms": sum_ms,
                "pct": None if shares is None else shares / ranks,
                "mean_us": 1000 * sum_ms / count if sum_ms is not None and count else None,
                "p50_us": mean_known(r["p50_us"] for r in mine),
                "p95_us": mean_known(r["p95_us"] for r in mine),
                "max_us": max((r["max_us"] for r in mine if r["max_us"] is not None), default=None),
            }
        )
    return sorted(found, key=lambda row: -(row["sum_ms"] or 0))[:most]


def build_collective_summary(report: Row) -> list[dict[str, Any]]:
    """One row per collective and axis: means per rank over all recorded steps, and who came last most often."""
    found = []
    groups = group_rows(
        report.get("collectives") or [], lambda r: (r["name"], r.get("collective"), r.get("axis"))
    )
    for (name, collective, axis), mine in groups.items():
        means = {
            key: mean_known(row.get(key) for row in mine)
            for key in ("count", "bytes", "total_ms", "exposed_ms", "wait_ms", "exposed_wait_ms")
        }
        found.append(
            {
                "collective": describe_collective(collective, axis),
                "name": name,
                "ranks": len(mine),
                **means,
                "came_last": _say_last(mine),
            }
        )
    return sorted(found, key=lambda row: -(row["total_ms"] or 0))


def _say_last(rows: Sequence[Row]) -> str | None:
    known = [(row["arrived_last"], row["rank"]) for row in rows if row.get("arrived_last") is not None]
    matched = sum(count for count, _ in known)
    if not matched:
        return None
    count, rank = max(known, key=lambda entry: (entry[0], -entry[1]))
    return f"rank {rank} in {count} of {matched}"


def build_copy_summary(report: Row) -> list[dict[str, Any]]:
    """One row per kind of copy: sums over the ranks, and bytes over time."""
    found = []
    for kind, mine in group_rows(report.get("copies") or [], lambda row: row["kind"]).items():
        timed = [r for r in mine if r.get("bytes") is not None and r.get("total_ms")]
        size, took = sum_known(r["bytes"] for r in timed), sum_known(r["total_ms"] for r in timed)
        found.append(
            {
                "kind": kind,
                "count": sum_known(row["count"] for row in mine),
                "bytes": size,
                "total_ms": sum_known(row["total_ms"] for row in mine),
                "gbps": size / took / 1e6 if size is not None and took else None,
            }
        )
    return sorted(found, key=lambda row: -(row["total_ms"] or 0))


def build_idle_summary(report: Row) -> list[dict[str, Any]]:
    """One row per stream: means per rank."""
    groups = group_rows(report.get("idle") or [], lambda row: row["stream"])
    names = ("host_wait_ms", "kernel_wait_ms", "other_ms")
    return [
        {"stream": None if stream is None else str(stream), "ranks": len(mine)}
        | {n: mean_known(r.get(n) for r in mine) for n in names}
        for stream, mine in sorted(groups.items(), key=lambda entry: str(entry[0]))
    ]


def choose_ranks(report: Row, most: int = 16) -> list[int]:
    """At most so many ranks: the slowest and the fastest, who came last most often, those with a finding (skipped
    ones first), the rest spread evenly."""
    rows = report["ranks"]
    everyone = [row["rank"] for row in rows]
    if len(everyone) <= most:
        return everyone
    timed = sorted((r for r in rows if r.get("step_ms") is not None), key=lambda r: r["step_ms"])
    late = sorted(report.get("collectives") or [], key=lambda r: -(r.get("arrived_last") or 0))
    busy = sorted((r for r in rows if r.get("compute_pct") is not None), key=lambda r: -r["compute_pct"])
    named = [row["rank"] for row in timed[-1:] + timed[:1] + late[:1] + busy[:1]]
    named += [report["mean"].get("slowest_rank")]
    findings = sorted(report.get("quality") or [], key=lambda row: row["action"] != "skipped")
    named += list(dict.fromkeys(row["rank"] for row in findings if row["rank"] is not None))[: most // 2]
    chosen = [rank for rank in dict.fromkeys(named) if rank in set(everyone)][:most]
    others = [rank for rank in everyone if rank not in chosen]
    left = most - len(chosen)
    return sorted(chosen + [others[round(i * (len(others) - 1) / max(left - 1, 1))] for i in range(left)])
