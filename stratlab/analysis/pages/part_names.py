"""The parts of a step under their names, and the sentence that answers first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratlab.number import format_number
from stratlab.run_directory.step_parts import (
    BUBBLE,
    COMMUNICATION,
    COMPUTE,
    COPIES,
    DATA,
    HOST,
    IDLE,
    LAST_RANK,
    LAUNCH,
    OF_PART,
)

SPOKEN = {
    COMMUNICATION: "communication that nothing hides",
    COPIES: "copies that nothing hides",
}
ENOUGH_PCT, MOST_PARTS = 90.0, 4  # the headline names parts until so much of the step is explained


def split_row(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Name -> ms of a row of `steps` or `phases`; they sum to its length. None = not known."""
    idle = (row.get("kernel_wait_ms"), row.get("other_idle_ms"))
    exposed = (row.get("comm_exposed_ms"), row.get("straggler_ms"), row.get("bubble_ms"))
    transfer = None
    if all(value is not None for value in exposed):
        transfer = exposed[0] - exposed[1] - exposed[2]  # type: ignore[operator]
    return {
        COMPUTE: row.get("compute_ms"),
        COMMUNICATION: transfer,
        LAST_RANK: row.get("straggler_ms"),
        COPIES: row.get("copy_exposed_ms"),
        BUBBLE: row.get("bubble_ms"),
        DATA: row.get("data_wait_ms"),
        HOST: row.get("host_wait_ms"),
        LAUNCH: row.get("launch_wait_ms"),
        IDLE: None if None in idle else sum(idle),  # type: ignore[arg-type]
    }


def sum_named_parts(report: Mapping[str, Any]) -> dict[str, float]:
    """Name -> ms of the mean step, by report["parts"], the largest first; only what is above zero."""
    sums: dict[str, float] = {}
    for part in report.get("parts") or []:
        name = OF_PART.get(part["part"], part["part"])
        sums[name] = sums.get(name, 0.0) + (part["ms"] or 0.0)
    return dict(sorted(((n, ms) for n, ms in sums.items() if ms > 0), key=lambda entry: -entry[1]))


def say_headline(report: Mapping[str, Any]) -> str:
    """Where the step goes: its largest parts, in ms and percent of the step."""
    step_ms, sums = report["mean"].get("step_ms"), sum_named_parts(report)
    if not step_ms or not sums:
        return "How long a step takes is not known."
    said: list[str] = []
    explained = 0.0
    for name, ms in sums.items():
        if len(said) == MOST_PARTS or explained >= ENOUGH_PCT:
            break
        explained += 100 * ms / step_ms
        mostly = _largest_collective(report) if name == COMMUNICATION else ""
        said.append(f"{SPOKEN.get(name, name)} {_ms(ms)} ({100 * ms / step_ms:.0f} %{mostly})")
    rest = len(sums) - len(said)
    tail = f", the rest {max(100 - explained, 0):.0f} %" if rest else ""
    what = " of host time" if report["source"] == "cpu" else ""
    return f"A recorded step takes {_ms(step_ms)}{what}: {', '.join(said)}{tail}."


def describe_collective(collective: str | None, axis: str | None) -> str:
    """`all_gather` over `dp_shard` -> `all-gather over dp_shard`."""
    return (collective or "unknown").replace("_", "-") + (f" over {axis}" if axis else "")


def _largest_collective(report: Mapping[str, Any]) -> str:
    parts = [p for p in report["parts"] if p["part"] == "comm" and p["ms"] and p.get("collective")]
    if not parts:
        return ""
    top = max(parts, key=lambda part: part["ms"])
    said = describe_collective(top["collective"], top.get("axis"))
    return f"; {'' if len(parts) == 1 else 'mostly '}{said}"


def _ms(value: float) -> str:
    return f"{format_number(value, 1 if value >= 10 else 2)} ms"
