"""summary.md: the answer of a comparison as text with tables, for places that show Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratlab.compare.judging.ranking import say_search
from stratlab.compare.judging.scaling import name_series
from stratlab.compare.judging.winners import NAMES
from stratlab.compare.showing import sharding_section
from stratlab.compare.showing.search_section import build_search_rows, list_columns
from stratlab.compare.showing.short_names import SHORT, shorten_names
from stratlab.compare.showing.shown_differences import say_differences
from stratlab.compare.showing.tradeoffs import SCALING_COLUMNS
from stratlab.compare.showing.verdict import describe_origin, describe_work
from stratlab.drawing import Column, escape_markdown, markdown_table
from stratlab.number import format_count

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
