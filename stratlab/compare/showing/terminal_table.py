"""The comparison as one small table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.markup import escape
from rich.table import Table

from stratlab.compare.judging.ranking import say_search
from stratlab.compare.judging.sharding import say_sharding
from stratlab.compare.judging.winners import NAMES
from stratlab.compare.reading.run_rows import find_recorded_step_ms
from stratlab.compare.showing.banner import say_few_steps, say_unsteady
from stratlab.compare.showing.short_names import SHORT, shorten_names
from stratlab.compare.showing.verdict import either, is_foreign
from stratlab.number import fit_unit, format_number
from stratlab.run_directory.record import TRACED

NARROWEST, WIDE = 80, 110
COLUMNS: tuple[tuple[str, str, int | None], ...] = (
    ("strategy", "strategy", None),
    ("status", "status", None),
    ("samples_per_s", "samples/s", 1),
    ("useful_tokens_per_s", "useful tokens/s", 0),
    ("step_time_ms_p50", "step ms", 2),
    ("state_memory_gib", "state GiB/rank", 4),
    ("peak_memory_gib", "device peak GiB", 2),
    ("comm_exposed_pct", "exposed comm %", 1),
    ("test_accuracy_pct", "test acc %", 2),
    ("bubble_pct", "bubble %", 1),
    ("test_perplexity", "test perplexity", 3),
)
OF_TRACES: tuple[tuple[str, str, int | None], ...] = (
    ("status", "status", None),
    ("trace_source", "events", None),
    ("trace_ranks", "ranks", None),
    ("recorded_steps", "steps", None),
    ("recorded_step_ms", "recorded step ms", 2),
    ("compute_pct", "compute %", 1),
    ("comm_exposed_pct", "exposed comm %", 1),
    ("copy_exposed_pct", "exposed copies %", 1),
    ("idle_pct", "idle %", 1),
)
STATE = "state_memory_gib"
OF_IMAGES = ("samples_per_s", "test_accuracy_pct")
LEFT = ("strategy", "status", "trace_source")
OF_TEXT = ("useful_tokens_per_s", "bubble_pct", "test_perplexity")


def terminal_table(report: Mapping[str, Any], width: int = WIDE) -> Table:
    """One row per run; the caption says whether they are comparable and where the numbers come from.

    Args:
        width: of the terminal; below WIDE there are no lines between columns, a word of a heading has its own line, and
            from NARROWEST on no number is broken.
    """
    narrow = width < WIDE
    report, _, prefix = shorten_names(report, [])
    origin = report["origin"]
    hardware, backend, world_size, steps = (
        either(origin[name]) for name in ("hardware", "backend", "world_size", "steps")
    )
    only_traces = is_foreign(report)
    best = [f"{NAMES[metric]}: {run}" for metric, run in report["winners"].items() if run]
    headline = report["headline"]
    lines = [
        *([SHORT.format(prefix)] if prefix else []),
        f"{headline['verdict']}: {headline['reason']}",
        *headline["answers"],
        *([] if headline["answers"] and not best else [f"best: {', '.join(best) or 'nobody is named'}"]),
        *_list_goals(report),
        *say_search(report["search"]),
        *say_sharding(report["sharding"]),
        f"{hardware}, backend {backend}, world size {world_size}"
        + ("" if only_traces else f", {steps} steps"),
        *report["remarks"],
        *filter(None, (say_few_steps(report["runs"]), say_unsteady(report["runs"]))),
        *([""] if report["attribution"]["pairs"] else []),
        *(pair["sentence"] for pair in report["attribution"]["pairs"]),
    ]
    table = Table(title=escape(f"comparison {report['comparison']}"), caption=escape("\n".join(lines)))
    if narrow:
        table.box, table.pad_edge, table.padding = SIMPLE_HEAD, False, (0, 1, 0, 0)
    table.caption_justify = "left"
    table.add_column("run", overflow="fold")  # what tells runs apart stands at the end
    tasks = {row["task"] for row in report["runs"]} - {None}
    left_out = (*(OF_IMAGES if tasks == {"text"} else ()), *(OF_TEXT if tasks == {"image"} else ()))
    columns = [column for column in COLUMNS if column[0] not in left_out]
    columns = [_on_host(column) if _has_no_device(report) else column for column in columns]
    factor, unit = fit_unit(row["state_memory_gib"] for row in report["runs"])
    columns = [(STATE, f"state {unit}/rank", 3) if column[0] == STATE else column for column in columns]
    if any(row["status"] == TRACED for row in report["runs"]):
        others = [column for column in OF_TRACES if column not in columns]
        columns = list(OF_TRACES) if only_traces else [*columns, *others]
    for name, header, _ in columns:
        justify: JustifyMethod = "left" if name in LEFT else "right"
        heading = header.replace(" ", "\n") if narrow else header
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=NARROWEST <= width < WIDE)
    for row in report["runs"]:
        bubble = row["bubble_pct"] if (row["pp"] or 1) > 1 else None
        row = {**row, "strategy": _name(row), "status": _status(row), "bubble_pct": bubble}
        row |= _read_traces(row) | {STATE: row[STATE] and row[STATE] * factor}
        cells = [format_number(row[name], digits) for name, _, digits in columns]
        table.add_row(*(escape(cell) for cell in (row["run"], *cells)))
    return table


def _name(row: Mapping[str, Any]) -> Any:
    return f"{row['strategy']} {row['layout']}" if row["layout"] else row["strategy"]


def _status(row: Mapping[str, Any]) -> str:
    """`degenerate: lacks data, tensor`, where a run is not compared."""
    lacks = ", ".join(row["missing_dimensions"])
    return f"degenerate{': lacks ' if lacks else ''}{lacks}" if row["degenerate"] else row["status"]


def _read_traces(row: Mapping[str, Any]) -> dict[str, Any]:
    """Of how many ranks there are traces; of steps only where labels tell them."""
    step_ms = find_recorded_step_ms(row)
    ranks, steps = len(row["phases_present"]) or None, row["trace_steps"] if step_ms is not None else None
    return {"trace_ranks": ranks, "recorded_steps": steps, "recorded_step_ms": step_ms}


def _list_goals(report: Mapping[str, Any]) -> list[str]:
    """Only the goal that was asked for: the others are among the best."""
    if report["goals"]["memory_limit_gib"] is None:
        return []
    found = [entry for group in report["goals"]["groups"] for entry in group["goals"][2:]]
    return [f"{e['goal']}: {e['run'] or 'nobody is named'} ({e['reason']})" for e in found]


def _has_no_device(report: Mapping[str, Any]) -> bool:
    return all(row["peak_memory_gib"] is None for row in report["runs"])


def _on_host(column: tuple[str, str, int | None]) -> tuple[str, str, int | None]:
    return ("peak_host_memory_gib", "host peak GiB", 2) if column[0] == "peak_memory_gib" else column
