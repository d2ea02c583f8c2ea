"""The fit of a machine's scalars, on steps of which the truth is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratlab.predict.machine_fit import MeasuredStep, fit_machine
from stratlab_spec.step_time.measured_machine import (
    BETWEEN,
    COPY,
    GLOO,
    HOP,
    HOST,
    PRODUCT,
    FittedScalar,
    MeasuredMachine,
    Origin,
)

KNOWN = MeasuredMachine(
    "cpu", GLOO, 2, 8.0,
    {
        PRODUCT: FittedScalar(0.03, 3.0), COPY: FittedScalar(0.01, 3.0), HOST: FittedScalar(1.0, 100.0),
        HOP: FittedScalar(500.0, 250.0), BETWEEN: FittedScalar(0.05, 3.0),
    },
    Origin("2026-11-30", "CPU", 2, 0),
)  # fmt: skip


def step(host_ms: float, hops: float, measured_ms: float, error_pct: float = 2.0) -> MeasuredStep:
    def predict(machine: MeasuredMachine) -> float:
        return host_ms * machine.host.scale + hops * machine.links.gloo_hop_us / 1e3

    return MeasuredStep("step", predict, measured_ms, error_pct)


def test_two_kinds_of_steps_settle_host_and_hops_and_nothing_else() -> None:
    """The truth: host 2, hop 1.5 ms."""
    found = fit_machine(KNOWN, [step(10, 2, 23.0), step(10, 30, 65.0)]).scalars
    assert found[HOST].value == pytest.approx(2.0, rel=0.03)
    assert found[HOP].value == pytest.approx(1500, rel=0.03)
    assert found[HOST].uncertainty_pct < 10 and found[HOP].uncertainty_pct < 10
    for name in (PRODUCT, COPY, BETWEEN):
        assert found[name].value == pytest.approx(KNOWN.scalars[name].value, rel=1e-3)
        assert found[name].uncertainty_pct == pytest.approx(3.0, abs=0.2)


def test_steps_that_contradict_each_other_leave_a_wide_uncertainty() -> None:
    agree, contradict = (
        fit_machine(KNOWN, [step(10, 0, 20.0), step(10, 0, other)]).scalars[HOST] for other in (20.0, 40.0)
    )
    assert agree.value == pytest.approx(2.0, rel=0.02)
    assert contradict.uncertainty_pct > 5 * agree.uncertainty_pct


def test_what_is_known_well_holds_against_one_step() -> None:
    sure = replace(KNOWN, scalars={**KNOWN.scalars, HOST: FittedScalar(1.0, 1.0)})
    assert fit_machine(sure, [step(10, 0, 20.0, error_pct=50.0)]).scalars[HOST].value < 1.05
