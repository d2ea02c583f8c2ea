"""What weakens step times is one flag each, with its runs; on a CPU a busy machine forbids to compare times."""

from typing import Any

import pytest

from stratlab.compare.causes import BUSY_MACHINE, FEW_TIMED_STEPS, UNEQUAL_WARM_UP, build_flags
from stratlab_spec.schedule import FEW_STEPS
from tests.stratlab.compare.building import build_bare_row


def flag(**facts: list[Any]) -> dict[str, dict[str, Any]]:
    """By name, of as many runs as each fact has values."""
    runs = zip(*facts.values(), strict=True)
    rows = [
        build_bare_row(f"run{i}", **dict(zip(facts, values, strict=True))) for i, values in enumerate(runs)
    ]
    return {found["flag"]: found for found in build_flags(rows)}


@pytest.mark.parametrize(
    ("cuts", "flagged"), [((6, 76), True), ((6, 15), False), ((40, 60), False), ((6, None), False)]
)
def test_unequal_warm_up(cuts, flagged):
    found = flag(warmup=[None if steps is None else {"steps": steps} for steps in cuts])
    assert (UNEQUAL_WARM_UP in found) is flagged
    assert not flagged or found[UNEQUAL_WARM_UP]["values"] == {"run0": 6.0, "run1": 76.0}


def test_few_timed_steps():
    found = flag(measured_steps=[FEW_STEPS, FEW_STEPS - 1, None, 0])
    assert found.keys() == {FEW_TIMED_STEPS}
    assert found[FEW_TIMED_STEPS]["values"] == {"run1": FEW_STEPS - 1, "run3": 0.0}


@pytest.mark.parametrize(
    ("pressure", "others", "measure"),
    [
        (10.1, 0.0, "cpu_pressure_pct"),
        (None, 10.1, "other_cpu_pct"),
        (9.9, 90.0, ""),
        (None, 9.9, ""),
        (None, None, ""),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_busy_machine(pressure, others, measure, device):
    found = flag(device_type=[device], cpu_pressure_pct=[pressure], other_cpu_pct=[others])
    assert (found[BUSY_MACHINE]["measure"] if BUSY_MACHINE in found else "") == measure
    if measure:
        assert found[BUSY_MACHINE]["times_comparable"] is (device == "cuda")
