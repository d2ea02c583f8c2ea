"""Sections of the page about time: the timeline, phases and ranks, collectives, GPU events, idle time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from stratlab.analysis.rank import RankAnalysis
from stratlab.analysis.summaries import (
    PHASES,
    build_collective_summary,
    build_copy_summary,
    build_idle_summary,
    build_kernel_summary,
    build_phase_parts,
    build_rank_parts,
    describe_collective,
    sum_known,
)
from stratlab.drawing import (
    Column,
    Section,
    details,
    histogram,
    html_table,
    note,
    stacked_bars,
    strips,
    subtitle,
)
from stratlab.wording import format_number
from stratlab_spec.step_parts import (
    COLOURS,
    COMMUNICATION,
    COMPUTE,
    DATA,
    HOST,
    IDLE_PARTS,
    LAST_RANK,
    LAUNCH,
)

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
            COMPUTE: stretch(rank.activity.compute, rank.activity.span_ms / span_ms),
            "communication": stretch(rank.activity.communication, rank.activity.span_ms / span_ms),
        }
        for rank in shown
    }
    remark = (
        "The height of a lane is the share of each moment that was busy. Every rank counts from the start of its own "
        "first recorded step: clocks of ranks are not compared here."
    )
    return strips(tracks, "ms", (0.0, span_ms), COLOURS) + note(remark) + note(say_choice(chosen, len(ranks)))


def stretch(shares: np.ndarray, part: float) -> np.ndarray:
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
    parts, on_gpu = build_phase_parts(report), report["source"] == "gpu"
    if not parts:
        return Section("Phases", nothing="no phase is labelled in the traces")
    lacking = [
        f"rank {rank} has no label of {', '.join(missing)}."
        for rank, present in report["phases_present"].items()
        if (missing := [phase for phase in PHASES[:-1] if phase not in present])
    ]
    what = (
        "Time on the GPU while the host's label ran: a phase lasts until its work is done, and the phases of a step "
        "lie side by side."
    )
    html = stacked_bars(parts, "ms of the mean step", COLOURS) + note(
        f"{what if on_gpu else 'Time of each label on the host.'} 'other' lies between the labels. Mean over all ranks "
        "and recorded steps."
    )
    rows = [{"phase": phase, **row} for phase, row in parts.items()]
    if rows:
        digits = 2 if (report["mean"].get("step_ms") or 0) >= 10 else 4
        html += html_table(rows, [Column(n, n, "" if n == "phase" else "ms", digits) for n in rows[0]])
    if lacking:
        more = f", and {len(lacking) - 20} more ranks" if len(lacking) > 20 else ""
        html += note(" ".join(lacking[:20]) + more)
    columns = ["rank", "step", "step_ms", "data_ms", "forward_ms", "backward_ms", "optimizer_ms"]
    label = "of the others the GPU time of what was issued inside"
    label = f"the label of data on the host, {label}" if on_gpu else "time of its labels"
    steps = as_text(report["steps"], "rank", "step")
    table = html_table(steps[:MOST_ROWS], columns) + cut_note(steps, "step_metrics")
    return Section("Phases", html + details(f"Each step: {label}", table))


def as_text(rows: Iterable[Mapping[str, Any]], *names: str) -> list[dict[str, Any]]:
    """Numbers that are names: no table adds separators to them."""
    return [{**row, **{n: None if row[n] is None else str(row[n]) for n in names}} for row in rows]


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
    rows = as_text((row for row in report["ranks"] if row["rank"] in set(chosen)), "rank")
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


MOST_COLLECTIVES = 20
HIDDEN = "hidden under compute"
PALETTE = COLOURS | {HIDDEN: COLOURS["compute"]}


def build_collectives(report: dict[str, Any], chosen: Sequence[int]) -> Section:
    """Means per rank over all recorded steps; the rows of single ranks are folded."""
    title, rows = "Communication against computation", build_collective_summary(report)
    if not rows:
        return Section(title, nothing="no communication was recorded")
    bars = {}
    for row in rows[:MOST_COLLECTIVES]:
        label = row["collective"] if row["collective"] not in bars else f"{row['collective']}, {row['name']}"
        bars[label] = _split(row)
    columns: list[Column | str] = [
        *("collective", Column("name", "as the trace has it"), "ranks", "count", "bytes"),
        *("total_ms", "exposed_ms", "wait_ms", Column("came_last", "came last")),
    ]
    mean, html = report["mean"], stacked_bars(bars, "ms per rank, all recorded steps", PALETTE)
    if mean.get("comm_overlap_pct") is not None and mean.get("comm_pct") is not None:
        html += note(
            f"Communication runs {format_number(mean['comm_pct'], 1)} % of the step; compute hides "
            f"{format_number(mean['comm_overlap_pct'], 1)} % of it."
        )
    # counts and bytes are the same on every rank but for odd groups: shown whole
    shown = [
        row | {key: None if row[key] is None else round(row[key]) for key in ("count", "bytes")}
        for row in rows[:MOST_COLLECTIVES]
    ]
    html += html_table(shown, columns)
    html += cut_note(rows, "collective_stats", MOST_COLLECTIVES)
    html += note(
        f"Source {report['source']}, means per rank. A collective ends on all ranks together: wait is the time above "
        "the shortest call of any rank, and the rank with the shortest call came last. '-': calls of ranks cannot be "
        "matched, or the trace does not tell."
    )
    single = [
        row | {"collective": describe_collective(row.get("collective"), row.get("axis"))}
        for row in as_text((row for row in report["collectives"] if row["rank"] in set(chosen)), "rank")
    ]
    ranks = ["rank", "collective", "count", "bytes", "total_ms", "exposed_ms", "wait_ms", "arrived_last"]
    table = html_table(single[:MOST_ROWS], ranks) + cut_note(single, "collective_stats")
    return Section(title, html + details("Rank by rank", table))


def _split(row: dict[str, Any]) -> dict[str, float | None]:
    """Of the time in a collective: hidden, transfer in the open, waiting in the open."""
    total, exposed, waiting = row["total_ms"], row["exposed_ms"], row["exposed_wait_ms"]
    if total is None or exposed is None:
        return {HIDDEN: None}
    return {
        HIDDEN: max(total - exposed, 0.0),
        "communication": exposed - (waiting or 0.0),
        "waiting for the last rank": waiting,
    }


MOST_KERNELS = 20
LONGEST_NAME = 120
SHARE_OF_EVENTS, COPY_RATE = Column("pct", "of GPU event time", "%", 1), Column("gbps", "rate", "GB/s")
OF_TYPE = {"compute": "compute", "comm": "communication", "copy": "copies"}
IDLE_SHARES = [f"{name}_pct" for name in IDLE_PARTS]


def build_device_sections(report: dict[str, Any]) -> Iterator[Section]:
    """What only the events of a GPU can tell."""
    for title, noun, build in (("Kernels", "kernel", build_kernels), ("Copies", "copy", build_copies)):
        if report["source"] == "cpu":
            yield Section(title, nothing="CPU traces hold no GPU events")
        elif report.get(title.lower()):
            yield Section(title, build(report))
        else:
            yield Section(title, nothing=f"no {noun} was recorded")


def build_kernels(report: dict[str, Any]) -> Markup:
    """The distribution of durations, and the kernels with most time."""
    mean, found = report["mean"], report.get("durations") or {}
    counts = {name: found[key] for key, name in OF_TYPE.items() if found.get(key)}
    html = histogram(found.get("edges_us") or [], counts, "duration of a GPU event, us", "events", COLOURS)
    short = Column("short_kernel_pct", "shorter than 10 us", "%")
    html += html_table([mean], ["kernels_per_step", "kernel_us_p50", short])
    rows = [
        row | {"name": shorten(row["name"], LONGEST_NAME)}
        for row in build_kernel_summary(report, MOST_KERNELS)
    ]
    columns: list[Column | str] = ["name", "type", "count", "sum_ms", SHARE_OF_EVENTS]
    columns += ["mean_us", "p50_us", "p95_us", "max_us"]
    html += subtitle("Kernels with most time") + html_table(rows, columns)
    return html + note(
        f"The {len(rows)} names with most time, all ranks together over the whole recording; p50 and p95 are means of "
        "the ranks' own. tables/kernel_stats.csv has all, rank by rank."
    )


def build_copies(report: dict[str, Any]) -> Markup:
    """Bandwidths: bytes over time."""
    table = html_table(build_copy_summary(report), ["kind", "count", "bytes", "total_ms", COPY_RATE])
    return table + note(
        "All ranks together: the bytes of all copies of a kind over their time. '-': the trace tells no bytes. "
        "HtoD: from the host to the device."
    )


def build_idle(report: dict[str, Any]) -> Markup:
    """What the lane waited for: in the step as it is partitioned here, and per stream as HTA defines it."""
    mean = report["mean"]
    data, host, launch, *others = (mean.get(key) for key in IDLE_SHARES)
    bar = {DATA: data, HOST: host}
    if report["source"] == "cpu":
        text = "Neither an operator nor communication ran; all of it but waiting for data is waiting for the host."
        return stacked_bars({"idle": bar}, "% of the step", COLOURS) + note(text)
    bar |= {LAUNCH: launch, "other idle": sum_known(others)}
    html = stacked_bars({"idle": bar}, "% of the step", COLOURS) + html_table(
        [mean], round_shares(IDLE_SHARES)
    )
    html += note(
        "Idle: nothing ran on any stream. Data: under the host's label of data loading. Host: until the host launched "
        "the next event. Launch: from there until it started, or inside the launch. Kernel: gaps below 30 us between "
        "queued events."
    )
    if rows := build_idle_summary(report):
        html += subtitle("Per stream, by the definition of Holistic Trace Analysis")
        html += html_table(rows, ["stream", "ranks", "host_wait_ms", "kernel_wait_ms", "other_ms"])
        html += note(
            "Gaps between neighbours on one stream over the whole recording, also while another stream was busy; "
            "mean over ranks. A gap before an event that was launched after the gap had begun is the host's as a whole."
        )
    return html


def shorten(text: str, most: int) -> str:
    """At most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
