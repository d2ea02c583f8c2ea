"""Fit a machine's scalars to measured steps, starting from what is known of each: least squares in their logarithms.

    known: scalars ± uncertainty ┐
                                 ├─▶ residuals in standard errors ─▶ Gauss-Newton ─▶ scalars ± uncertainty
    steps: predicted / measured  ┘

A scalar on which no step depends keeps its value. If the steps agree worse than their errors say, the uncertainties of
what they have settled grow by as much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stratlab_spec.step_time.measured_machine import MOST_PCT, FittedScalar, MeasuredMachine

ROUNDS, MOVE, LONGEST = 12, 1e-3, 1.0
LEAST_PCT = 1.0
"""Of an uncertainty: nothing on a machine repeats better."""


@dataclass(frozen=True)
class MeasuredStep:
    """A run's step as measured."""

    name: str
    predict_ms: Callable[[MeasuredMachine], float]
    measured_ms: float
    error_pct: float
    """One standard error: of the prediction with exact scalars, and of the measurement."""


def fit_machine(known: MeasuredMachine, steps: Sequence[MeasuredStep]) -> MeasuredMachine:
    """Return the machine with scalars that agree best with what is known and with the steps."""
    names = list(known.scalars)
    start = np.log([one.value for one in known.scalars.values()])
    spread = np.array(
        [math.log1p(max(one.uncertainty_pct, LEAST_PCT) / 100) for one in known.scalars.values()]
    )

    def residuals(at: np.ndarray) -> np.ndarray:
        machine = _build(known, names, at)
        far = [
            math.log(one.predict_ms(machine) / one.measured_ms) / math.log1p(one.error_pct / 100)
            for one in steps
        ]
        return np.array([*far, *((at - start) / spread)])

    at, found = start.copy(), residuals(start)
    for _ in range(ROUNDS):
        slopes = np.array([(residuals(at + move) - found) / MOVE for move in MOVE * np.eye(len(names))]).T
        step = np.clip(np.linalg.solve(slopes.T @ slopes, -slopes.T @ found), -LONGEST, LONGEST)
        while (tried := residuals(at + step)) @ tried > found @ found and np.abs(step).max() > MOVE:
            step = step / 2
        if tried @ tried > found @ found:
            break
        at, found = at + step, tried
    slopes = np.array([(residuals(at + move) - found) / MOVE for move in MOVE * np.eye(len(names))]).T
    covariance = np.linalg.inv(slopes.T @ slopes)
    errors = np.sqrt(np.diag(covariance))
    grown = max(1.0, float(np.sqrt(found @ found / max(1, len(steps)))))
    settled = np.minimum(errors * grown, np.maximum(spread, errors))
    scalars = {
        name: FittedScalar(float(np.exp(value)), min(MOST_PCT, 100 * math.expm1(error)))
        for name, value, error in zip(names, at, settled, strict=True)
    }
    together = covariance / np.outer(errors, errors)
    correlations = {
        one: {names[other]: float(together[place, other]) for other in range(place + 1, len(names))}
        for place, one in enumerate(names[:-1])
    }
    return replace(known, scalars=scalars, correlations=correlations)


def _build(known: MeasuredMachine, names: Sequence[str], at: np.ndarray) -> MeasuredMachine:
    values = zip(names, np.exp(at), strict=True)
    return replace(
        known, scalars={name: known.scalars[name]._replace(value=float(value)) for name, value in values}
    )
