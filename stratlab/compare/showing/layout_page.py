"""The part of the page about layouts: axes, pipeline bubble, communication per axis, what each stage holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.compare.explaining.causes import COLLECTIVES
from stratlab.compare.judging.fairness import say_degenerate
from stratlab.compare.reading.layouts import STATE
from stratlab.drawing import (
    Column,
    Section,
    badge,
    details,
    html_table,
    note,
    paragraph,
    stacked_bars,
    subtitle,
)

Rows = Sequence[Mapping[str, Any]]

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")  # outermost first, as the ranks are laid out
MIB = 2**20


def build_layouts(rows: Rows) -> list[Section]:
    """One section with every finished run, where one of them has a layout."""
    shown = [row for row in rows if row["status"] == "finished"]
    if not any(row["layout"] for row in shown):
        return []
    html = _list_layouts(shown) + _compare_bubbles(shown) + _split_bytes(shown) + _list_stages(shown)
    return [Section("Layouts", html)]


def _list_layouts(rows: Rows) -> Markup:
    html = Markup("")
    for row in rows:
        if row["degenerate"]:
            why = f"{row['run']} is not compared: {say_degenerate(row['missing_dimensions'])}."
            html += paragraph(badge("degenerate", "bad") + " " + Markup.escape(why))
    lines = [
        {
            **row,
            "lacks": badge(", ".join(row["missing_dimensions"]) or "yes", "bad")
            if row["degenerate"]
            else None,
        }
        for row in rows
    ]
    columns: list[Column | str] = ["run", "strategy", "layout", "dimensions", *AXES]
    columns += [
        Column("sequence_parallel", "sequence parallel on tp"),
        "lacks",
        Column("layout_reason", "why"),
    ]
    return html + html_table(lines, columns)


def _compare_bubbles(rows: Rows) -> Markup:
    """Measured in the traces beside (pp - 1) / (m + pp - 1), of pipelines alone."""
    piped = [row for row in rows if (row["pp"] or 1) > 1]
    if not piped:
        return Markup("")
    columns: list[Column | str] = [
        *("run", "pp", Column("pp_schedule", "schedule"), Column("grad_accum_steps", "micro-batches")),
        *(Column("bubble_pct", "bubble", "%", 1), Column("bubble_ideal_pct", "ideal", "%", 1)),
        Column("trace_source", "events"),
    ]
    bars: dict[str, dict[str, float | None]] = {}
    for row in piped:
        bars[f"{row['run']}: measured"] = {"measured": row["bubble_pct"]}
        bars[f"{row['run']}: ideal"] = {"ideal": row["bubble_ideal_pct"]}
    html = subtitle("Pipeline bubble") + html_table(piped, columns) + stacked_bars(bars, "% of the step")
    html += note(
        "Measured: waiting for another stage that no computation hides, mean over ranks in the traced steps. Ideal: "
        "(pp - 1) / (m + pp - 1) of m micro-batches, for 1F1B and GPipe with stages of equal length and free messages; "
        "interleaved stages have less."
    )
    return html


def _split_bytes(rows: Rows) -> Markup:
    counted = [row for row in rows if row["wire_bytes_per_axis"]]
    if not counted:
        return Markup("")
    seen = {axis for row in counted for axis in row["wire_bytes_per_axis"]}
    axes = [*(axis for axis in AXES if axis in seen), *sorted(seen - set(AXES))]
    sent = {
        row["run"]: {
            axis: row["wire_bytes_per_axis"][axis] / MIB if axis in row["wire_bytes_per_axis"] else None
            for axis in axes
        }
        for row in counted
    }
    keys = {axis: f"bytes over {axis}" for axis in axes}
    lines = [
        {"run": run, **{keys[axis]: size for axis, size in sizes.items()}, "sum": _sum_up(sizes)}
        for run, sizes in sent.items()
    ]
    columns: list[Column | str] = [
        "run",
        *(Column(keys[axis], axis, "MiB", 3) for axis in axes),
        Column("sum", "sum", "MiB", 3),
    ]
    html = (
        subtitle("Communication per axis") + stacked_bars(sent, "MiB per step") + html_table(lines, columns)
    )
    html += note(
        "What the busiest rank of each axis sends in one step, counted from the calls: exact on any hardware. The "
        "busiest rank of one axis need not be that of another. '-': the run does not use the axis."
    )
    calls = [
        {"run": row["run"], "axis": axis, "collective": COLLECTIVES.get(kind, kind), "calls": count}
        for row in counted
        for axis, kinds in row["collectives_per_axis"].items()
        for kind, count in kinds.items()
    ]
    if calls:
        table = html_table(
            calls, ["run", "axis", "collective", Column("calls", "calls per step, most of a rank")]
        )
        html += details("Calls per axis and collective", table)
    return html


def _list_stages(rows: Rows) -> Markup:
    lines = [
        {"run": row["run"], **stage, "stage": str(stage["stage"])} for row in rows for stage in row["stages"]
    ]
    if not lines:
        return Markup("")
    columns: list[Column | str] = [
        *("run", "stage", "ranks"),
        *(Column(kind, kind, "GiB") for kind in STATE),
        Column("state", "held by the state", "GiB"),
        Column("peak_memory_gib", "peak on the device", "GiB", 3),
        Column("peak_host_memory_gib", "peak on the host", "GiB", 3),
    ]
    bars = {f"{line['run']}: stage {line['stage']}": {kind: line[kind] for kind in STATE} for line in lines}
    return (
        subtitle("Memory per stage")
        + html_table(lines, columns)
        + stacked_bars(bars, "GiB per rank")
        + note("Of each number the rank of the stage with most. Without a pipeline there is one stage, 0.")
    )


def _sum_up(values: Mapping[str, float | None]) -> float:
    return sum(value for value in values.values() if value is not None)
