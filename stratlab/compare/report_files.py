"""Write report.html, summary.md, report.json and comparison.csv, each whole or not at all.

Two parts of the page are built here: learning (losses, accuracies or perplexities, curves, the classes), and the
results and choices of a tuning for each strategy.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from stratlab import UserError
from stratlab.compare import attribution_view as why
from stratlab.compare import measured_view as measured
from stratlab.compare import tradeoffs_view as tradeoffs
from stratlab.compare import verdict_view as verdict
from stratlab.compare.fairness import FIRST_STEPS
from stratlab.compare.placement import ComparedRun
from stratlab.compare.run_rows import (
    AXES,
    SUMMARY_FIELDS,
    TRACE_FIELDS,
    Rows,
    ScalingNumbers,
    TextNumbers,
    list_names,
    read_rows,
)
from stratlab.compare.summary_view import SHORT, build_markdown, name_configurations, shorten_names
from stratlab.compare.tradeoffs_view import build_tuning
from stratlab.compare.trust import find_group
from stratlab.compare.variants import find_typical
from stratlab.drawing import (
    HALF,
    Column,
    Section,
    badge,
    build_page,
    details,
    heat_map,
    html_table,
    line_chart,
    note,
    subtitle,
)
from stratlab.run_directory.files import PAGE, is_number, is_run, read_object
from stratlab.wording import format_count, format_range, quote

MOST_LINES = 8  # in one chart: the colours of the palette
MOST_RUNS = 8  # in the charts of the answer, and in tables of runs
MOST_MATRICES = 3
MEASURES = {  # of a task, with the name of its curve
    "image": ("accuracy_pct", "Validation accuracy", "validation accuracy (%)"),  # top-5 has no curve
    "text": ("perplexity", "Validation perplexity", "validation perplexity"),
}
TOP5 = ("validation_top5_accuracy_pct", "test_top5_accuracy_pct")
CSV_FIELDS = (
    *("run", "status", "complete", "attempts"),
    *SUMMARY_FIELDS,
    *("torch", *AXES, "step_time_ms_mean", "step_times_from", "warmup_steps", "noise_ms"),
    *("baseline", "speedup_vs_baseline", "main_cause", *list_names(ScalingNumbers)),
    *("state_memory_gib", "sharding_effectiveness_pct", "memory_fragmentation_pct"),
    *("trace_source", "trace_steps", "trace_steps_from", *TRACE_FIELDS),
    *("trace_findings", "mlflow_run_id", "task", *list_names(TextNumbers)),
    *("layout", "dimensions", "degenerate", "missing_dimensions", "sequence_parallel"),
    *("pp_schedule", "cp_method", "wire_bytes_per_axis"),
)
FILES = ("report.json", "comparison.csv", "summary.md", PAGE)


def write_report(report: Mapping[str, Any], runs: Sequence[ComparedRun], folder: Path) -> Path:
    """Write the four files and return the path of the page; pages of runs in its folder will link to it.

    Args:
        report: of `compare(runs)`.
        runs: for the curves and matrices, which the report does not repeat.
        folder: is made when absent; its other files stay.

    Raises:
        UserError: the folder cannot be made, or holds a report.json of something else.
    """
    check_folder(folder)
    contents = (
        json.dumps(report, indent=1, allow_nan=False) + "\n",
        render_csv(report),
        build_markdown(report, runs),
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
    measured.lead_back(runs, folder / PAGE)
    return folder / PAGE


def check_folder(folder: Path) -> None:
    """Make the folder of a report.

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
    """Check that the report may be written to this file.

    Raises:
        UserError: it is something else, or its folder does not exist.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"--json {path}: expected a file in an existing folder, or - [SL-json-no-folder]")
    if path.exists() and path.stat().st_size and not is_report(path):
        raise UserError(
            f"--json {path}: there is something that is not a comparison's report [SL-json-taken]"
        )


def is_report(path: Path) -> bool:
    """Return whether the file is the report.json of a comparison."""
    return {"comparison", "fairness", "runs"} <= read_object(path, []).keys()


def render_page(report: Mapping[str, Any], runs: Sequence[ComparedRun], folder: Path | None = None) -> str:
    """Return the page as text.

    Args:
        folder: the page's folder, for links to files; None = without such links.
    """
    report, runs, prefix = shorten_names(name_configurations(report), runs)
    records, rows = [run for run in runs if run.status != "not a run"], read_rows(report)
    on_cpu = any(row.device_type == "cpu" or row.trace_source == "cpu" for row in rows if row.is_compared)
    mark = badge("CPU", "warn") if on_cpu else Markup("")
    chosen = {row.run: row.configuration for row in choose_runs(report, rows)}
    shown = [replace(row, run=chosen[row.run]) for row in rows if row.run in chosen]
    of_shown = [replace(run, name=chosen[run.name]) for run in records if run.name in chosen]
    many = len(rows) > MOST_RUNS
    listed, of_listed = (shown, of_shown) if many else (rows, records)  # in tables; comparison.csv has all
    sections = [
        tradeoffs.build_choice(report, rows, find_device_gib(records), mark),
        why.build_step_times(shown, of_shown, mark),
        why.build_why(report, mark),
    ]
    if verdict.is_foreign(report):  # the rest needs a run's own files
        sections += measured.build_traces(rows)
    else:
        sections += [
            measured.build_memory(shown, of_shown),
            *tradeoffs.build_scaling_chart(report, mark),
            build_loss_differences(report, records),
            *tradeoffs.build_search_section(report),
            tradeoffs.build_best(report),
            *tradeoffs.build_fronts(report, mark),
            measured.build_speed(listed, report["noise"]),
            *measured.build_use(listed),
            measured.build_memory_table(listed),
            *tradeoffs.build_scaling_tables(report),
            *measured.build_layouts(listed),
            *tradeoffs.build_sharding_section(
                [entry for entry in report["sharding"] if not many or entry["run"] in chosen.values()]
            ),
            *measured.build_traces(listed),
            build_learning(listed, of_listed),
            *build_tuning(report),
            verdict.build_agreement(report),
            *build_classes(of_listed),
            verdict.build_sources(report),
        ]
    if len(shown) < len(rows):
        whole = why.build_step_times(rows, records, mark), measured.build_memory(rows, records)
        sections += [
            replace(
                each,
                title=f"{each.title}: all runs",
                half=False,
                folded=True,
                result=format_count(len(rows), "run"),
            )
            for each in whole
        ]
    sections += [why.build_parts(report), verdict.build_fairness(report), verdict.build_caveats(report)]
    sections.append(measured.build_run_files(records, folder))
    shortened = f"{SHORT.format(prefix)}." if prefix else ""
    rest = "" if len(shown) == len(rows) else f"Charts show {len(shown)} of {len(rows)} runs"
    rest += "; comparison.csv has all." if many else "." if rest else ""
    about = (verdict.describe_work(report), verdict.describe_origin(report, versions=False), shortened, rest)
    title, origin = f"Comparison {quote(report['comparison'])}", " ".join(filter(None, about))
    lead = verdict.build_lead(report, records)
    return build_page(title, origin, sections, verdict.build_banner(report), lead=lead)


def choose_runs(report: Mapping[str, Any], rows: Rows) -> Rows:
    """Return the runs for charts: of repeats the median one, and of many configurations the runs of the answer."""
    steps = {row.run: row.step_time_ms_p50 or 0.0 for row in rows}
    repeats: dict[str, list[str]] = {}
    for row in rows:
        if row.is_compared:
            repeats.setdefault(row.configuration, []).append(row.run)
    middle = {find_typical(names, steps) for names in repeats.values()}
    answered = {row.run for row in find_group(report)[0]}
    chosen = [row for row in rows if row.run in middle or not row.is_compared]
    if len(chosen) > MOST_RUNS:
        chosen = [row for row in chosen if row.is_compared]
    chosen.sort(key=lambda row: (row.run not in answered, row.attempts > 1))
    return [row for row in rows if row in chosen[:MOST_RUNS]]


def find_device_gib(runs: Sequence[ComparedRun]) -> float | None:
    """Return the memory of the smallest device; None if a run has no record."""
    sizes = [
        (run.analysis.get("mean") or {}).get("device_memory_gib") or 0.0 for run in runs if run.is_compared
    ]
    return min(sizes, default=0.0) or None


def build_loss_differences(report: Mapping[str, Any], runs: Sequence[ComparedRun]) -> Section:
    """Show the differences of training losses that should be equal, on a logarithmic axis; runs without any are
    named.
    """
    names = {row["run"]: row["configuration"] for row in report["runs"]}
    by_name, lines, equal = {run.name: run.series("train", "loss") for run in runs}, {}, dict[str, int]()
    taken: set[str] = set()
    for pair in report["loss_agreement"]["pairs"]:
        run, base = reversed(pair["runs"])
        if pair["allowed_pct"] is None or run in taken:
            continue
        taken.add(run)  # each run against the first of those that it belongs to
        mine, other = by_name.get(run, {}), by_name.get(base, {})
        points = [(step, abs(mine[step] - other[step])) for step in mine if step in other]
        if any(apart for _, apart in points):
            lines[f"{run} − {base}"] = [(step, apart) for step, apart in points if apart]
        elif points:
            pair_of = f"{names[run]} and {names[base]}"
            equal[pair_of] = equal.get(pair_of, 0) + 1
    title = "Difference of the losses"
    if not lines and not equal:
        return Section(title, nothing="no two runs that should compute the same")
    told = [f"{each} ({count} seeds)" if count > 1 else each for each, count in equal.items()]
    said = f"No difference in any step: {'; '.join(told)}. " if equal else ""
    html = Markup("")
    if lines:
        html = line_chart(
            dict([*lines.items()][:MOST_LINES]), "step", "difference", log_y=True, height=180, width=HALF
        )
        said += f"Judged are the first {FIRST_STEPS} steps; later, rounding grows into another path."
    return Section(title, html + note(said), half=True)


def render_csv(report: Mapping[str, Any]) -> str:
    """Return one line per run. Text that a spreadsheet would take for a formula gets an apostrophe."""
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


def build_learning(rows: Rows, runs: Sequence[ComparedRun]) -> Section:
    """Return losses and what else each task is measured by, with their curves."""
    tasks = [task for task in MEASURES if any(row.task == task for row in rows)]
    curves = [
        ("Training loss", "train", "loss", "training loss"),
        ("Validation loss", "eval", "validation_loss", "validation loss"),
    ]
    names = ["train_loss"]
    if "image" in tasks:
        names.append("train_accuracy_pct")
        curves.append(("Training accuracy", "train", "train_accuracy_pct", "accuracy of each batch (%)"))
    for split in ("validation", "test"):
        names += [f"{split}_loss", *(f"{split}_{MEASURES[task][0]}" for task in tasks)]
    names += [name for name in TOP5 if any(getattr(row, name) is not None for row in rows)]
    for measure, title, label in (MEASURES[task] for task in tasks):
        curves.append((title, "eval", f"validation_{measure}", label))
    columns = [Column(name, digits=2 if name.endswith("pct") else 4) for name in names]
    html = html_table(rows, ["run", *columns])
    for title, kind, value, label in curves:
        series = {run.name: list(run.series(kind, value).items()) for run in runs}
        html += subtitle(title) + line_chart(
            {n: points for n, points in series.items() if points}, "step", label
        )
    goal = next((MEASURES[task] for task in tasks), None)
    unit = "%" if goal and goal[0].endswith("_pct") else ""
    told = format_range((getattr(row, f"test_{goal[0]}") for row in rows), unit, 2) if goal else ""
    told = f"test {goal[0].removesuffix('_pct')} {told}" if goal and told else ""
    return Section("Learning", html, folded=True, result=told)


def build_classes(runs: Sequence[ComparedRun]) -> list[Section]:
    """Build the accuracy of each class in each run, and the confusions of the first few runs; empty without classes.

    The pages of the runs have their matrices.
    """
    evaluated = [run for run in runs if not run.is_text and run.evaluation.get("per_class")]
    if not evaluated:
        return []
    rows: dict[str, dict[str, Any]] = {}
    for run in evaluated:
        for each in run.evaluation["per_class"]:
            row = rows.setdefault(
                str(each["label"]), {"class": str(each["label"]), "samples": each.get("samples")}
            )
            row[f"accuracy of {run.name}"] = each.get("accuracy_pct")
    columns = [Column(f"accuracy of {run.name}", run.name, "%", 1) for run in evaluated]
    html = html_table([*rows.values()], ["class", Column("samples"), *columns])
    for run in evaluated[: MOST_MATRICES if len(evaluated) < MOST_RUNS else 1]:
        found = run.evaluation
        matrix = found.get("confusion_matrix") or []
        names = [str(name) for name in found.get("class_names") or []]
        if len(matrix) == len(names) and all(len(line) == len(names) for line in matrix):
            drawn = heat_map(matrix, names, names, "truth", "prediction", by_row=True)
            html += details(
                f"{run.name}: confusion of {found.get('samples')} {found.get('split')} samples", drawn
            )
    worst = min(
        (
            (each["accuracy_pct"], str(each["label"]))
            for run in evaluated
            for each in run.evaluation["per_class"]
            if is_number(each.get("accuracy_pct"))
        ),
        default=None,
    )
    told = f"lowest accuracy {worst[0]:.1f} %, class {worst[1]}" if worst else ""
    return [Section("Classes", html, folded=True, result=told)]
