"""The parts of the page that show what was learned: losses, accuracies, their curves, and the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.compare.record import RunRecord
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

Rows = Sequence[Mapping[str, Any]]

MOST_LINES = 8  # in one chart: the colours of the palette


def build_learning(rows: Rows, runs: Sequence[RunRecord]) -> Section:
    """Losses and accuracies, with their curves."""
    names = ("train_loss", "validation_loss", "validation_accuracy_pct", "test_loss", "test_accuracy_pct")
    html = html_table(
        rows, ["run", *(Column(name, digits=2 if name.endswith("pct") else 4) for name in names)]
    )
    curves = (
        ("Training loss", "train", "loss", "training loss"),
        ("Validation loss", "eval", "validation_loss", "validation loss"),
        ("Validation accuracy", "eval", "validation_accuracy_pct", "validation accuracy (%)"),
    )
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


def build_classes(runs: Sequence[RunRecord]) -> Section:
    """Per class and confusion matrix of each run, folded."""
    html = Markup("")
    for run in runs:
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
    return Section("Classes", html)
