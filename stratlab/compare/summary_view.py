"""The answer of a comparison as text: summary.md, for places that show Markdown, and one small table for a terminal.

`shorten_names`: names of runs as a page shows them. A sweep puts the comparison's name before each, which tells none
from another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.markup import escape
from rich.table import Table

from stratlab.compare.answers import is_foreign, say_answer
from stratlab.compare.efficiency import name_series, say_sharding
from stratlab.compare.placement import ComparedRun
from stratlab.compare.run_rows import RunRow, read_rows
from stratlab.compare.search_ranking import say_search
from stratlab.compare.tradeoffs_view import SHARDING_COLUMNS, build_search_rows, list_columns, list_points
from stratlab.compare.verdict_view import (
    describe_origin,
    describe_work,
    either,
    say_doubts,
)
from stratlab.compare.winners import list_best, read_winners
from stratlab.drawing import Column, Columns, escape_markdown, markdown_table
from stratlab.wording import fit_unit, format_count, format_number

Report = Mapping[str, Any]
SHORT = "Names of runs are shown without {}, which begins all of them"
PLACES = ("run_dir", "folder")
"""Keys of the report that hold paths."""
LEAST = 8
"""Letters to be taken off: what little is gained else does not pay for names that are not those of the runs."""
KEPT = {True: "kept", False: "not kept", None: "not known"}
RUNS: Columns = (
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
NARROWEST, WIDE = 80, 110
Cell = tuple[str, str, int | None]
"""Key of the row, heading, decimals."""
COLUMNS: tuple[Cell, ...] = (
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
OF_TRACES: tuple[Cell, ...] = (
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


def shorten_names(
    report: Mapping[str, Any], runs: Sequence[ComparedRun]
) -> tuple[Mapping[str, Any], Sequence[ComparedRun], str]:
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
    """The comparison's name as it begins all of them: its own, or as a sweep writes it into names; else what begins
    all of them up to a hyphen."""
    slug = re.sub(r"[^a-z0-9]+", "-", comparison.lower()).strip("-")
    words = zip(*(name.split("-") for name in names), strict=False)
    common = "-".join(each[0] for each in takewhile(lambda each: len({*each}) == 1, words))
    for begin in dict.fromkeys((comparison, slug, f"s-{slug}", common)):
        prefix = f"{begin}-"
        if len(prefix) >= LEAST and all(name.startswith(prefix) and name != prefix for name in names):
            return prefix if len(names) > 1 else ""
    return ""


def build_markdown(report: Report) -> str:
    """The text of summary.md. Every text from outside is escaped."""
    report, _, prefix = shorten_names(report, [])
    headline, rows = report["headline"], report["runs"]
    about = [describe_work(report), describe_origin(report), f"{SHORT.format(prefix)}." if prefix else ""]
    known = [c for c in RUNS if isinstance(c, str) or any(row[c.key] is not None for row in rows)]
    blocks = [
        f"# Comparison {escape_markdown(report['comparison'])}",
        escape_markdown(say_answer(report)),
        escape_markdown(" ".join(filter(None, about))),
        f"**{escape_markdown(headline['verdict'])}**: {escape_markdown(headline['reason'])}.",
        _list(headline["answers"]),
        _list(report["remarks"]),
    ]
    for group in report["group_winners"] or [report]:
        best = [{"question": w.metric.name, "best run": w.run, "why": w.reason} for w in read_winners(group)]
        among = f" among {escape_markdown(', '.join(group['runs']))}" if report["group_winners"] else ""
        blocks += [f"## Best{among}", markdown_table(best, ["question", "best run", "why"])]
    blocks += ["## Runs", markdown_table(rows, known)]
    if search := report["search"]:
        blocks += ["## Search", _list(say_search(search))]
        if search["points"]:
            blocks.append(markdown_table(build_search_rows(search), list_columns(search)))
    for series in report["scaling"]:
        where = f"{series['what']}; {series['hardware']}, backend {series['backend']}"
        cpu = f" {series['note']}." if series["note"] else ""
        blocks += [
            f"## {escape_markdown(name_series(series))}: {series['kind']} scaling",
            escape_markdown(f"{where}, {format_count(series['repeats'], 'repeat')} at least.{cpu}"),
            markdown_table(*list_points(series)),
        ]
    if entries := [{**entry, "kept": KEPT[entry["kept"]]} for entry in report["sharding"]]:
        blocks += ["## Sharding", markdown_table(entries, SHARDING_COLUMNS)]
    if sentences := [pair["sentence"] for pair in report["attribution"]["pairs"]]:
        blocks += ["## Why", _list(sentences)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _list(sentences: Iterable[str]) -> str:
    return "\n".join(f"* {escape_markdown(sentence)}" for sentence in sentences)


def terminal_table(report: Report, width: int = WIDE) -> Table:
    """One row per run; the caption says whether they are comparable and where the numbers come from.

    Args:
        width: of the terminal; below WIDE there are no lines between columns, a word of a heading has its own line, and
            from NARROWEST on no number is broken.
    """
    narrow = width < WIDE
    report, _, prefix = shorten_names(report, [])
    table = Table(
        title=escape(f"comparison {report['comparison']}"),
        caption=escape("\n".join(_caption(report, prefix))),
    )
    if narrow:
        table.box, table.pad_edge, table.padding = SIMPLE_HEAD, False, (0, 1, 0, 0)
    table.caption_justify = "left"
    table.add_column("run", overflow="fold")  # what tells runs apart stands at the end
    rows = read_rows(report)
    factor, unit = fit_unit(row.state_memory_gib for row in rows)
    columns = _choose_columns(rows, unit)
    for name, header, _ in columns:
        justify: JustifyMethod = "left" if name in LEFT else "right"
        heading = header.replace(" ", "\n") if narrow else header
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=NARROWEST <= width < WIDE)
    for row in rows:
        values = _read_cells(row, factor)
        cells = [format_number(values[name], digits) for name, _, digits in columns]
        table.add_row(*(escape(cell) for cell in (row.run, *cells)))
    return table


def _caption(report: Report, prefix: str) -> list[str]:
    headline, sentences = report["headline"], [pair["sentence"] for pair in report["attribution"]["pairs"]]
    hardware, backend, world_size, steps = (
        either(report["origin"][name]) for name in ("hardware", "backend", "world_size", "steps")
    )
    trained = "" if is_foreign(report) else f", {steps} steps"
    best = list_best(read_winners(report))
    goals = [goal for group in report["goals"]["groups"] for goal in group["goals"][2:]]  # what was asked for
    return [
        *([SHORT.format(prefix)] if prefix else []),
        f"{headline['verdict']}: {headline['reason']}",
        *headline["answers"],
        *([] if headline["answers"] and not best else [f"best: {best or 'nobody is named'}"]),
        *(f"{goal['goal']}: {goal['run'] or 'nobody is named'} ({goal['reason']})" for goal in goals),
        *say_search(report["search"]),
        *say_sharding(report["sharding"]),
        f"{hardware}, backend {backend}, world size {world_size}{trained}",
        *report["remarks"],
        *say_doubts(report),
        *([""] if sentences else []),
        *sentences,
    ]


def _choose_columns(rows: Sequence[RunRow], unit: str) -> list[Cell]:
    """Those that the runs fill; `unit`: of what their state holds."""
    tasks = {row.task for row in rows} - {None}
    left_out = (*(OF_IMAGES if tasks == {"text"} else ()), *(OF_TEXT if tasks == {"image"} else ()))
    instead = {STATE: (STATE, f"state {unit}/rank", 3)}
    if all(row.peak_memory_gib is None for row in rows):
        instead["peak_memory_gib"] = ("peak_host_memory_gib", "host peak GiB", 2)
    columns = [instead.get(column[0], column) for column in COLUMNS if column[0] not in left_out]
    if all(row.is_foreign for row in rows):
        return list(OF_TRACES)
    others = OF_TRACES if any(row.is_foreign for row in rows) else ()
    return [*columns, *(column for column in others if column not in columns)]


def _read_cells(row: RunRow, factor: float) -> dict[str, Any]:
    """Its values as the table shows them. Of steps there are numbers only where labels tell them."""
    lacks, step_ms = ", ".join(row.missing_dimensions), row.recorded_step_ms
    bubble = row.bubble_pct if (row.pp or 1) > 1 else None
    return {
        **vars(row),
        "strategy": f"{row.strategy} {row.layout}" if row.layout else row.strategy,
        "status": f"degenerate{': lacks ' if lacks else ''}{lacks}" if row.degenerate else row.status,
        "bubble_pct": bubble,
        STATE: row.state_memory_gib and row.state_memory_gib * factor,
        "trace_ranks": len(row.phases_present) or None,
        "recorded_steps": None if step_ms is None else row.trace_steps,
        "recorded_step_ms": step_ms,
    }
