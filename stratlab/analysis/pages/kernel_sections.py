"""Sections of the page about GPU events: how long kernels are, which take the time, copies, gaps between them."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from stratlab.analysis.pages.summaries import (
    build_copy_summary,
    build_idle_summary,
    build_kernel_summary,
    sum_known,
)
from stratlab.analysis.pages.time_sections import round_shares
from stratlab.drawing import Column, Section, histogram, html_table, note, stacked_bars, subtitle
from stratlab.run_directory.step_parts import COLOURS, DATA, HOST, LAUNCH

MOST_KERNELS = 20
LONGEST_NAME = 120
OF_TYPE = {"compute": "compute", "comm": "communication", "copy": "copies"}
IDLE = ("data_wait_pct", "host_wait_pct", "launch_wait_pct", "kernel_wait_pct", "other_idle_pct")
NO_GPU = "CPU traces hold no GPU events"


def build_device_sections(report: dict[str, Any]) -> list[Section]:
    """What only the events of a GPU can tell."""
    if report["source"] == "cpu":
        return [Section("Kernels", nothing=NO_GPU), Section("Copies", nothing=NO_GPU)]
    copies = Section("Copies", build_copies(report)) if report.get("copies") else None
    kernels = Section("Kernels", build_kernels(report)) if report.get("kernels") else None
    return [
        kernels or Section("Kernels", nothing="no kernel was recorded"),
        copies or Section("Copies", nothing="no copy was recorded"),
    ]


def build_kernels(report: dict[str, Any]) -> Markup:
    """The distribution of durations, and the kernels with most time."""
    mean, found = report["mean"], report.get("durations") or {}
    counts = {name: found[key] for key, name in OF_TYPE.items() if found.get(key)}
    html = histogram(found.get("edges_us") or [], counts, "duration of a GPU event, us", "events", COLOURS)
    facts: list[Column | str] = [
        "kernels_per_step",
        "kernel_us_p50",
        Column("short_kernel_pct", "shorter than 10 us", "%"),
    ]
    html += html_table([mean], facts)
    rows = [row | {"name": _shorten(row["name"])} for row in build_kernel_summary(report, MOST_KERNELS)]
    times: list[Column | str] = [
        *("type", "count", "sum_ms", Column("pct", "of GPU event time", "%", 1)),
        *("mean_us", "p50_us", "p95_us", "max_us"),
    ]
    html += subtitle("Kernels with most time") + html_table(rows, ["name", *times])
    return html + note(
        f"The {len(rows)} names with most time, all ranks together over the whole recording; p50 and p95 are means of "
        "the ranks' own. tables/kernel_stats.csv has all, rank by rank."
    )


def build_copies(report: dict[str, Any]) -> Markup:
    """Bandwidths: bytes over time."""
    rows = build_copy_summary(report)
    columns: list[Column | str] = ["kind", "count", "bytes", "total_ms", Column("gbps", "rate", "GB/s")]
    return html_table(rows, columns) + note(
        "All ranks together: the bytes of all copies of a kind over their time. '-': the trace tells no bytes. "
        "HtoD: from the host to the device."
    )


def build_idle(report: dict[str, Any]) -> Markup:
    """What the lane waited for: in the step as it is partitioned here, and per stream as HTA defines it."""
    mean = report["mean"]
    data, host, launch, *others = (mean.get(key) for key in IDLE)
    bar = {DATA: data, HOST: host}
    if report["source"] == "cpu":
        text = "Neither an operator nor communication ran; all of it but waiting for data is waiting for the host."
        return stacked_bars({"idle": bar}, "% of the step", COLOURS) + note(text)
    bar |= {LAUNCH: launch, "other idle": sum_known(others)}
    html = stacked_bars({"idle": bar}, "% of the step", COLOURS) + html_table([mean], round_shares(IDLE))
    html += note(
        "Idle: nothing ran on any stream. Data: under the host's label of data loading. Host: until the host launched "
        "the next event. Launch: from there until it started, or inside the launch. Kernel: gaps below 30 us between "
        "queued events."
    )
    rows = build_idle_summary(report)
    if not rows:
        return html
    columns = ["stream", "ranks", "host_wait_ms", "kernel_wait_ms", "other_ms"]
    return (
        html
        + subtitle("Per stream, by the definition of Holistic Trace Analysis")
        + html_table(rows, columns)
        + note(
            "Gaps between neighbours on one stream over the whole recording, also while another stream was busy; "
            "mean over ranks. A gap before an event that was launched after the gap had begun is the host's as a whole."
        )
    )


def _shorten(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
