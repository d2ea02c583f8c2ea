"""What the step times on the page can and cannot say where nobody wins in time: said once, where the answer is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stratlab.compare.judging.fairness import AS_SEARCH, UNSHOWN
from stratlab.compare.judging.winners import LEAST_LEAD_PCT, METRICS, NOT_RECORDED, ON_CPU
from stratlab.compare.reading.run_rows import find_recorded_step_ms, is_compared

SHOWN = "Step times and their differences are shown all the same"
OF_ALL = "Step times of all runs are shown below"
TIMED = tuple(metric.key for metric in METRICS if metric.timed)
OF_CPU = (
    "they say where the time of a step went on these CPUs. They do not say which strategy is faster on GPUs, or by how "
    "much"
)
OF_WORK = {
    AS_SEARCH: "what was varied changes them, too, so that none is the strategy's alone",
    UNSHOWN: "whether the runs did the same work is not known, so that none need be the strategy's",
}
OTHER_WORK = (
    "between runs that are not comparable they hold all that differs, so that none is the strategy's alone"
)
ONE_REPEAT = (
    f"below {LEAST_LEAD_PCT:g} % of a step they may be chance, and another start may turn them round; a larger one was "
    "seen once"
)
REPEATS = (
    "up to {pct:.2g} % of a step they may be chance, and so may the order of runs whose repeats overlap: another start "
    "may turn them round. Any other is more than chance"
)
DEGENERATE = "a difference from a degenerate run ({runs}) says nothing of what its name promises"


def say_differences(report: Mapping[str, Any]) -> str:
    """Sentences; "" where somebody wins in time over all others, or nothing is there to be held against another."""
    ended = [row for row in report["runs"] if is_compared(row) or row["degenerate"]]
    timed = [row for row in ended if row["step_time_ms_p50"] or find_recorded_step_ms(row)]
    verdict = report["fairness"]["verdict"]
    groups = [report] if verdict == "comparable" else report["group_winners"]
    if len(timed) < 2 or (verdict == "comparable" and not _list_reasons(groups)):
        return ""
    apart = verdict != "comparable" and len(report["fairness"]["groups"]) > 1
    said = [OF_WORK.get(verdict, OTHER_WORK)] if apart else []
    reasons = [reason for reason in _list_reasons(groups) if not reason.startswith(NOT_RECORDED)]
    if ON_CPU in report["remarks"]:
        said.append(OF_CPU)
    elif reasons:
        pct = report["noise"]["relative_pct"]
        said.append(ONE_REPEAT if pct is None else REPEATS.format(pct=math.sqrt(2) * pct))  # of two runs
    if lacking := [row["run"] for row in timed if row["degenerate"]]:
        said.append(DEGENERATE.format(runs=", ".join(lacking)))
    if not said:
        return ""
    lead = SHOWN if not groups or _list_reasons(groups) else OF_ALL
    first, *others = said
    return " ".join([f"{lead}: {first}.", *(f"{each[:1].upper()}{each[1:]}." for each in others)])


def _list_reasons(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why nobody wins in time."""
    return [
        found["winner_reasons"][key] for found in groups for key in TIMED if found["winners"][key] is None
    ]
