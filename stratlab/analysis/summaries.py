"""Texts about a report for readers: the parts of a step in words, the answer in a sentence, rows over all ranks.

The page and the Markdown show these; the tables have every rank. Unknown values are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stratlab.wording import count_processes, format_count, format_number
from stratlab_spec.step_parts import BUBBLE, COMMUNICATION, COPIES, WORDS, split_step

SPOKEN = {name: f"exposed {name}" for name in (COMMUNICATION, COPIES)}
ENOUGH_PCT, MOST_PARTS = 90.0, 4  # the headline names parts until this share of the step is explained


def sum_named_parts(report: Mapping[str, Any]) -> dict[str, float]:
    """Return name -> ms of the mean step, from report["parts"], the largest first; only values above zero."""
    sums: dict[str, float] = {}
    for part in report.get("parts") or []:
        name = WORDS.get(part["part"], part["part"])
        sums[name] = sums.get(name, 0.0) + (part["ms"] or 0.0)
    return dict(sorted(((n, ms) for n, ms in sums.items() if ms > 0), key=lambda entry: -entry[1]))


def say_headline(report: Mapping[str, Any]) -> str:
    """Return the largest parts of the step, in ms and percent of the step."""
    step_ms, sums = report["mean"].get("step_ms"), sum_named_parts(report)
    if not step_ms or not sums:
        return "How long a step takes is not known."
    shown: list[str] = []
    explained = 0.0
    for name, ms in sums.items():
        if len(shown) == MOST_PARTS or explained >= ENOUGH_PCT:
            break
        explained += 100 * ms / step_ms
        ideal = report["mean"].get("bubble_ideal_pct")
        mostly = _largest_collective(report) if name == COMMUNICATION else ""
        mostly += f"; {ideal:.0f} % with equal stages" if name == BUBBLE and ideal is not None else ""
        shown.append(f"{SPOKEN.get(name, name)} {_ms(ms)} ({100 * ms / step_ms:.0f} %{mostly})")
    tail = f", the rest {max(100 - explained, 0):.0f} %" if len(sums) > len(shown) else ""
    what = " of host time" if report["source"] == "cpu" else ""
    return f"A recorded step takes {_ms(step_ms)}{what}: {', '.join(shown)}{tail}."


def say_forecast(report: Mapping[str, Any]) -> str:
    """Return the foreseen step next to the recorded one, and the part that deviates; empty without a forecast."""
    forecast = report.get("forecast") or {}
    if forecast.get("error_pct") is None:
        return ""
    low, high = forecast["band_pct"]
    parts = "; ".join(
        f"{WORDS[part['part']]} {_ms(part['ms'])}, recorded {_ms(part['measured_ms'])}"
        for part in forecast["parts"]
    )
    late = forecast["deviates"]
    marked = f" Outside its band, most in {WORDS[late]}." if late else ""
    return (
        f"Foreseen on {forecast['card']}: {_ms(forecast['step_ms'])} ({low:+.0f} to {high:+.0f} %), "
        f"{forecast['error_pct']:+.1f} % against the recorded step, which the profiler slows: {parts}.{marked}"
    )


def describe_collective(collective: str | None, axis: str | None) -> str:
    """Return `all_gather` over `dp_shard` -> `all-gather over dp_shard`."""
    return (collective or "unknown").replace("_", "-") + (f" over {axis}" if axis else "")


def _largest_collective(report: Mapping[str, Any]) -> str:
    parts = [p for p in report["parts"] if p["part"] == "comm" and p["ms"] and p.get("collective")]
    if not parts:
        return ""
    top = max(parts, key=lambda part: part["ms"])
    name = describe_collective(top["collective"], top.get("axis"))
    return f"; {'' if len(parts) == 1 else 'mostly '}{name}"


def _ms(value: float) -> str:
    return f"{format_number(value, 1 if value >= 10 else 2)} ms"


Row = Mapping[str, Any]
PHASES = ("data", "forward", "backward", "optimizer", "other")


def sum_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def mean_known(values: Iterable[float | None]) -> float | None:
    """Return mean of the known values; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def divide(a: float | None, b: float | None, factor: float = 1.0) -> float | None:
    """Return factor * a / b; None if one of them is unknown or b is 0."""
    return factor * a / b if a is not None and b else None


def group_rows(rows: Iterable[Row] | None, key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Return rows by key, both in the order of the rows."""
    groups: dict[Any, list[Row]] = {}
    for row in rows or ():
        groups.setdefault(key(row), []).append(row)
    return groups


def _mean_parts(groups: Mapping[Any, Sequence[Row]], steps: int | None) -> dict[Any, dict[str, float | None]]:
    """Return key -> {part: ms of the mean step}, without parts that are 0 in every group, for a short legend.

    Args:
        steps: of which the rows of a group are the mean; None = as many as it has rows.
    """
    means: dict[Any, dict[str, float | None]] = {}
    for key, rows in groups.items():
        split = [split_step(row) for row in rows]
        means[key] = {n: divide(sum_known(parts[n] for parts in split), steps or len(rows)) for n in split[0]}
    used = {name for row in means.values() for name, value in row.items() if value}
    return {key: {n: v for n, v in row.items() if n in used} for key, row in means.items()}


def build_phase_parts(report: Row) -> dict[str, dict[str, float | None]]:
    """Return phase -> {part: ms of the mean step}; the phases sum to the step. Empty without rows."""
    rows = report.get("phases") or []
    known = sorted(rows, key=lambda r: PHASES.index(r["phase"]) if r["phase"] in PHASES else len(PHASES))
    return _mean_parts(
        group_rows(known, lambda row: row["phase"]), len({(row["rank"], row["step"]) for row in rows})
    )


def build_rank_parts(report: Row) -> dict[int, dict[str, float | None]]:
    """Return rank -> {part: ms of its mean step}."""
    return _mean_parts(group_rows(report["steps"], lambda row: row["rank"]), None)


def build_step_parts(report: Row) -> dict[int, dict[str, float | None]]:
    """Return recorded step -> {part: ms}, mean over ranks."""
    return _mean_parts(group_rows(report["steps"], lambda row: row["step"]), None)


def _sort_by_time(rows: list[dict[str, Any]], name: str = "total_ms") -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: -(row[name] or 0))


def build_kernel_summary(report: Row, most: int) -> list[dict[str, Any]]:
    """Return the kernels with most time: counts and times of all ranks together, percentiles as means of the ranks'."""
    ranks = len({row["rank"] for row in report.get("kernels") or []})
    found = []
    for (name, kind), rows in group_rows(report.get("kernels"), lambda r: (r["name"], r["type"])).items():
        sums = {key: sum_known(row[key] for row in rows) for key in ("count", "sum_ms")}
        found.append(
            {"name": name, "type": kind, **sums}
            | {"pct": divide(sum_known(row["pct"] for row in rows), ranks)}
            | {"mean_us": divide(sums["sum_ms"], sums["count"], 1000)}
            | {key: mean_known(row[key] for row in rows) for key in ("p50_us", "p95_us")}
            | {"max_us": max((row["max_us"] for row in rows if row["max_us"] is not None), default=None)}
        )
    return _sort_by_time(found, "sum_ms")[:most]


def build_collective_summary(report: Row) -> list[dict[str, Any]]:
    """Return one row per collective and axis: means per rank over all recorded steps, and who came last most often."""
    names = ("count", "bytes", "total_ms", "exposed_ms", "wait_ms", "exposed_wait_ms")
    groups = group_rows(report.get("collectives"), lambda r: (r["name"], r.get("collective"), r.get("axis")))
    return _sort_by_time(
        [
            {"collective": describe_collective(collective, axis), "name": name, "ranks": len(rows)}
            | {key: mean_known(row.get(key) for row in rows) for key in names}
            | {"came_last": _say_last(rows)}
            for (name, collective, axis), rows in groups.items()
        ]
    )


def _say_last(rows: Sequence[Row]) -> str | None:
    known = [(row["arrived_last"], row["rank"]) for row in rows if row.get("arrived_last") is not None]
    matched = sum(count for count, _ in known)
    if not matched:
        return None
    count, rank = max(known, key=lambda entry: (entry[0], -entry[1]))
    return f"rank {rank} in {count} of {matched}"


def build_copy_summary(report: Row) -> list[dict[str, Any]]:
    """Return one row per kind of copy: sums over the ranks, and bytes over time."""
    found = []
    for kind, rows in group_rows(report.get("copies"), lambda row: row["kind"]).items():
        timed = [row for row in rows if row.get("bytes") is not None and row.get("total_ms")]
        size, took = (sum_known(row[name] for row in timed) for name in ("bytes", "total_ms"))
        sums = {name: sum_known(row[name] for row in rows) for name in ("count", "total_ms")}
        found.append({"kind": kind, **sums, "bytes": size, "gbps": divide(size, took, 1e-6)})
    return _sort_by_time(found)


def build_idle_summary(report: Row) -> list[dict[str, Any]]:
    """Return one row per stream: means per rank."""
    groups = group_rows(report.get("idle"), lambda row: row["stream"])
    names = ("host_wait_ms", "kernel_wait_ms", "other_ms")
    return [
        {"stream": None if stream is None else str(stream), "ranks": len(rows)}
        | {name: mean_known(row.get(name) for row in rows) for name in names}
        for stream, rows in sorted(groups.items(), key=lambda entry: str(entry[0]))
    ]


def choose_ranks(report: Row, most: int = 16) -> list[int]:
    """Return at most `most` ranks: the slowest and the fastest, frequent last arrivers, ranks with a finding, and
    others.

    Skipped ranks come first among those with a finding; the others are spread evenly.
    """
    rows = report["ranks"]
    everyone = [row["rank"] for row in rows]
    if len(everyone) <= most:
        return everyone
    timed = sorted((r for r in rows if r.get("step_ms") is not None), key=lambda r: r["step_ms"])
    late = sorted(report.get("collectives") or [], key=lambda r: -(r.get("arrived_last") or 0))
    busy = sorted((r for r in rows if r.get("compute_pct") is not None), key=lambda r: -r["compute_pct"])
    named = [row["rank"] for row in timed[-1:] + timed[:1] + late[:1] + busy[:1]]
    named += [report["mean"].get("slowest_rank")]
    findings = sorted(report.get("quality") or [], key=lambda row: row["action"] != "skipped")
    named += list(dict.fromkeys(row["rank"] for row in findings if row["rank"] is not None))[: most // 2]
    chosen = [rank for rank in dict.fromkeys(named) if rank in set(everyone)][:most]
    others = [rank for rank in everyone if rank not in chosen]
    left = most - len(chosen)
    return sorted(chosen + [others[round(i * (len(others) - 1) / max(left - 1, 1))] for i in range(left)])


MOST_LEFT_OUT = 5


def build_origin(report: Mapping[str, Any]) -> str:
    """Return the origin of the numbers, in one line."""
    steps, of = sorted({row["step"] for row in report["steps"]}), report["run"].get("steps")
    which = f"s {steps[0]} to {steps[-1]}" if len(steps) > 1 else f" {steps[0]}" if steps else ""
    parts = [
        *_list_settings(report),
        report["device"] or "",
        _label("backend {}", report["backend"]),
        f"recorded step{which}{'' if of is None else f' of {format_number(of)}'}" if steps else "",
    ]
    text = ", ".join(filter(None, parts))
    return f"{text[0].upper()}{text[1:]}."


def say_run(report: Row, summary: Row) -> str:
    """Return how the run ended and how reliable its times are: its traces, its device, other work.

    Args:
        summary: summary.json; empty without one.
    """
    finished, findings = report["run"].get("finished"), report.get("quality") or []
    ended = {True: "The run finished", False: "The run did not finish"}.get(finished, "Traces without a run")
    skipped = sum(row["action"] == "skipped" for row in findings)
    traces = f"{count(len(findings), 'finding')} about its traces, {skipped} left out (Quality of the traces)"
    told = [f"{ended}; {traces if findings else 'every rank has a complete trace'}."]
    if report["source"] == "cpu":
        told.append("On a CPU: times are of host operators, not of a GPU.")
    pressure, other = (summary.get(name) for name in ("cpu_pressure_pct", "other_cpu_pct"))
    if (busy := other if pressure is None else pressure) is not None:
        measured = "other programs used" if pressure is None else "the run waited for a processor"
        of = "of the processors" if pressure is None else "of the time"
        told.append(f"Other work on the machine: {measured} {busy:.0f} % {of}.")
    return " ".join(told)


def build_trust(report: Row, drawn_ms: float | None = None) -> list[str]:
    """Return the limits of the numbers: how many there are, their spread, and the recording's overhead.

    Args:
        drawn_ms: length of the drawn step.
    """
    mean, run = report["mean"], report["run"]
    steps, step_ms = build_step_parts(report), mean.get("step_ms")
    times = sorted(total for parts in steps.values() if (total := sum_known(parts.values())) is not None)
    over = f"Means of {count(mean.get('steps'), 'recorded step')} on {count(mean['ranks'], 'rank')}"
    spread = f", {_ms(times[0])} to {_ms(times[-1])}" if len(times) > 1 else ""
    told = [f"{over}{spread}."]
    own, factor = run.get("step_time_ms_p50"), divide(step_ms, run.get("step_time_ms_p50"))
    if factor is not None and report.get("steps_from") != "recording":
        drawn = f", {_ms(drawn_ms)} drawn (a single one)" if drawn_ms else ""
        told.append(
            f"A step takes {_ms(own)} without recording (median of the run), {_ms(step_ms)} recorded (mean){drawn}: "
            f"recording makes it {factor:.2f} times as long."
        )
    if (late := mean.get("slowest_rank")) is not None:
        told.append(f"Rank {late} is late by more than chance explains.")
    return told


def build_answer(report: Mapping[str, Any]) -> list[str]:
    """Return the terminal's lines, with the parts of the traces that are missing in the numbers."""
    mean = report["mean"]
    device, backend = report["device"], _label("backend {}", report["backend"])
    origin = ", ".join(filter(None, [f"{report['source']} traces", backend, device]))
    lines = [
        f"mean of {count(mean['steps'], 'step')} on {count(mean['ranks'], 'rank')} ({origin}):",
        say_headline(report),
    ]
    skipped = [row for row in report.get("quality") or [] if row["action"] == "skipped"]
    lines += [f"  not in it: {_say_skipped(row)}" for row in skipped[:MOST_LEFT_OUT]]
    if len(skipped) > MOST_LEFT_OUT:
        lines.append(f"  and {len(skipped) - MOST_LEFT_OUT} more: the report names them")
    return lines


def count(number: Any, noun: str, plural: str = "s") -> str:
    """Return `1 rank`, `2 ranks`; empty if it is not known."""
    return "" if number is None else format_count(number, noun, plural)


def _list_settings(report: Mapping[str, Any]) -> list[str]:
    run = report["run"]
    processes, nodes = run.get("world_size"), run.get("nodes")
    if processes is None or nodes is None:
        place = count(processes, "process", "es") or count(nodes, "node")
    else:
        place = count_processes(processes, nodes, run.get("machines"))
    weights = _label("starts from {}", run.get("initial_weights"))
    return [_label("strategy {}", run.get("strategy")), place, weights]


def _label(text: str, value: Any) -> str:
    return "" if value is None else text.format(value)


def _say_skipped(row: Mapping[str, Any]) -> str:
    rank = _label("rank {}", row["rank"])
    return f"{', '.join(filter(None, [row['file'], rank])) or 'a trace'}: {row['reason']}"
