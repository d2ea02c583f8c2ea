"""Sections of the page about time: the timeline, the phases, the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from stratlab.analysis.measuring.rank import RankAnalysis
from stratlab.analysis.pages.summaries import build_phase_parts, build_rank_parts
from stratlab.drawing import Column, Section, details, html_table, note, stacked_bars, strips, subtitle
from stratlab.run_directory.step_parts import COLOURS, COMMUNICATION, COMPUTE, DATA, HOST, LAST_RANK

OF_SHARE = {
    "comm_pct": COMMUNICATION,
    "comm_exposed_pct": f"exposed {COMMUNICATION}",
    "comm_overlap_pct": f"hidden share of {COMMUNICATION}",
    "straggler_pct": LAST_RANK,
    "data_wait_pct": DATA,
    "host_wait_pct": HOST,
}
MOST_ROWS = 120  # of a table; the CSV has all


def build_timeline(ranks: Sequence[RankAnalysis], chosen: Sequence[int]) -> Markup:
    """When each of the chosen ranks computed and communicated."""
    shown = [rank for rank in ranks if rank.rank in set(chosen)]
    if not shown:
        return note("No rank to draw.")
    span_ms = max(rank.activity.span_ms for rank in shown)
    tracks = {
        f"rank {rank.rank}": {
            COMPUTE: _stretch(rank.activity.compute, rank.activity.span_ms / span_ms),
            "communication": _stretch(rank.activity.communication, rank.activity.span_ms / span_ms),
        }
        for rank in shown
    }
    remark = (
        "The height of a lane is the share of each moment that was busy. Every rank counts from the start of its own "
        "first recorded step: clocks of ranks are not compared here."
    )
    return strips(tracks, "ms", (0.0, span_ms), COLOURS) + note(remark) + note(say_choice(chosen, len(ranks)))


def _stretch(shares: np.ndarray, part: float) -> np.ndarray:
    """Bins of a rank that recorded only `part` of the axis, drawn to the axis' scale."""
    bins = len(shares)
    at = np.floor(np.arange(bins) / max(part, 1e-9)).astype(int)
    return np.where(at < bins, shares[np.minimum(at, bins - 1)], 0.0)


def say_choice(chosen: Sequence[int], count: int) -> str:
    """Which ranks are drawn, when not all are."""
    if len(chosen) >= count:
        return f"All {count} ranks are drawn." if count > 1 else "One rank was recorded."
    return (
        f"{len(chosen)} of {count} ranks are drawn, {count - len(chosen)} are left out: the slowest and the fastest, "
        f"those that a finding names, and others spread evenly ({', '.join(map(str, chosen))}). "
        "tables/rank_metrics.csv has all."
    )


def round_shares(names: Sequence[str]) -> list[Column | str]:
    """Columns of a table under the names of the parts; percentages with one decimal."""
    return [
        Column(name, OF_SHARE.get(name, ""), "%" if name in OF_SHARE else "", 1)
        if name.endswith("_pct")
        else name
        for name in names
    ]


def build_phases(report: dict[str, Any]) -> Section:
    """What each phase of the mean step is made of."""
    parts = build_phase_parts(report)
    if not parts:
        return Section("Phases", nothing="no phase is labelled in the traces")
    lacking = [
        f"rank {rank} has no label of {', '.join(missing)}"
        for rank, present in report["phases_present"].items()
        if (missing := [p for p in ("data", "forward", "backward", "optimizer") if p not in present])
    ]
    what = (
        "Time on the GPU while the host's label ran: a phase lasts until its work is done, and the phases of a step "
        "lie side by side."
        if report["source"] == "gpu"
        else "Time of each label on the host."
    )
    html = stacked_bars(parts, "ms of the mean step", COLOURS) + note(
        f"{what} 'other' lies between the labels. Mean over all ranks and recorded steps."
    )
    rows = [{"phase": phase, **row} for phase, row in parts.items()]
    if rows:
        digits = 2 if (report["mean"].get("step_ms") or 0) >= 10 else 4
        times = (Column(name, name, "ms", digits) for name in rows[0] if name != "phase")
        html += html_table(rows, ["phase", *times])
    if lacking:
        more = f", and {len(lacking) - 20} more ranks" if len(lacking) > 20 else ""
        html += note(" ".join(f"{text}." for text in lacking[:20]) + more)
    columns = ["rank", "step", "step_ms", "data_ms", "forward_ms", "backward_ms", "optimizer_ms"]
    steps = [row | {"rank": str(row["rank"]), "step": str(row["step"])} for row in report["steps"]]
    label = (
        "Each step: the label of data on the host, of the others the GPU time of what was issued inside"
        if report["source"] == "gpu"
        else "Each step: time of its labels"
    )
    table = html_table(steps[:MOST_ROWS], columns) + cut_note(steps, "step_metrics")
    return Section("Phases", html + details(label, table))


def cut_note(rows: Sequence[Any], table: str, most: int = MOST_ROWS) -> Markup:
    """Says how many rows are left out, if any."""
    if len(rows) <= most:
        return Markup("")
    return note(f"{most} of {len(rows)} rows are shown, tables/{table}.csv has all.")


def build_ranks(report: dict[str, Any], chosen: Sequence[int]) -> Markup:
    """The mean step of each chosen rank, and all numbers of them."""
    parts = build_rank_parts(report)
    bars = {f"rank {rank}": parts[rank] for rank in chosen if rank in parts}
    mean = report["mean"]
    whole = {"rank": "all", **{k: v for k, v in mean.items() if k not in ("ranks", "steps")}}
    columns = ["rank", "step_ms", "compute_pct", "comm_pct", "comm_exposed_pct", "comm_overlap_pct"]
    columns += ["straggler_pct", "data_wait_pct", "host_wait_pct", "idle_pct"]
    rows = [row | {"rank": str(row["rank"])} for row in report["ranks"] if row["rank"] in set(chosen)]
    html = stacked_bars(bars, "ms of the mean step", COLOURS) + html_table(
        [*rows, whole], round_shares(columns)
    )
    if len(report["ranks"]) > 1 and mean.get("compute_imbalance") is not None:
        late = mean.get("slowest_rank")
        html += note(
            ("No rank is" if late is None else f"Rank {late} is")
            + " late by more than chance explains; the largest compute time of a rank is "
            f"{mean['compute_imbalance']:.3f} times the mean."
        )
    if mean.get("bubble_ideal_pct") is not None and mean.get("bubble_pct") is not None:
        measured, ideal = mean["bubble_pct"], mean["bubble_ideal_pct"]
        bubbles = {"measured": {"pipeline bubble": measured}, "ideal": {"pipeline bubble": ideal}}
        html += subtitle("Bubble of the pipeline") + stacked_bars(bubbles, "% of the step", COLOURS)
        html += note("Ideal: (p - 1) / (m + p - 1) for p stages and m micro-batches of equal length.")
    return html + note(say_choice(chosen, len(report["ranks"])))
