"""One step of a run as its traces show it, in parts that sum to it: what the attribution subtracts.

Three things differ from `parts` of the analysis, and all keep the sum: kernel_wait and other_idle are one part, idle;
launch counts with host, as it did in analyses of earlier versions, and because the same remedies help;
and what a slow rank costs is one part, straggler (stratlab/compare/explaining/straggler.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratlab.compare.explaining.straggler import Where, gather_straggler
from stratlab.run_directory.files import is_number
from stratlab.run_directory.late_rank import find_late_rank

SUM_TOLERANCE = 1e-3
KEPT = ("compute", "straggler", "data", "host", "bubble")
NAMES = {name: name for name in KEPT} | {"copy": "copies", "launch": "host"}  # every other gap is idle


@dataclass(frozen=True)
class TracedStep:
    """Mean over ranks and steps; times in ms.

    Attributes:
        source: gpu | cpu.
        parts: compute, straggler, copies, data, host, idle, bubble; they and `exposed` sum to `step_ms`.
        exposed: per collective, the transfer that nothing hides, without waiting for a late rank.
        total: the same, hidden or not; a collective that the analysis does not sum up is absent.
        sent_bytes: per collective and step, where the traces tell.
        late_rank: late by more than chance explains, as the run's own report says; None = no rank is.
        gap_kind, gap_label: in what gaps the device waits for its host, as the run's own report says; None = not told.
    """

    source: str
    step_ms: float
    ranks: int
    steps: int
    parts: dict[str, float]
    exposed: dict[Where, float]
    total: dict[Where, float]
    sent_bytes: dict[Where, float]
    late_rank: int | None
    gap_kind: str | None
    gap_label: str | None

    def merged(self, key: Where, values: Mapping[Where, float]) -> float | None:
        """The value of a collective; over all axes where the key names none."""
        found = [v for (name, axis), v in values.items() if name == key[0] and key[1] in ("", axis)]
        return sum(found) if found else None


def build_traced_step(analysis: Mapping[str, Any]) -> TracedStep | str:
    """The step of an analysis/report.json, or why there is none, as half a sentence."""
    if not analysis or (analysis.get("source") is None and analysis.get("parts") == []):
        return "has no analysed traces"
    if analysis.get("steps_from") == "recording":
        return "has traces without labels of steps"
    mean, entries = analysis.get("mean") or {}, analysis.get("parts")
    if not isinstance(entries, list) or not is_number(mean.get("step_ms")):
        return "was analysed by an older version, without parts; analyze it again"
    if not all(isinstance(entry, dict) and is_number(entry.get("ms")) for entry in entries):
        return "has an analysis whose parts cannot be read; analyze it again"
    if abs(sum(entry["ms"] for entry in entries) - mean["step_ms"]) > SUM_TOLERANCE * abs(mean["step_ms"]):
        return "has an analysis whose parts do not sum to its step"
    parts: dict[str, float] = {}
    exposed: dict[Where, float] = {}
    for entry in entries:
        name, ms = str(entry.get("part")), float(entry["ms"])
        if name == "comm":
            where = (entry.get("collective") or "", entry.get("axis") or "")
            exposed[where] = exposed.get(where, 0.0) + ms
        else:
            part = NAMES.get(name, "idle")
            parts[part] = parts.get(part, 0.0) + ms
    ranks = [row for row in analysis.get("ranks") or [] if isinstance(row, dict)]
    count = sum(row.get("steps") or 0 for row in ranks)
    parts, exposed = gather_straggler(parts, exposed, ranks, analysis.get("collectives") or [])
    return TracedStep(
        source=str(analysis.get("source")),
        step_ms=float(mean["step_ms"]),
        ranks=int(mean.get("ranks") or 0),
        steps=int(mean.get("steps") or 0),
        parts=parts,
        exposed=exposed,
        total=_sum_up(analysis, count, lambda row: row["total_ms"] - (row.get("wait_ms") or 0.0)),
        sent_bytes=_sum_up(analysis, count, lambda row: row["bytes"]),
        late_rank=_find_late(analysis),
        **{
            name: told if isinstance(told := mean.get(name), str) else None
            for name in ("gap_kind", "gap_label")
        },
    )


def _find_late(analysis: Mapping[str, Any]) -> int | None:
    steps, calls = (
        [row for row in analysis.get(name) or [] if isinstance(row, dict)]
        for name in ("steps", "collectives")
    )
    return find_late_rank(steps, calls)


def _sum_up(analysis: Mapping[str, Any], count: int, read: Any) -> dict[Where, float]:
    """Mean per rank and step of a number of the collectives; without those in which a row lacks it."""
    found: dict[Where, list[float | None]] = {}
    for row in (analysis.get("collectives") or []) if count else []:
        try:
            value = read(row)
        except (KeyError, TypeError):  # None = unknown
            value = None
        found.setdefault((row.get("collective") or "", row.get("axis") or ""), []).append(value)
    known = {where: [v for v in values if v is not None] for where, values in found.items()}
    return {where: sum(known[where]) / count for where in found if len(known[where]) == len(found[where])}
