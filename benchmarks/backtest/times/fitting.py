"""Fit the scalars of a machine to its calibration rows: least squares of log(predicted / measured), robust.

Damped Gauss-Newton in the logarithms of the scalars. A row that is far off counts less (soft L1 beyond 10 %). A weak
expectation (each scalar is near its start) settles what the rows do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from benchmarks.backtest.times.engine import Prepared, Scalar

FAR = 0.1
EXPECTATION = 0.02
"""Of a scalar that is one `spread` off its start, in units of a row's logarithm."""
STEPS, STEP = 25, 1e-4
MOST_FOLDS = 12
ELSEWHERE = 0.06
"""Mean error by the scalars of another machine: of the six fits to the calibration rows of one of MPT's three machines,
on the calibration rows of another one."""
LAPLACE = math.log(10)
"""Half of the width that holds 90 % of a double exponential distribution, in units of its mean absolute deviation."""


@dataclass(frozen=True)
class Fit:
    """Scalars, and what the calibration rows say of them.

    Attributes:
        uncertainty_pct: standard deviation of each scalar.
        left_out: logarithm of predicted / measured of each calibration row by a fit to the other ones.
    """

    values: Mapping[str, float]
    uncertainty_pct: Mapping[str, float]
    left_out: Sequence[float]

    def half_width_pct(self, elsewhere: bool = False) -> float:
        """Return half of the width of the band that holds 90 % of further rows; `elsewhere`: of another machine.

        It is that of a double exponential distribution with the mean size of the errors that were left out: errors of
        step times have a sharp peak and long tails.
        """
        size = mean(map(abs, self.left_out))
        return 100 * (math.exp(LAPLACE * max(size, ELSEWHERE * elsewhere)) - 1)


def fit_scalars(rows: Sequence[Prepared], scalars: Sequence[Scalar]) -> Fit:
    """Return the fit to these rows, with its errors over rows that each fold leaves out."""
    values, spread = _fit(rows, scalars)
    folds = min(len(rows), MOST_FOLDS)
    left_out = []
    for fold in range(folds):
        others = [row for at, row in enumerate(rows) if at % folds != fold]
        found, _ = _fit(others, scalars, values)
        left_out += [error(row, found) for row in rows[fold::folds]]
    return Fit(values, spread, left_out)


def error(row: Prepared, values: Mapping[str, float]) -> float:
    """Return the logarithm of predicted / measured."""
    return math.log(row.seconds(values) / row.case.measured_s)


def _fit(
    rows: Sequence[Prepared], scalars: Sequence[Scalar], begin: Mapping[str, float] | None = None
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the scalars and their uncertainty in percent."""
    names = [one.name for one in scalars]
    start = np.log([one.start for one in scalars])
    pull = EXPECTATION / np.array([one.spread for one in scalars])

    def residuals(at: np.ndarray) -> np.ndarray:
        values = dict(zip(names, np.exp(at), strict=True))
        return np.array([*(error(row, values) for row in rows), *(pull * (at - start))])

    first = start if begin is None else np.log([begin[name] for name in names])
    at, covariance = least_squares(residuals, first, len(rows))
    return (
        dict(zip(names, map(float, np.exp(at)), strict=True)),
        dict(zip(names, map(float, 100 * np.sqrt(np.diag(covariance))), strict=True)),
    )


def least_squares(
    residuals: Callable[[np.ndarray], np.ndarray], at: np.ndarray, robust: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the minimum and its covariance.

    Args:
        robust: residuals, from the first, that count less if they are far off.
    """

    def weigh(found: np.ndarray) -> np.ndarray:
        weights = np.ones(len(found))
        weights[:robust] = 1 / np.sqrt(1 + (found[:robust] / FAR) ** 2)
        return weights

    def cost(found: np.ndarray) -> float:
        far = 2 * FAR**2 * (np.sqrt(1 + (found[:robust] / FAR) ** 2) - 1)
        return float(far.sum() + (found[robust:] ** 2).sum())

    damping, found = 1e-2, residuals(at)
    for _ in range(STEPS):
        slopes = _slopes(residuals, at, found)
        weights = weigh(found)
        normal, gradient = slopes.T @ (weights[:, None] * slopes), slopes.T @ (weights * found)
        for _ in range(8):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            tried = residuals(at + np.clip(step, -1, 1))
            if cost(tried) < cost(found):
                break
            damping *= 5
        else:
            break
        done = cost(found) - cost(tried) < 1e-6 * cost(found)
        at, found, damping = at + np.clip(step, -1, 1), tried, damping / 5
        if done:
            break
    slopes, weights = _slopes(residuals, at, found), weigh(found)
    normal = slopes.T @ (weights[:, None] * slopes)
    freedom = max(1, robust - len(at))
    variance = float((weights * found**2)[:robust].sum()) / freedom
    return at, variance * np.linalg.inv(normal)


def _slopes(residuals: Callable[[np.ndarray], np.ndarray], at: np.ndarray, found: np.ndarray) -> np.ndarray:
    columns = []
    for index in range(len(at)):
        moved = at.copy()
        moved[index] += STEP
        columns.append((residuals(moved) - found) / STEP)
    return np.array(columns).T
