"""summary.md: the answer of a comparison as text with tables, for places that show Markdown.

Names of runs as a page shows them: a sweep puts the comparison's name before each, which tells none from another.

The comparison as one small table for a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.markup import escape
from rich.table import Table

from stratlab.compare import tradeoffs_view as sharding_section
from stratlab.compare.efficiency import name_series, say_sharding
from stratlab.compare.run_rows import find_recorded_step_ms
from stratlab.compare.search_ranking import say_search
from stratlab.compare.tradeoffs_view import SCALING_COLUMNS, build_search_rows, list_columns
from stratlab.compare.verdict_view import (
    describe_origin,
    describe_work,
    either,
    is_foreign,
    say_differences,
    say_few_steps,
    say_unsteady,
)
from stratlab.compare.winners import NAMES
from stratlab.drawing import Column, escape_markdown, markdown_table
from stratlab.run_directory.record import TRACED, RunRecord
from stratlab.wording import fit_unit, format_count, format_number

SHORT = "Names of runs are shown without {}, which begins all of them"
PLACES = ("run_dir", "folder")
"""Keys of the report that hold paths."""
LEAST = 8
"""Letters to be taken off: what little is gained else does not pay for names that are not those of the runs."""


def shorten_names(
    report: Mapping[str, Any], runs: Sequence[RunRecord]
) -> tuple[Mapping[str, Any], Sequence[RunRecord], str]:
    """(the report, its runs, what was taken off): as they are, and "", unless every name begins with the comparison's,
    which has LEAST letters or more.

    Names are shortened wherever they stand by themselves, as keys, as values and in sentences; not in paths (PLACES
    among them) and links.
    """
    names = [row["run"] for row in report["runs"]]
    prefix = _find_prefix(str(report["comparison"]), names)
    if not prefix:
        return report, runs, ""
    short = {name: name.removeprefix(prefix) for name in names}
    words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w/.=-])(?:{words})(?![\w/-])")

    def change(node: Any) -> Any:
        if isinstance(node, str):
            return pattern.sub(lambda found: short[found[0]], node)
        if isinstance(node, Mapping):
            return {change(key): each if key in PLACES else change(each) for key, each in node.items()}
        return [change(each) for each in node] if isinstance(node, list | tuple) else node

    shown = {name: node if name == "comparison" else change(node) for name, node in report.items()}
    return shown, [replace(run, name=short.get(run.name, run.name)) for run in runs], prefix


def _find_prefix(comparison: str, names: Sequence[str]) -> str:
    """The comparison's name as it begins all of them: its own, or as a sweep writes it into names."""
    slug = re.sub(r"[^a-z0-9]+", "-", comparison.lower()).strip("-")
    for begin in dict.fromkeys((comparison, slug, f"s-{slug}")):
        prefix = f"{begin}-"
        if len(prefix) >= LEAST and all(name.startswith(prefix) and name != prefix for name in names):
            return prefix if len(names) > 1 else ""
    return ""


RUNS: tuple[Column | str, ...] = (
    *("run", "strategy", "status", Column("world_size", "ranks")),
    Column("samples_per_s", "samples", "per s", 1),
    Column("tokens_per_s", "tokens", "per s", 0),
    Column("step_time_ms_p50", "step p50", "ms", 2),
    Column("noise_ms", "\N{PLUS-MINUS SIGN}", "ms", 2),
    Column("state_memory_gib", "state per rank", "GiB"),
    Column("peak_memory_gib", "device peak", "GiB", 2),
    Column("comm_exposed_pct", "exposed comm.", "%", 1),
    Column("validation_accuracy_pct", "validation accuracy", "%", 2),
    Column("test_accuracy_pct", "test accuracy", "%", 2),
    Column("validation_perplexity", "validation perplexity", digits=3),
    Column("test_perplexity", "test perplexity", digits=3),
)


def build_markdown(report: Mapping[str, Any]) -> str:
    """The text of summary.md. Every text from outside is escaped."""
    report, _, prefix = shorten_names(report, [])
    headline, shortened = report["headline"], f" {SHORT.format(prefix)}." if prefix else ""
    blocks = [
        f"# Comparison {escape_markdown(report['comparison'])}",
        escape_markdown(" ".join(filter(None, (describe_work(report), describe_origin(report)))) + shortened),
        f"**{escape_markdown(headline['verdict'])}**: {escape_markdown(headline['reason'])}.",
        *([_list(headline["answers"])] if headline["answers"] else []),
        *([_list(report["remarks"])] if report["remarks"] else []),
        *_best(report),
        "## Runs",
        markdown_table(report["runs"], [c for c in RUNS if isinstance(c, str) or _known(report, c)]),
    ]
    blocks += [*_search(report), *_scaling(report), *_sharding(report)]
    sentences = [pair["sentence"] for pair in report["attribution"]["pairs"]]
    blocks += ["## Why", _list(sentences)] if sentences else []
    return "\n\n".join(blocks) + "\n"


def _list(sentences: list[str]) -> str:
    return "\n".join(f"* {escape_markdown(sentence)}" for sentence in sentences)


def _known(report: Mapping[str, Any], column: Column) -> bool:
    return any(row[column.key] is not None for row in report["runs"])


def _best(report: Mapping[str, Any]) -> list[str]:
    groups = report["group_winners"] or [{**report, "runs": []}]
    blocks = []
    for group in groups:
        lines = [
            {"question": NAMES[metric], "best run": run, "why": group["winner_reasons"][metric]}
            for metric, run in group["winners"].items()
        ]
        title = f"## Best among {', '.join(group['runs'])}" if group["runs"] else "## Best"
        blocks += [
            escape_markdown(title).replace("\\#", "#"),
            markdown_table(lines, ["question", "best run", "why"]),
        ]
    means = say_differences(report)
    return [*blocks, escape_markdown(means)] if means else blocks


def _search(report: Mapping[str, Any]) -> list[str]:
    search = report["search"]
    if not search:
        return []
    blocks = ["## Search", _list(say_search(search))]
    if search["points"]:
        blocks.append(markdown_table(build_search_rows(search), list_columns(search)))
    return blocks


def _scaling(report: Mapping[str, Any]) -> list[str]:
    blocks = []
    for series in report["scaling"]:
        rows = [{**point, "runs": ", ".join(point["runs"])} for point in series["points"]]
        known = [
            c for c in SCALING_COLUMNS if isinstance(c, str) or any(row[c.key] is not None for row in rows)
        ]
        blocks += [
            f"## {escape_markdown(name_series(series))}: {series['kind']} scaling",
            escape_markdown(
                f"{series['what']}; {series['hardware']}, backend {series['backend']}, "
                f"{format_count(series['repeats'], 'repeat')} at least."
                + (f" {series['note']}." if series["note"] else "")
            ),
            markdown_table(rows, known),
        ]
    return blocks


def _sharding(report: Mapping[str, Any]) -> list[str]:
    words = {True: "kept", False: "not kept", None: "not known"}
    rows = [{**entry, "kept": words[entry["kept"]]} for entry in report["sharding"]]
    return ["## Sharding", markdown_table(rows, sharding_section.COLUMNS)] if rows else []


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
