"""One step of a run from its traces, in parts that sum to it, as the attribution subtracts them.

Three things differ from `parts` of the analysis, and all keep the sum. kernel_wait and other_idle are one part, idle.
launch counts with host, as in analyses of earlier versions, because the same settings help. The cost of a slow rank
is one part, straggler (stratlab/compare/step_difference.py).

The straggler part collects the cost of a slow rank from its traces in the mean over the ranks.

A slow rank delays the step by the additional time of its own work (compute, copies, data, host) over rank f, the rank
that waits most. The mean of the ranks has that time in three places. First as waiting. Second as own work, in which
the slow ranks exceed f. Third as exposed transfer, in which the waiting ranks exceed rank s, the rank that waits
least: the work that would have hidden the transfer had ended when the last rank came. All steps are equally long, so

    step = own(f) + transfer(s) + straggler        straggler = own(s) - own(f) + waiting(s)

and the straggler's part of the mean is filled up to that, from own work above f and transfer above s, in proportion.

Two steps subtracted: rows that sum to the difference of the measured step times.

Exposed communication E of a collective is its total C minus its hidden part H. So dE = dC - dH: `more communication`
is dC, `less overlap` is -dH. If the two have opposite signs (more is sent, and some of that is hidden), the smaller
is netted into the larger. Hiding a part of new communication is not a gain over a run that does not send it. The sum
stays dE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.compare.causes import NOT_TRACED, SAME_BYTES
from stratlab.run_directory.files import is_number
from stratlab.run_directory.late_rank import find_late_rank
from stratlab_spec.step_parts import CAUSES, PARTS

Where = tuple[str, str]

# causes in which a rank can be slow, and their shares in the rows of single ranks; data of traces without a label of
# data loading is not known: it counts with the host
OWN = {
    cause: [f"{part.name}_pct" for part in PARTS if part.cause == cause]
    for cause in ("compute", "copies", "data", "host")
}


def gather_straggler(
    parts: Mapping[str, float],
    exposed: Mapping[Where, float],
    ranks: Sequence[Mapping[str, Any]],
    collectives: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, float], dict[Where, float]]:
    """Return `parts` and `exposed` with the cost of slow ranks under `straggler`; their sum stays.

    They stay unchanged if no rank waits, if single ranks are unknown, and in pipelines: their stages differ by
    design.

    Args:
        ranks, collectives: of analysis/report.json.
    """
    waits = [ms for row in ranks if (ms := _read_ms(row, "straggler_pct")) is not None]
    own = [{part: sum(_read_ms(row, share) or 0.0 for share in OWN[part]) for part in OWN} for row in ranks]
    told = all(_read_ms(row, name) is not None for row in ranks for name in ("compute_pct", "host_wait_pct"))
    known = len(ranks) == len(waits) > 1 and told
    if not known or max(waits) <= 0 or parts.get("bubble"):
        return dict(parts), dict(exposed)
    fast, slow = waits.index(max(waits)), waits.index(min(waits))
    cost = sum(own[slow].values()) - sum(own[fast].values()) + waits[slow]
    excess: dict[str | Where, float] = {}
    for part in OWN:
        above = _mean([values[part] for values in own]) - own[fast][part]
        excess[part] = min(max(above, 0.0), parts.get(part, 0.0))
    for where, transfers in _read_transfers(ranks, collectives).items():
        above = _mean(transfers) - transfers[slow]
        excess[where] = min(max(above, 0.0), exposed.get(where, 0.0))
    found = sum(excess.values())
    moved = min(cost - _mean(waits), found)
    if moved <= 0:
        return dict(parts), dict(exposed)
    changed = {part: ms - moved * excess.get(part, 0.0) / found for part, ms in parts.items()}
    less = {where: ms - moved * excess.get(where, 0.0) / found for where, ms in exposed.items()}
    taken = sum(parts.values()) - sum(changed.values()) + sum(exposed.values()) - sum(less.values())
    return {**changed, "straggler": changed.get("straggler", 0.0) + taken}, less


def _read_transfers(
    ranks: Sequence[Mapping[str, Any]], collectives: Sequence[Mapping[str, Any]]
) -> dict[Where, list[float]]:
    """Return exposed transfer per step of each rank, of the collectives of which the analysis knows it for every
    rank.
    """
    place = {row.get("rank"): i for i, row in enumerate(ranks)}
    found: dict[Where, list[float]] = {}
    unknown: set[Where] = set()
    for row in collectives:
        where = (row.get("collective") or "", row.get("axis") or "")
        exposed, wait = row.get("exposed_ms"), row.get("exposed_wait_ms")
        steps = ranks[place[row["rank"]]].get("steps") if row.get("rank") in place else None
        if not (is_number(exposed) and is_number(wait) and steps):
            unknown.add(where)
            continue
        found.setdefault(where, [0.0] * len(ranks))[place[row["rank"]]] += (exposed - wait) / steps
    return {where: values for where, values in found.items() if where not in unknown}


def _read_ms(row: Mapping[str, Any], share: str) -> float | None:
    step_ms, pct = row.get("step_ms"), row.get(share)
    return step_ms * pct / 100 if is_number(step_ms) and is_number(pct) else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


SUM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class TracedStep:
    """The mean step over ranks and steps; times in ms.

    Attributes:
        source: gpu | cpu.
        parts: compute, straggler, copies, data, host, idle, bubble; they and `exposed` sum to `step_ms`.
        exposed: per collective, the exposed transfer, without waiting for a late rank.
        total: the same, hidden or not; a collective that the analysis does not sum up is absent.
        sent_bytes: per collective and step, if the traces have it.
        late_rank: late by more than chance explains, by the run's own report; None = no rank is.
        gap_kind, gap_label: the gaps in which the device waits for its host, by the run's own report; None = unknown.
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
        """Return the value of a collective; over all axes where the key names none."""
        found = [v for (name, axis), v in values.items() if name == key[0] and key[1] in ("", axis)]
        return sum(found) if found else None


def build_traced_step(analysis: Mapping[str, Any]) -> TracedStep | str:
    """Return the step of an analysis/report.json, or half a sentence with the reason why there is not any."""
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
            part = CAUSES.get(name, "idle")
            parts[part] = parts.get(part, 0.0) + ms
    ranks = _list_rows(analysis, "ranks")
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
        late_rank=find_late_rank(*(_list_rows(analysis, name) for name in ("steps", "collectives"))),
        **{
            name: told if isinstance(told := mean.get(name), str) else None
            for name in ("gap_kind", "gap_label")
        },
    )


def _list_rows(analysis: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return [row for row in analysis.get(name) or [] if isinstance(row, dict)]


def _sum_up(analysis: Mapping[str, Any], count: int, read: Any) -> dict[Where, float]:
    """Return mean per rank and step of a number of the collectives; without those in which a row lacks it."""
    found: dict[Where, list[float | None]] = {}
    for row in (analysis.get("collectives") or []) if count else []:
        try:
            value = read(row)
        except (KeyError, TypeError):  # None = unknown
            value = None
        found.setdefault((row.get("collective") or "", row.get("axis") or ""), []).append(value)
    known = {where: [v for v in values if v is not None] for where, values in found.items()}
    return {where: sum(known[where]) / count for where in found if len(known[where]) == len(found[where])}


ORDER = ("compute", "straggler", "copies", "data", "host", "idle", "bubble")


def build_differences(run: TracedStep, base: TracedStep, measured_ms: float) -> list[dict[str, Any]]:
    """Return rows {cause, collective, axis, why, ms, run_ms, baseline_ms}; their `ms` sum to `measured_ms`.

    For a collective run_ms and baseline_ms are the exposed time; its difference may be split over two rows.

    Args:
        measured_ms: the run's median step time minus the baseline's, of the timed steps. The last row is the part
            that is missing in the recorded steps.
    """
    rows = []
    for key in _align(run, base):
        rows += _split(key, run, base)
    for part in dict.fromkeys([*ORDER, *run.parts, *base.parts]):
        mine, other = run.parts.get(part, 0.0), base.parts.get(part, 0.0)
        rows.append(_row(part, mine - other, mine, other))
    rows = [row for row in rows if row["run_ms"] or row["baseline_ms"] or row["ms"]]
    remainder = measured_ms - sum(row["ms"] for row in rows)
    return [*rows, _row(NOT_TRACED, remainder, None, None)]


def split_exposed(total: tuple[float, float], exposed: tuple[float, float]) -> tuple[float, float]:
    """Return (more communication, less overlap) of (run, baseline); the sum is the difference of the exposed."""
    more = total[0] - total[1]
    less = (exposed[0] - exposed[1]) - more
    if more * less >= 0:
        return more, less
    return (more + less, 0.0) if abs(more) >= abs(less) else (0.0, more + less)


def _align(run: TracedStep, base: TracedStep) -> list[Where]:
    """Return the collectives of both. The axis counts if one of the runs has a collective on several."""
    keys = [*run.exposed, *base.exposed]
    several = {
        name
        for step in (run, base)
        for name, _ in step.exposed
        if len({axis for found, axis in step.exposed if found == name}) > 1
    }
    return list(dict.fromkeys((name, axis if name in several else "") for name, axis in keys))


def _split(key: Where, run: TracedStep, base: TracedStep) -> list[dict[str, Any]]:
    mine, other = (step.merged(key, step.exposed) or 0.0 for step in (run, base))
    totals = [
        step.merged(key, step.total) if step.merged(key, step.exposed) is not None else 0.0
        for step in (run, base)
    ]
    axes = {axis for step in (run, base) for name, axis in step.exposed if name == key[0]}
    place = {"collective": key[0], "axis": key[1] or (axes.pop() if len(axes) == 1 else "")}
    if totals[0] is None or totals[1] is None:  # without totals the reason for more exposed time is unknown
        return [_row("more_communication", mine - other, mine, other) | place | {"why": "exposed"}]
    more, less = split_exposed((totals[0], totals[1]), (mine, other))
    place["why"] = _why(key, run, base)
    rows = [_row("more_communication", more, mine, other), _row("less_overlap", less, mine, other)]
    return [row | place for row in rows if row["ms"]]


def _why(key: Where, run: TracedStep, base: TracedStep) -> str:
    """Return bytes: another volume; link: the same in another time; new: only one has it; empty: unknown."""
    if any(step.merged(key, step.exposed) is None for step in (run, base)):
        return "new"
    mine, other = (step.merged(key, step.sent_bytes) for step in (run, base))
    if not mine or not other:
        return ""
    return "link" if abs(mine - other) <= SAME_BYTES * max(mine, other) else "bytes"


def _row(cause: str, ms: float, run_ms: float | None, baseline_ms: float | None) -> dict[str, Any]:
    where = dict.fromkeys(("collective", "axis", "why"))
    return {"cause": cause, **where, "ms": ms, "run_ms": run_ms, "baseline_ms": baseline_ms}
