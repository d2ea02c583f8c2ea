"""summary.md: the same answer as the page, as text with tables, for places that show Markdown (MLflow does)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratlab.analysis.pages.origin import build_short_origin
from stratlab.analysis.pages.part_names import say_headline
from stratlab.analysis.pages.summaries import (
    build_collective_summary,
    build_copy_summary,
    build_kernel_summary,
    build_phase_parts,
    choose_ranks,
)
from stratlab.drawing import Column, escape_markdown, markdown_table
from stratlab.number import format_number

MOST_KERNELS, MOST_FINDINGS, MOST_FILES = 10, 30, 8

Columns = Sequence[Column | str]


def build_markdown(report: dict[str, Any]) -> str:
    """The text of summary.md. Every text from outside is escaped."""
    run = report["run"]
    blocks = [f"# Trace analysis of {escape_markdown(run['run'])}"]
    if report["note"]:
        blocks.append(f"**{escape_markdown(report['note'])}.**")
    blocks += [
        escape_markdown(build_short_origin(report)),
        *_layout(run),
        f"**{escape_markdown(say_headline(report))}**",
        *_recommendations(report),
    ]
    blocks += ["## Where the time of a step goes", *_phases(report), *_ranks(report)]
    blocks += [
        *_communication(report),
        *_kernels(report),
        *list_recordings(report),
        *_quality(report),
        *_files(report),
    ]
    return "\n\n".join(blocks) + "\n"


def _layout(run: Mapping[str, Any]) -> list[str]:
    layout = run.get("layout")
    if not layout:
        return []
    lacks = ", ".join(layout["missing"] or []) or "a kind of"
    label = f" Degenerate: lacks {lacks} parallelism; compared with no run." if layout["degenerate"] else ""
    return [escape_markdown(f"Layout {layout['name']}. {layout['reason'] or ''}{label}")]


def _recommendations(report: dict[str, Any]) -> list[str]:
    entries = report.get("recommendations") or []
    if not entries:
        return ["## Recommendations", "None of the rules R1 to R12 fires."]
    lines = []
    for entry in entries:
        settings = "; ".join(f"{name}={value}" for name, value in entry["settings"].items())
        numbers = ", ".join(f"{name} {format_number(value)}" for name, value in entry["evidence"].items())
        text = (
            f"**{escape_markdown(entry['title'])}** ({entry['severity']}, {entry['rule']}) "
            f"{escape_markdown(entry['advice'])}"
        )
        text += f" Set: {escape_markdown(settings)}." if settings else ""
        lines.append(f"- {text} Because: {escape_markdown(numbers)}.")
    return ["## Recommendations", "\n".join(lines)]


def _phases(report: dict[str, Any]) -> list[str]:
    parts = build_phase_parts(report)
    if not parts:
        return []
    rows = [{"phase": phase, **row} for phase, row in parts.items()]
    table = markdown_table(
        rows, ["phase", *(Column(name, name, "ms") for name in rows[0] if name != "phase")]
    )
    return ["Mean over ranks and recorded steps, by phase:", table]


def _ranks(report: dict[str, Any]) -> list[str]:
    chosen = set(choose_ranks(report))
    rows = [row | {"rank": str(row["rank"])} for row in report["ranks"] if row["rank"] in chosen]
    rows.append({**report["mean"], "rank": "all"})
    columns = ["rank", "step_ms", "compute_pct", "comm_exposed_pct", "comm_overlap_pct", "straggler_pct"]
    columns += ["data_wait_pct", "host_wait_pct", "idle_pct"]
    if report["mean"].get("bubble_ideal_pct") is not None:
        columns += ["bubble_pct", "bubble_ideal_pct"]
    left = len(report["ranks"]) - len(chosen)
    more = [f"{left} ranks are left out here, tables/rank\\_metrics.csv has all."] if left else []
    return [markdown_table(rows, columns), *more]


def _communication(report: dict[str, Any]) -> list[str]:
    rows = build_collective_summary(report)
    if not rows:
        return ["## Communication", "No communication was recorded."]
    columns: list[Column | str] = [
        "collective",
        "ranks",
        "count",
        "bytes",
        "total_ms",
        "exposed_ms",
        "wait_ms",
    ]
    return ["## Communication", markdown_table(rows[:20], [*columns, Column("came_last", "came last")])]


def _kernels(report: dict[str, Any]) -> list[str]:
    rows, copies = build_kernel_summary(report, MOST_KERNELS), build_copy_summary(report)
    blocks = []
    if rows:
        columns: Columns = [
            "name",
            "type",
            "count",
            "sum_ms",
            Column("pct", "of GPU event time", "%", 1),
            "mean_us",
        ]
        blocks += ["## Kernels", markdown_table(rows, columns)]
    if copies:
        blocks += [
            "## Copies",
            markdown_table(copies, ["kind", "count", "bytes", Column("gbps", "rate", "GB/s")]),
        ]
    return blocks


def list_recordings(report: Mapping[str, Any]) -> list[str]:
    """What was recorded beside the traces; nothing where there is none."""
    rows = report.get("recordings") or []
    lines = [
        f"- {row['recording']} ({escape_markdown(', '.join(list(row['files'])[:MOST_FILES]))}"
        f"{' and more' if len(row['files']) > MOST_FILES else ''}): {row['what']}."
        for row in rows
    ]
    return ["## Recorded beside the traces", "\n".join(lines)] if lines else []


def _quality(report: dict[str, Any]) -> list[str]:
    if not report["quality"]:
        return ["## Quality of the traces", "Every rank has a complete trace with all labels."]
    rows = sorted(report["quality"], key=lambda row: row["action"] != "skipped")
    shown = [
        row | {"rank": None if row["rank"] is None else str(row["rank"])} for row in rows[:MOST_FINDINGS]
    ]
    table = markdown_table(shown, ["action", "rank", "file", "reason"])
    left = len(rows) - len(shown)
    return ["## Quality of the traces", table, *([f"{left} more are in tables/quality.csv."] if left else [])]


def _files(report: dict[str, Any]) -> list[str]:
    merged = report.get("merged") or {}
    trace = (
        f"{escape_markdown(merged['file'])}: one trace of {len(merged.get('ranks') or [])} ranks, for Perfetto."
        if merged.get("file")
        else f"No merged trace: {escape_markdown(merged.get('reason') or 'it was not written')}."
    )
    states: dict[str, int] = {}
    for row in report["hta"]:
        states[row["status"]] = states.get(row["status"], 0) + 1
    said = ", ".join(f"{count} {state}" for state, count in states.items())
    if reason := (report.get("hta_ranks") or {}).get("reason"):
        said += f"; {escape_markdown(reason)}"
    return ["## Files", f"{trace} report.html has the charts. Holistic Trace Analysis: {said or 'not run'}."]
