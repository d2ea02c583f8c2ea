"""What a slow rank costs, taken together from where it shows in the mean over the ranks.

A slow rank delays the step by what its own work (compute, copies, data, host) takes longer than that of the rank f that
waits most. In the mean of the ranks that is in three places: as waiting; as own work, in which the slow ranks are above
f; and as exposed transfer, in which the waiting ranks are above the rank s that waits least, because what the transfer
would have hidden behind was over when the last rank came. All steps are equally long, so

    step = own(f) + transfer(s) + straggler        straggler = own(s) - own(f) + waiting(s)

and the straggler's part of the mean is filled up to that, from own work above f and transfer above s, in proportion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratlab.run_directory.files import is_number

Where = tuple[str, str]

OWN = {  # parts in which a rank can be slow, and their shares in the rows of single ranks
    "compute": ("compute_pct",),
    "copies": ("copy_exposed_pct",),
    "data": (
        "data_wait_pct",
    ),  # of traces without a label of data loading not known: it counts with the host
    "host": ("host_wait_pct", "launch_wait_pct"),
}


def gather_straggler(
    parts: Mapping[str, float],
    exposed: Mapping[Where, float],
    ranks: Sequence[Mapping[str, Any]],
    collectives: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, float], dict[Where, float]]:
    """`parts` and `exposed` with the cost of slow ranks under `straggler`; their sum stays. Unchanged where nobody
    waits, where single ranks are not known, and in pipelines, whose stages differ by design.

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
    """Exposed transfer per step of each rank, of the collectives of which the analysis knows it for every rank."""
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
