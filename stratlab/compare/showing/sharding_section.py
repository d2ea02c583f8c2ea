"""The part of the page on sharding: what a rank holds of the state, against an even share and against the promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.compare.judging.sharding import AS_PROMISED, KINDS, TOLERANCE_PCT
from stratlab.drawing import Column, Section, badge, html_table, note, stacked_bars

KEPT = {True: badge("kept", "good"), False: badge("not kept", "bad"), None: badge("not known", "warn")}

COLUMNS: tuple[Column | str, ...] = (
    "run",
    "strategy",
    Column("world_size", "ranks"),
    Column("state_gib", "state", "GiB"),
    Column("even_share_gib", "even share", "GiB"),
    Column("divided_by", "divided by"),
    Column("promised_gib", "promised per rank", "GiB"),
    Column("held_gib", "held per rank", "GiB"),
    Column("sharding_effectiveness_pct", "effectiveness", "%", 1),
    Column("promised_effectiveness_pct", "promised", "%", 1),
    Column("kept", "promise"),
    Column("why", "how it differs"),
)


def build_sharding_section(entries: Sequence[Mapping[str, Any]]) -> list[Section]:
    """One section; none without a run."""
    if not entries:
        return []
    rows = [{**entry, "kept": KEPT[entry["kept"]]} for entry in entries]
    bars: dict[str, dict[str, float | None]] = {}
    for entry in entries:
        if not entry["kinds"]:
            continue
        parts = {each["kind"]: each for each in entry["kinds"]}
        bars[f"{entry['run']}: held"] = {kind: parts[kind]["held_gib"] for kind in KINDS}
        bars[f"{entry['run']}: promised"] = {kind: parts[kind]["promised_gib"] for kind in KINDS}
        shares = {kind: parts[kind]["state_gib"] / entry["world_size"] for kind in KINDS}
        bars[f"{entry['run']}: even share"] = dict(shares)
    remark = note(
        "State: what one process holds that shards nothing, reckoned from the number of parameters, those that are "
        "trained, the element types that were observed, and the optimizer. Effectiveness: the even share, state / "
        "ranks, divided by what the rank with most holds, as counted from its tensors between the backward pass and "
        f"the update: exact on any hardware, no time in it. A promise is kept within {TOLERANCE_PCT:g} %. DeepSpeed's "
        "promise has the fp32 copy of each rank's share in it; activations, buckets and ZeRO++'s second copy in the "
        "node are not state."
    )
    html = html_table(rows, COLUMNS[:-1]) + Markup("").join(map(note, _tell_apart(entries)))
    return [Section("Sharding", html + stacked_bars(bars, "GiB per rank") + remark)]


def _tell_apart(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """How runs differ from their promise, below the table: as a column of it sentences make every line tall."""
    told: dict[str, list[str]] = {}
    for entry in entries:
        if entry["why"] != AS_PROMISED:
            told.setdefault(entry["why"], []).append(entry["run"])
    return [f"{', '.join(names)}: {why}." for why, names in told.items()]
