"""One sentence per pair: how far apart, why, and what to try; or that no cause can be named, and why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratlab.compare.explaining.causes import (
    CAUSES,
    HOST_REMEDIES,
    NOT_TRACED,
    SLOW_LINK,
    WHY_MORE,
    say_collective,
)

LEAST_SHARE = 0.10  # of the difference: smaller causes are in the table only
AS_TIMES = 10  # as long: percents are no help any more
CPU_ORIGIN = "host operator time on gloo; says nothing about GPUs"
ON_A_CPU = f"On a CPU ({CPU_ORIGIN}): "


def build_sentence(pair: Mapping[str, Any]) -> str:
    """The sentence of a pair of the attribution. The warnings come first, so that it cannot be quoted without them."""
    warnings = []
    if pair["differing"]:
        warnings.append(f"Not comparable, no finding: they differ in {', '.join(pair['differing'])}. ")
    elif not pair["comparable"]:
        warnings.append(
            "Whether they are comparable is not known, for traces do not tell the settings: no finding. "
        )
    if "cpu" in pair["sources"]:
        warnings.append(ON_A_CPU)
    return "".join(warnings) + _say_difference(pair) + _say_causes(pair) + _say_remedy(pair)


def _say_difference(pair: Mapping[str, Any]) -> str:
    ms = pair["difference_ms"]
    if (times := 1 + pair["difference_pct"] / 100) >= AS_TIMES:
        return f"{pair['run']} takes {times:,.0f} times as long per step as {pair['baseline']} ({format_ms(ms)} more)"
    return (
        f"{pair['run']} is {format_ms(abs(ms))} ({abs(pair['difference_pct']):.0f} %) "
        f"{'slower' if ms >= 0 else 'faster'} per step than {pair['baseline']}"
    )


def _say_causes(pair: Mapping[str, Any]) -> str:
    if pair["no_cause"]:
        return f"; no cause can be named: {pair['no_cause']}"
    sign = 1 if pair["difference_ms"] >= 0 else -1
    along, against = find_causes(pair)
    text = ": " + ", ".join(_say(row, sign, pair) for row in along)
    if against:
        text += "; partly offset by " + ", ".join(_say(row, -sign, pair) for row in against)
    return text


def find_causes(pair: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """(rows in the direction of the difference, rows against it), the largest first, without the small ones."""
    sign = 1 if pair["difference_ms"] >= 0 else -1
    least = LEAST_SHARE * abs(pair["difference_ms"])
    rows = sorted(pair["parts"], key=lambda row: -abs(row["ms"]))
    shown = [row for row in rows if abs(row["ms"]) > least]
    return [row for row in shown if sign * row["ms"] > 0], [row for row in shown if sign * row["ms"] < 0]


def _say(row: Mapping[str, Any], sign: int, pair: Mapping[str, Any]) -> str:
    """`sign` of the row: 1 = the run takes longer in it."""
    cause = CAUSES[row["cause"]]
    what = say_collective(row["collective"] or "", row["axis"] or "")
    why = row["why"] or ""
    words = cause.more if sign > 0 else cause.less
    if row["cause"] == "more_communication":
        told = WHY_MORE.get(why, "")
        words = words.replace(" ({why})", f" ({told})" if told else "")
    if row["cause"] == "straggler" and sign > 0 and pair["late_rank"] is not None:
        words += f" (rank {pair['late_rank']})"
    return f"{format_ms(abs(row['ms']))} {words.format(what=what)}"


def _say_remedy(pair: Mapping[str, Any]) -> str:
    remedy = pair["remedy"]
    return f"; remedy: {remedy}." if remedy else "."


def find_main_cause(pair: Mapping[str, Any]) -> str | None:
    """The cause with most of the difference, over all collectives; None when none can be named.

    What is launched late cannot hide any communication. So of the lost overlap as much as there is more waiting for the
    host counts with the host; the rows stay as they are.
    """
    if pair["no_cause"]:
        return None
    sums = dict.fromkeys(CAUSES, 0.0)
    sign = 1 if pair["difference_ms"] >= 0 else -1
    for row in pair["parts"]:
        sums[row["cause"]] += sign * row["ms"]
    del sums[NOT_TRACED]
    late = max(min(sums["host"], sums["less_overlap"]), 0.0)
    sums["host"], sums["less_overlap"] = sums["host"] + late, sums["less_overlap"] - late
    best = max(sums, key=lambda cause: sums[cause])
    return best if sums[best] > 0 else None


def find_remedy(pair: Mapping[str, Any]) -> str:
    """What to try against the main cause of a run that is slower; empty for a faster one, and on CPUs."""
    cause = pair["main_cause"]
    if not cause or pair["difference_ms"] <= 0 or "gpu" not in pair["sources"]:
        return ""
    if cause == "host":
        kind = pair["gap_kind"] if pair["gap_label"] or pair["gap_kind"] != "label" else ""
        return HOST_REMEDIES.get(kind, CAUSES[cause].remedy).format(label=pair["gap_label"])
    largest = max((row for row in pair["parts"] if row["cause"] == cause), key=lambda row: row["ms"])
    is_link = cause == "more_communication" and largest["why"] == "link"
    return SLOW_LINK if is_link else CAUSES[cause].remedy


def format_ms(ms: float) -> str:
    """`31 ms`, `3.1 ms`, `0.31 ms`."""
    digits = 0 if ms >= 10 else 1 if ms >= 1 else 2
    return f"{ms:,.{digits}f} ms"
