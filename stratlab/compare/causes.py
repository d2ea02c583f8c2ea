"""The causes of a difference between two steps, and the weaknesses of a comparison's step times.

find_main_cause, find_remedy   the cause with most of the difference, and its fix.
build_sentence                 the difference, its cause and a fix; or why no cause can be named.
build_flags                    one flag per weakness, with its runs and their numbers:

unequal_warm_up    the cuts before the timed steps differ by more than the rule's own scatter.
few_timed_steps    a median of few steps can be chance.
busy_machine       other work had processors that the run waited for; on a CPU its times are then not comparable.

tests/stratlab/compare/test_attribution.py checks that the settings in the rows of causes exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from stratlab.compare.run_rows import Rows, RunRow
from stratlab_spec.schedule import FEW_STEPS
from stratlab_spec.step_parts import BUBBLE, COMPUTE, COPIES, DATA, HOST, IDLE, LAST_RANK

NOT_TRACED = "not_traced"
UNSEEN = "that the recorded steps do not show"
COLLECTIVES = {
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "all_to_all": "all-to-all",
    "send_recv": "send/receive",
    "": "communication",
    "unknown": "communication of an unknown kind",
}


@dataclass(frozen=True)
class Cause:
    """A cause.

    Attributes:
        name: for tables, as the cause of a longer step.
        more, less: the sentence about its milliseconds; `{what}` is the collective.
        `remedy`: settings to try.
    """

    name: str
    more: str
    less: str
    remedy: str


def _part(more: str, remedy: str, name: str = "") -> Cause:
    """Return a cause whose milliseconds are a part of the step; `name`: its name in the table, if different."""
    return Cause(name or more, more, f"less {more}", remedy)


CAUSES: dict[str, Cause] = {
    "compute": _part(
        COMPUTE,
        "compare the kernels of both reports; run.config.compile=true, run.config.precision=bf16, and "
        "run.config.activation_checkpointing=none where memory allows",
        "more compute",
    ),
    "more_communication": Cause(
        "slower link or more communication",
        "exposed {what} ({why})",
        "less exposed {what}",
        "send less: a run.config.strategy that shards less (ddp, else zero2, else fsdp or zero3), if memory allows; on "
        "several nodes hsdp with run.config.dp_shard = the devices of one node; run.config.precision=bf16",
    ),
    "less_overlap": Cause(
        "less overlap",
        "exposed {what} (less of it hidden behind compute)",
        "exposed {what} (more of it hidden behind compute)",
        "overlap it with more compute: a larger run.config.micro_batch_size; check that no operation waits for a "
        "collective early",
    ),
    "straggler": _part(
        LAST_RANK,
        "look at the slow rank's device and host: clocks, temperature, other work, its share of the data",
    ),
    "copies": _part(
        COPIES,
        "run.config.data_residence=device where the images fit; run.config.offload=none where the state does",
        "copies between host and device",
    ),
    "data": _part(
        DATA,
        "run.config.data_residence=device where the images fit, a cheaper run.config.augment, more CPU cores per rank",
    ),
    "host": _part(
        HOST,
        "look in the merged trace of the run at what its host does in the gaps",
        "host-bound: the device waits for launches",
    ),
    "idle": _part(
        IDLE, "look for gaps in the timeline of the run's own report", "other idle time of the device"
    ),
    "bubble": _part(
        BUBBLE,
        "more micro-batches per step: a smaller run.config.micro_batch_size or a larger run.config.global_batch_size",
    ),
    NOT_TRACED: Cause("not explained by the recorded steps", UNSEEN, UNSEEN, ""),
}
HOST_REMEDIES = {  # by the kind of most gaps (stratlab/analysis/step_rows.py); else as in CAUSES
    "short": "launch less per sample: a larger run.config.micro_batch_size, run.config.compile=true",
    "first": "look at what the host does before the first event of a step: prepare samples ahead, or once",
    "label": "look at what the host does under {label}, where it leaves the device idle",
}
SLOW_LINK = (
    "check the link between the devices, its topology, and who else uses it; where it stays slow, hsdp with "
    "run.config.dp_shard = the devices of one node, or run.config.precision=bf16"
)
WHY_MORE = {"link": "the same bytes, slower", "bytes": "more bytes", "new": "", "": "more of it in total"}
SAME_BYTES = 0.05  # relative


def say_collective(name: str, axis: str = "") -> str:
    """Return `all-gather`, `all-gather over dp_shard`."""
    return COLLECTIVES.get(name, name.replace("_", "-")) + (
        f" over {axis}" if axis and axis != "unknown" else ""
    )


LEAST_SHARE = 0.10  # of the difference: smaller causes are in the table only
AS_TIMES = 10  # as long: percentages stop being helpful
CPU_ORIGIN = "host operator time on gloo; says nothing about GPUs"
ON_A_CPU = f"On a CPU ({CPU_ORIGIN}): "


def build_sentence(pair: Mapping[str, Any]) -> str:
    """Return the sentence of a pair of the attribution. The warnings come first, so that it cannot be quoted without
    them.
    """
    warnings = []
    if pair["differing"]:
        warnings.append(f"Not comparable, no finding: they differ in {', '.join(pair['differing'])}. ")
    elif not pair["comparable"]:
        warnings.append(
            "Whether they are comparable is not known, for traces do not tell the settings: no finding. "
        )
    if "cpu" in pair["sources"]:
        warnings.append(ON_A_CPU)
    if not pair["times_comparable"]:
        return f"{''.join(warnings)}{pair['run']} and {pair['baseline']}: {pair['no_cause']}."
    remedy = f"; remedy: {pair['remedy']}." if pair["remedy"] else "."
    return "".join(warnings) + _say_difference(pair) + _say_causes(pair) + remedy


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
    offset = "; partly offset by " if against else ""
    more, less = (
        ", ".join(_say(row, s, pair) for row in rows) for s, rows in ((sign, along), (-sign, against))
    )
    return f": {more}{offset}{less}"


def find_causes(pair: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return (rows in the direction of the difference, rows against it), the largest first, without the small ones."""
    sign = 1 if pair["difference_ms"] >= 0 else -1
    least = LEAST_SHARE * abs(pair["difference_ms"])
    rows = sorted(pair["parts"], key=lambda row: -abs(row["ms"]))
    shown = [row for row in rows if abs(row["ms"]) > least]
    return [row for row in shown if sign * row["ms"] > 0], [row for row in shown if sign * row["ms"] < 0]


def _say(row: Mapping[str, Any], sign: int, pair: Mapping[str, Any]) -> str:
    """Return the words for a row. `sign`: 1 = the run takes longer in it."""
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


def find_main_cause(pair: Mapping[str, Any]) -> str | None:
    """Return the cause with most of the difference, over all collectives; None when none can be named.

    Late launches cannot hide communication. So lost overlap counts as waiting for the host, up to the additional
    waiting; the rows stay unchanged.
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
    """Return the fix for the main cause of a slower run; empty for a faster one, and on CPUs."""
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
    """Return `31 ms`, `3.1 ms`, `0.31 ms`."""
    digits = 0 if ms >= 10 else 1 if ms >= 1 else 2
    return f"{ms:,.{digits}f} ms"


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
