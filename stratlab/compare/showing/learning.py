"""The parts of the page that show what was learned: losses, accuracies or perplexities, curves, and the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.drawing import (
    Column,
    Section,
    details,
    heat_map,
    html_table,
    line_chart,
    note,
    subtitle,
)
from stratlab.run_directory.record import RunRecord

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
