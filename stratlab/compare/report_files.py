"""The comparison for readers: the page and its sections, a table for a terminal, files.

The parts of the page that show what was learned: losses, accuracies or perplexities, curves, and the classes.

The part of the page on tuning: what was tried for each strategy, what it gave, what was taken.

report.html, summary.md, report.json and comparison.csv: each appears whole or not at all.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from stratlab.compare import measured_view as measured
from stratlab.compare import verdict_view as verdict
from stratlab.compare.attribution_view import build_why
from stratlab.compare.comparison import name_knobs, name_search, say_choice
from stratlab.compare.measured_view import build_layouts, build_run_files, lead_back
from stratlab.compare.run_rows import (
    AXES,
    SCALING_FIELDS,
    STATE_FIELDS,
    SUMMARY_FIELDS,
    TEXT_FIELDS,
    TRACE_FIELDS,
)
from stratlab.compare.summary_view import SHORT, build_markdown, shorten_names
from stratlab.compare.tradeoffs_view import build_choice, build_search_section, build_sharding_section
from stratlab.compare.verdict_view import build_banner, describe_processes, either
from stratlab.compare.winners import LEAST_LEAD_PCT
from stratlab.drawing import (
    Column,
    Section,
    badge,
    build_page,
    details,
    heat_map,
    html_table,
    line_chart,
    note,
    paragraph,
    subtitle,
)
from stratlab.run_directory.files import is_run, read_object
from stratlab.run_directory.places import PAGE
from stratlab.run_directory.record import RunRecord
from stratlab.user_error import UserError
from stratlab.wording import format_count

Rows = Sequence[Mapping[str, Any]]

MOST_LINES = 8  # in one chart: the colours of the palette


MEASURES = {  # of a task, with the name of its curve
    "image": ("accuracy_pct", "Validation accuracy", "validation accuracy (%)"),  # top-5 has no curve
    "text": ("perplexity", "Validation perplexity", "validation perplexity"),
}


TOP5 = ("validation_top5_accuracy_pct", "test_top5_accuracy_pct")


def build_learning(rows: Rows, runs: Sequence[RunRecord]) -> Section:
    """Losses and what else each task is measured by, with their curves."""
    tasks = [task for task in MEASURES if any(row["task"] == task for row in rows)]
    names = ["train_loss", *(["train_accuracy_pct"] if "image" in tasks else [])]
    for split in ("validation", "test"):
        names += [f"{split}_loss", *(f"{split}_{MEASURES[task][0]}" for task in tasks)]
    names += [name for name in TOP5 if any(row[name] is not None for row in rows)]
    html = html_table(
        rows, ["run", *(Column(name, digits=2 if name.endswith("pct") else 4) for name in names)]
    )
    curves = [
        ("Training loss", "train", "loss", "training loss"),
        ("Validation loss", "eval", "validation_loss", "validation loss"),
    ]
    if "image" in tasks:
        curves.append(("Training accuracy", "train", "train_accuracy_pct", "accuracy of each batch (%)"))
    for measure, title, label in (MEASURES[task] for task in tasks):
        curves.append((title, "eval", f"validation_{measure}", label))
    for title, kind, value, label in curves:
        series = {run.name: list(run.series(kind, value).items()) for run in runs}
        html += subtitle(title) + _draw({name: points for name, points in series.items() if points}, label)
    return Section("Learning", html)


def _draw(series: dict[str, list[tuple[int, float]]], label: str) -> Markup:
    """One chart for eight runs: beyond that colours repeat, and nobody finds a line."""
    names = list(series)
    parts = [names[i : i + MOST_LINES] for i in range(0, len(names), MOST_LINES)] or [[]]
    html = Markup("")
    for i, part in enumerate(parts):
        if len(parts) > 1:
            html += note(f"Runs {i * MOST_LINES + 1} to {i * MOST_LINES + len(part)} of {len(names)}.")
        html += line_chart({name: series[name] for name in part}, "step", label)
    return html


def build_classes(runs: Sequence[RunRecord]) -> list[Section]:
    """Per class and confusion matrix of each run, folded; nothing where no run has classes."""
    of_images = [run for run in runs if not run.is_text]
    html = Markup("")
    for run in of_images:
        found = run.evaluation
        classes, matrix = found.get("per_class") or [], found.get("confusion_matrix") or []
        names = [str(name) for name in found.get("class_names") or []]
        if not classes:
            html += note(f"{run.name}: no evaluation of the test split.")
            continue
        content = html_table(
            classes, ["label", Column("samples"), Column("accuracy_pct", "accuracy", "%", 1)]
        )
        if len(matrix) == len(names) and all(len(line) == len(names) for line in matrix):
            content += heat_map(matrix, names, names, "truth", "prediction", by_row=True)
        html += details(
            f"{run.name}: {found.get('samples')} samples of the {found.get('split')} split", content
        )
    return [Section("Classes", html)] if of_images else []


def build_tuning(report: Mapping[str, Any]) -> list[Section]:
    """One section; none where no sweep has tuned."""
    tuning = report.get("tuning")
    if not tuning:
        return []
    metric, origin = tuning["metric"], tuning["origin"]
    html = paragraph(
        f"By {metric['name']} ({'highest' if metric['highest'] else 'lowest'} is best), one knob at a time, at most "
        f"{tuning['candidates']} candidates for each combination; {tuning['steps']} steps and "
        f"{format_count(tuning['repeats'], 'repeat')} of each, in the comparison {tuning['tuning']}. "
        f"Measured on {either(origin['hardware'])} "
        f"({either(origin['device'])}), backend {either(origin['backend'])}, "
        f"{describe_processes(origin)}, "
        f"{either(origin['measured_steps'])} steps timed."
    )
    for search in tuning["searches"]:
        html += subtitle(name_search(search)) + _show(search, metric)
    html += note(
        "Every other setting is that of the comparison, but the length, the learning rate's warm-up and the profile. "
        "A candidate is taken for a lead that exceeds the noise, or 2 % without repeats. Leads are told against the "
        "strategy as it comes; where several knobs were taken, each was judged against the best before it."
    )
    return [Section("Tuning", html)]


def _show(search: Mapping[str, Any], metric: Mapping[str, Any]) -> Markup:
    if search["why_not"]:
        html = paragraph(badge("not tuned", "bad") + f" {search['why_not']}.")
    else:
        html = paragraph(badge("tuned", "good") + f" {say_choice(search)}.")
    rows = [
        {
            "candidate": name_knobs(each["knobs"]),
            "taken": badge("taken", "good") if _is_taken(search, each) else None,
            "value": each["value"],
            "repeats": len(each["values"]),
            "lead_pct": each["lead_pct"] if each["knobs"] else None,
            "noise_pct": each["noise_pct"] if each["measured_noise"] and each["knobs"] else None,
            "why": each["why"] or None,
            "runs": ", ".join(each["runs"]),
        }
        for each in search["tried"]
    ]
    columns: list[Column | str] = [
        "candidate",
        "taken",
        Column("value", metric["key"], metric["unit"]),
        "repeats",
        Column("lead_pct", "better than as it comes", "%", 1),
        Column("noise_pct", "noise of that", "%", 1),
        Column("why", "out, because"),
        "runs",
    ]
    return html + html_table(rows, columns) if rows else html


def _is_taken(search: Mapping[str, Any], candidate: Mapping[str, Any]) -> bool:
    return not search["why_not"] and candidate["knobs"] == search["chosen"]


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
