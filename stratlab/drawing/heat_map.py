"""A matrix as shaded cells: a confusion matrix, bytes from rank to rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from stratlab.drawing.canvas import WIDTH, build_svg, label_width, note, rect, row_label, shorten, text
from stratlab.number import format_number

MOST_CLASSES = 128  # 10,000 cells that are not 0 are about 1 MB
CELL_WITH_NUMBER = 26.0  # px of an edge: 30 columns have it
LETTER_OF_CELL = 7.5  # px of one letter of a column label


def heat_map(
    matrix: Sequence[Sequence[float]] | np.ndarray,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    row_title: str = "",
    column_title: str = "",
    by_row: bool = False,
) -> Markup:
    """Cells as dark as their value; up to 30 columns show the number, all show it on hover.

    With more columns the cells of 0 are one surface: of 100 classes most pairs are never confused.

    Args:
        matrix: shape (rows, columns), not negative.
        by_row: shade by the share of the row (a confusion matrix) instead of the share of the largest cell.
    """
    values = np.nan_to_num(np.asarray(matrix, dtype=float)).reshape(len(row_labels), len(column_labels))
    if not values.size or max(values.shape) > MOST_CLASSES:
        return note(
            f"A matrix of {values.shape[0]} x {values.shape[1]} is not drawn (1 to {MOST_CLASSES} are)."
        )
    whole = values.sum(axis=1, keepdims=True) if by_row else np.full((len(values), 1), values.max())
    shares = np.divide(values, whole, out=np.zeros_like(values), where=whole > 0)
    left, top = label_width(row_labels), 44.0
    cell = min(42.0, (WIDTH - left - 10) / len(column_labels))
    fitting = max(1, int(cell / LETTER_OF_CELL))
    parts = [text(left, 14, column_title, css="n"), text(left - 8, top - 10, row_title, "end", "n")]
    for j, name in enumerate(column_labels):
        if cell >= 14:
            parts.append(text(left + cell * (j + 0.5), top - 10, shorten(name, fitting), "middle", "n"))
    shows_numbers = cell >= CELL_WITH_NUMBER
    if not shows_numbers:
        parts.append(rect(left, top, cell * len(column_labels) - 1, cell * len(row_labels) - 1, "h0"))
    for i, name in enumerate(row_labels):
        y = top + cell * i
        if cell >= 10:
            parts.append(row_label(name, y + cell / 2 + 4, left))
        for j, value in enumerate(values[i]):
            if not value and not shows_numbers:
                continue
            tooltip = (
                f"{name} / {column_labels[j]}: {format_number(float(value))} ({100 * shares[i, j]:.1f} %)"
            )
            css = f"h{math.ceil(10 * shares[i, j])}"
            parts.append(rect(left + cell * j, y, cell - 1, cell - 1, css, tooltip))
            if shows_numbers and value:
                ink = "n strong" if shares[i, j] <= 0.5 else "n onfill"
                parts.append(text(left + cell * (j + 0.5), y + cell / 2 + 4, f"{value:.4g}", "middle", ink))
    return build_svg(top + cell * len(row_labels) + 6, parts, f"{row_title} against {column_title}")
