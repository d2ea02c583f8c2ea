"""Weaknesses of a comparison's step times: one flag per cause, with its runs and their numbers.

unequal_warm_up    the cuts before the timed steps differ by more than the rule's own scatter.
few_timed_steps    a median of few steps can be chance.
busy_machine       other work had processors that the run waited for; on a CPU its times are then not comparable.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from stratlab.compare.run_rows import Rows, RunRow
from stratlab_spec.timed_steps import FEW_STEPS

UNEQUAL_WARM_UP = "unequal_warm_up"
FEW_TIMED_STEPS = "few_timed_steps"
BUSY_MACHINE = "busy_machine"
UNEQUAL_TIMES = 2.0
UNEQUAL_STEPS = 10
"""Two batches of MSER-5. Both must be exceeded: even with steady steps the rule cuts a few batches now and then."""
BUSY_PCT = 10.0
"""Percent of the time (pressure), or of the machine's processors."""


@dataclass(frozen=True)
class Flag:
    """One weakness. `values`: of `measure`, of the runs that it is about; `times_comparable`: the times still are."""

    flag: str
    runs: list[str]
    measure: str
    values: dict[str, float]
    limit: float
    times_comparable: bool = True


def build_flags(rows: Rows) -> list[dict[str, Any]]:
    """Return the flags of the compared runs, as in report.json; flags without runs are absent."""
    compared = [row for row in rows if row.is_compared and not row.is_foreign]
    found = (_flag_warm_up(compared), _flag_few_steps(compared), *_flag_busy(compared))
    return [asdict(flag) for flag in found if flag]


def list_busy(rows: Rows) -> list[str]:
    """Return the runs on a CPU whose times are not comparable."""
    return [row.run for row in rows if row.device_type == "cpu" and _find_load(row)[1] > BUSY_PCT]


def _flag_warm_up(rows: Rows) -> Flag | None:
    cuts = {row.run: float(row.warmup["steps"]) for row in rows if row.warmup}
    least, most = min(cuts.values(), default=0.0), max(cuts.values(), default=0.0)
    if most - least < UNEQUAL_STEPS or most < UNEQUAL_TIMES * least:
        return None
    return Flag(UNEQUAL_WARM_UP, [*cuts], "warmup_steps", cuts, UNEQUAL_TIMES * least)


def _flag_few_steps(rows: Rows) -> Flag | None:
    few = {
        row.run: float(row.measured_steps)
        for row in rows
        if row.measured_steps is not None and row.measured_steps < FEW_STEPS
    }
    return Flag(FEW_TIMED_STEPS, [*few], "measured_steps", few, FEW_STEPS) if few else None


def _flag_busy(rows: Rows) -> list[Flag]:
    """Return one flag per measurement of the load."""
    loads: dict[str, dict[str, float]] = {}
    for row in rows:
        measure, pct = _find_load(row)
        if pct > BUSY_PCT:
            loads.setdefault(measure, {})[row.run] = pct
    on_cpu = {*list_busy(rows)}
    return [
        Flag(BUSY_MACHINE, [*values], measure, values, BUSY_PCT, not on_cpu & {*values})
        for measure, values in loads.items()
    ]


def _find_load(row: RunRow) -> tuple[str, float]:
    """Return the pressure on the run's own control group; if the system does not report it, the CPU time of others."""
    if row.cpu_pressure_pct is not None:
        return "cpu_pressure_pct", row.cpu_pressure_pct
    return "other_cpu_pct", row.other_cpu_pct or 0.0
