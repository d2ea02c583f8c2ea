"""Describe a run that finished without traces by its own measurements. Same files, same fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stratlab.analysis.report import build_frame
from stratlab.analysis.report_pages import list_recordings
from stratlab.analysis.run_facts import RunFacts
from stratlab.analysis.run_sections import (
    build_layout,
    build_links,
    build_origin_section,
    build_recordings,
    build_training,
)
from stratlab.analysis.summaries import build_origin
from stratlab.drawing import Column, Section, build_page, html_table, note, paragraph
from stratlab.drawing import escape_markdown as escape
from stratlab.traces.discover import MANIFEST, TraceFinding, read_dropped
from stratlab.wording import format_number

TABLES = {  # title -> numbers of summary.json
    "Step": [
        *("measured_steps", "step_time_ms_p50", "step_time_ms_p95", "data_ms_p50", "forward_ms_p50"),
        *("backward_ms_p50", "optimizer_ms_p50", "samples_per_s", "tokens_per_s", "mfu_pct", "train_time_s"),
    ],
    "Memory of the rank with most": [
        *("parameter_memory_gib", "gradient_memory_gib", "optimizer_memory_gib"),
        *("peak_memory_gib", "peak_reserved_gib", "peak_host_memory_gib"),
    ],
    "Result": [
        *("steps", "train_loss", "validation_loss", "validation_accuracy_pct", "validation_perplexity"),
        *("test_loss", "test_accuracy_pct", "test_perplexity", "skipped_steps", "not_finite_steps"),
    ],
}


def build_untraced_report(facts: RunFacts, findings: Sequence[TraceFinding]) -> dict[str, Any]:
    """Return report.json of a run without traces: all lists empty, `source` None, the reason in `note`."""
    dropped = read_dropped(facts.folder / "traces" / MANIFEST)
    why = "profile_steps is 0" if facts.origin["profile_steps"] == 0 else "traces/ holds none"
    note = f"The traces could not be kept, {dropped}" if dropped else f"Nothing was recorded: {why}"
    return build_frame(facts, findings, note)


def say_untraced(report: Mapping[str, Any]) -> str:
    """Explain why there is no view inside a step, and give the step time by the run's own clock."""
    run = report["run"]
    step_ms, count = run.get("step_time_ms_p50"), run.get("measured_steps")
    if step_ms is None:
        return f"{report['note']}, and no step was measured."
    return f"{report['note']}. A step took {format_number(step_ms)} ms, the median of {format_number(count)}."


def build_untraced_html(report: dict[str, Any], facts: RunFacts) -> str:
    """Return the page: the run's measurements, its losses and its test."""
    sections = [
        Section("Where the time of a step goes", paragraph(say_untraced(report)) + note(_advice(report))),
        *build_layout(report),
        *(Section(title, html_table([row], list(row))) for title, row in _rows(facts)),
        *build_training(facts),
        *build_recordings(report),
        build_origin_section(report),
    ]
    title = f"Analysis of {report['run']['run']}"
    return build_page(title, build_origin(report), sections, links=build_links(report, facts))


def build_untraced_markdown(report: dict[str, Any], facts: RunFacts) -> str:
    """Return the text of summary.md."""
    blocks = [f"# Analysis of {escape(report['run']['run'])}", escape(build_origin(report))]
    blocks += [f"**{escape(say_untraced(report))}**", escape(_advice(report))]
    for title, row in _rows(facts):
        lines = ["| number | value | unit |", "|---|---:|---|"]
        for key, value in row.items():
            name, unit = Column(key).title()
            lines.append(f"| {escape(name)} | {escape(format_number(value))} | {escape(unit)} |")
        blocks += [f"## {title}", "\n".join(lines)]
    return "\n\n".join([*blocks, *list_recordings(report)]) + "\n"


def _rows(facts: RunFacts) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tables that have a number."""
    for title, names in TABLES.items():
        if row := {name: facts.summary[name] for name in names if facts.summary.get(name) is not None}:
            yield title, row


def _advice(report: Mapping[str, Any]) -> str:
    if report["run"].get("profile_steps") == 0:
        return "With run.config.profile_steps above 0 a few steps are recorded on every rank and taken apart here."
    if report["note"].startswith("The traces"):
        return "With that mended, the run trained anew records them; its other numbers are whole."
    return (
        "An attempt that goes on from a checkpoint behind the steps to be recorded, with too few left, records none; "
        "nor are there traces where they could not be written."
    )
