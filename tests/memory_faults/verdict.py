"""Whether a run has named what it must, or nothing."""

from __future__ import annotations

from typing import Any

from tests.memory_faults.case import Case
from tests.memory_faults.plant import CAUSES


def judge(case: Case, row: dict[str, Any]) -> str:
    """What is wrong about what the run says of itself; "" = nothing.

    Args:
        row: of `run_case`.
    """
    if "failure" in row:
        return "failed"
    if row["forecast"] is None:
        return "nothing was foreseen"
    if "forecast_memory_deviates" not in row["summary"]:
        return "not compared"
    named, wanted = row["summary"]["forecast_memory_deviates"], CAUSES[case.fault] if case.fault else None
    if named == wanted:
        return ""
    return f"names {named or 'nothing'} instead of {wanted}" if wanted else f"marked with {named}"
