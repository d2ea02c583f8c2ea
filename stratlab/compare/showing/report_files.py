"""report.html, summary.md, report.json and comparison.csv: each appears whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stratlab.compare.judging.winners import LEAST_LEAD_PCT
from stratlab.compare.reading.run_rows import (
    AXES,
    SCALING_FIELDS,
    STATE_FIELDS,
    SUMMARY_FIELDS,
    TEXT_FIELDS,
    TRACE_FIELDS,
)
from stratlab.compare.showing import measured, verdict
from stratlab.compare.showing.banner import build_banner
from stratlab.compare.showing.layout_page import build_layouts
from stratlab.compare.showing.learning import build_classes, build_learning
from stratlab.compare.showing.run_files import build_run_files, lead_back
from stratlab.compare.showing.search_section import build_search_section
from stratlab.compare.showing.sharding_section import build_sharding_section
from stratlab.compare.showing.short_names import SHORT, shorten_names
from stratlab.compare.showing.summary_page import build_markdown
from stratlab.compare.showing.tradeoffs import build_choice
from stratlab.compare.showing.tuning_section import build_tuning
from stratlab.compare.showing.why import build_why
from stratlab.drawing import build_page
from stratlab.run_directory.files import is_run, read_object
from stratlab.run_directory.places import PAGE
from stratlab.run_directory.record import RunRecord
from stratlab.user_error import UserError

CSV_FIELDS = (
    *("run", "status", "complete", "attempts"),
    *SUMMARY_FIELDS,
    *("torch", *AXES, "step_time_ms_mean", "step_times_from", "warmup_steps", "noise_ms"),
    *("baseline", "speedup_vs_baseline", "main_cause", *SCALING_FIELDS),
    *("state_memory_gib", "sharding_effectiveness_pct", "memory_fragmentation_pct"),
    *("trace_source", "trace_steps", "trace_steps_from", *TRACE_FIELDS),
    *("trace_findings", "mlflow_run_id"),
    *("task", *TEXT_FIELDS, "tokens_per_s", "useful_tokens_per_s", "useful_tokens_pct", "mfu_literature_pct"),
    "mfu_useful_pct",
    *("layout", "dimensions", "degenerate", "missing_dimensions", "sequence_parallel"),
    *("pp_schedule", "cp_kind", "wire_bytes_per_axis"),
)
FILES = ("report.json", "comparison.csv", "summary.md", PAGE)
assert set(STATE_FIELDS) <= set(CSV_FIELDS)


def write_report(report: Mapping[str, Any], runs: Sequence[RunRecord], folder: Path) -> Path:
    """Writes the four files and returns the path of the page; the pages of runs beside it lead to it from now on.

    Args:
        report: of `compare(runs)`.
        runs: for the curves and matrices, which the report does not repeat.
        folder: is made when absent; what else is in it stays.

    Raises:
        UserError: the folder cannot be made, or holds a report.json of something else.
    """
    check_folder(folder)
    contents = (
        json.dumps(report, indent=1, allow_nan=False) + "\n",
        render_csv(report),
        build_markdown(report),
        render_page(report, runs, folder),
    )
    for name, content in zip(FILES, contents, strict=True):
        temporary = folder / f".{name}.tmp"
        try:
            temporary.write_text(content, encoding="utf-8")
            os.replace(temporary, folder / name)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
    lead_back(runs, folder / PAGE)
    return folder / PAGE


def check_folder(folder: Path) -> None:
    """Makes the folder of a report.

    Raises:
        UserError: it cannot be made, or holds the report of something else, as a run's analysis.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise UserError(
            f"--output {folder}: cannot be a folder ({failure.strerror}) [SL-report-no-folder]"
        ) from failure
    if is_run(folder):
        raise UserError(
            f"--output {folder}: this is a run; a report needs a folder of its own [SL-report-in-run]"
        )
    there = [name for name in FILES if (folder / name).exists()]
    if there and not is_report(folder / "report.json"):
        raise UserError(
            f"--output {folder}: there is a {there[0]} that is not of a comparison [SL-report-taken]"
        )


def check_file(path: Path) -> None:
    """That the report may be written to this file.

    Raises:
        UserError: it is something else, or lies in no folder.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"--json {path}: expected a file in a folder that is there, or - [SL-json-no-folder]")
    if path.exists() and path.stat().st_size and not is_report(path):
        raise UserError(
            f"--json {path}: there is something that is not a comparison's report [SL-json-taken]"
        )


def is_report(path: Path) -> bool:
    """Whether the file is the report.json of a comparison."""
    return {"comparison", "fairness", "runs"} <= read_object(path, []).keys()


def render_page(report: Mapping[str, Any], runs: Sequence[RunRecord], folder: Path | None = None) -> str:
    """The page as text.

    Args:
        folder: where it will lie, for links to files; None = it has none.
    """
    report, runs, prefix = shorten_names(report, runs)
    shortened = f" {SHORT.format(prefix)}." if prefix else ""
    told = filter(None, (verdict.describe_work(report), verdict.describe_versions(report)))
    origin, banner = " ".join(told) + shortened, build_banner(report)
    records = [run for run in runs if run.status != "not a run"]
    rows = report["runs"]
    first = [
        verdict.build_verdict(report),
        build_why(report, LEAST_LEAD_PCT),
        build_run_files(records, folder),
    ]
    if verdict.is_foreign(report):  # the rest is of what a run tells
        sections = [*first, *measured.build_traces(rows), verdict.build_fairness(report)]
        return build_page(f"Comparison {report['comparison']}", origin, sections, banner)
    sections = [
        *first,
        measured.build_speed(rows, report["noise"]),
        *measured.build_use(rows),
        measured.build_memory(rows),
        *build_layouts(rows),
        *build_choice(report),
        *build_sharding_section(report["sharding"]),
        *measured.build_traces(rows),
        build_learning(rows, records),
        *build_search_section(report),
        *build_tuning(report),
        verdict.build_fairness(report),
        verdict.build_agreement(report),
        *build_classes(records),
        verdict.build_sources(report),
    ]
    return build_page(f"Comparison {report['comparison']}", origin, sections, banner)


def render_csv(report: Mapping[str, Any]) -> str:
    """One line per run. Text that a spreadsheet would take for a formula gets an apostrophe."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)  # its own line ends: with others a lone \r in a text would split a row
    writer.writerow(CSV_FIELDS)
    for row in report["runs"]:
        writer.writerow([_harmless(row[name]) for name in CSV_FIELDS])
    return buffer.getvalue()


def _harmless(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        return json.dumps(value) if value else None
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
