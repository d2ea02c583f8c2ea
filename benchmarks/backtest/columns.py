"""How well a table's own columns can tell its memory: what a learner finds that has seen nearly all of the table.

A measure for descriptions, not a prediction of ours. Another learner may reach more; what runs of equal columns differ
by, none can (`nanotron.alike`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import KFold, cross_val_predict

FOLDS = 20
ROWS = 200
"""Fewer are not worth a learner."""


def learn_errors(
    columns: Sequence[Sequence[float]], guess_gib: Sequence[float], measured_gib: Sequence[float]
) -> list[float]:
    """Percent, with signs, row by row: a forest of trees that has learnt from the other nineteen twentieths.

    Args:
        columns: of every row, what may tell its memory.
        guess_gib: what the forest corrects.
        measured_gib: what was measured.
    """
    missing = np.log(measured_gib) - np.log(guess_gib)
    forest = RandomForestRegressor(100, random_state=0)
    folds = KFold(FOLDS, shuffle=True, random_state=0)
    found = cross_val_predict(forest, np.array(columns), missing, cv=folds)
    return [100 * (math.exp(error) - 1) for error in found - missing]
