"""The parts of the page for a choice: memory against throughput, scaling, goals, a search, and sharding.

On a CPU memory is shown against losses. Sharding shows a rank's part of the state, against an even share and the
promise.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.compare import measured_view as measured
from stratlab.compare import verdict_view as verdict
from stratlab.compare.attribution_view import NOTES
from stratlab.compare.comparison import name_knobs, name_search, say_choice
from stratlab.compare.efficiency import AS_PROMISED, TOLERANCE_PCT, name_series
from stratlab.compare.placement import STATE
from stratlab.compare.run_rows import Rows
from stratlab.compare.search_ranking import name_point, name_settings
from stratlab.compare.trust import find_group
from stratlab.compare.winners import NO_INTERVAL, ON_CPU, read_winners
from stratlab.drawing import (
    HALF,
    Column,
    Columns,
    Section,
    badge,
    html_table,
    line_chart,
    note,
    paragraph,
    scatter,
    stacked_bars,
    subtitle,
)
from stratlab.wording import fit_unit, format_count, format_fact, format_range

Report = Mapping[str, Any]
MOST_LINES = 7  # next to the ideal one
MOST_DRAWN = 5  # runs with three bars each
MOST_GROUPS = 2  # of comparable runs, in the tables
NOT_RANKED = "CPU times are not ranked"
FITS = {True: "fits", False: "does not fit", None: "unknown"}
KEPT = {True: badge("kept", "good"), False: badge("not kept", "bad"), None: badge("not known", "warn")}

SCALING_COLUMNS: Columns = (
    Column("world_size", "world size"),
    "nodes",
    "runs",
    Column("samples_per_s", "samples", "per s", 1),
    Column("samples_per_s_per_device", "per device", "per s", 1),
    Column("speedup", "speed-up", digits=2),
    Column("speedup_noise", "\N{PLUS-MINUS SIGN}", digits=2),
    Column("scaling_efficiency_pct", "efficiency", "%", 1),
    Column("speedup_vs_single", "speed-up against single", digits=2),
    Column("efficiency_vs_single_pct", "efficiency against single", "%", 1),
)
SHARDING_COLUMNS: Columns = (
    *("run", "strategy", Column("world_size", "ranks")),
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


def build_goals_html(report: Report) -> Markup:
    """The fastest within a limit of memory in each group, and which runs do not fit; nothing without a limit."""
    goals, html = report["goals"], Markup("")
    if goals["memory_limit_gib"] is None:
        return html
    names = {row["run"]: row["configuration"] for row in report["runs"]}
    for group in goals["groups"][:MOST_GROUPS]:
        rows = [
            {
                "goal": entry["goal"],
                "run": badge(entry["run"], "good") if entry["run"] else None,
                "why": _shorten(entry["reason"]),
            }
            for entry in group["goals"][2:]  # the others are measures
        ]
        members = ", ".join(dict.fromkeys(names[run] for run in group["runs"]))
        among = "" if len(goals["groups"]) == 1 else f", among {members}"
        html += subtitle(f"By goal{among}") + html_table(rows, ["goal", Column("run", "best run"), "why"])
    sizes = [f" ({each['memory_gib']:.3g} GiB)" if each["memory_gib"] else "" for each in goals["fits"]]
    fits = [f"{e['run']} {FITS[e['fits']]}{size}" for e, size in zip(goals["fits"], sizes, strict=True)]
    return html + note(f"Within {goals['memory_limit_gib']:g} GiB per device: {', '.join(fits)}.")


def build_choice(report: Report, rows: Rows, device_gib: float | None, mark: Markup) -> Section:
    """Draw one chart: speed against memory with the front. If no time is ranked, memory against learning."""
    entries = report["pareto"]
    if not entries:
        return Section("Speed against memory", nothing="no two comparable runs")
    answered = {row.run for row in find_group(report)[0]}
    entry = max(entries, key=lambda each: sum(len(answered & {*p["runs"]}) for p in each["points"]))
    by_name = {row.run: row for row in rows}
    points = {point["run"]: (point["memory_gib"], point["samples_per_s"]) for point in entry["points"]}
    title, label, better, fronts = "Speed against memory", "samples per s", "higher", entry["front"]
    said = f"Frontier, where no other run is both faster and smaller: {', '.join(fronts)}."
    if len(fronts) < 2 and fronts != [find_fastest(report)]:
        fronts, said = [], "No frontier: the best runs are too near each other."
    losses = {point["run"]: _find_loss([by_name[run] for run in point["runs"]]) for point in entry["points"]}
    if entry["note"] and all(loss for _, loss in losses.values()):
        title, label, better = "Losses against memory", next(iter(losses.values()))[0], "lower"
        points = {run: (points[run][0], losses[run][1]) for run in points}
        said = "CPU times are not ranked, so the loss stands in the place of the speed."
    is_peak = entry["memory"] == "peak_memory_gib"
    chart = scatter(
        points,
        f"GiB per rank, {'peak on the device' if is_peak else 'held by the state'}",
        label,
        front=fronts,
        height=220,
        width=HALF,
        limit=(report["goals"]["memory_limit_gib"] or device_gib) if is_peak else None,
        better=better,
    )
    drawn = {run for point in entry["points"] for run in point["runs"]}
    others = len({row.run for row in rows if row.is_compared} - drawn)
    said += f" Not drawn: {format_count(others, 'run')} of other groups." if others else ""
    return Section(title, chart + note(said), half=True, mark=mark if better == "higher" else Markup(""))


def find_fastest(report: Report) -> str | None:
    judged = find_group(report)[1]
    return judged["winners"]["samples_per_s"] if judged else None


def _find_loss(repeats: Rows) -> tuple[str, float | None]:
    """Its name and the median of the repeats."""
    for name in ("validation_loss", "test_loss", "train_loss"):
        values = [getattr(row, name) for row in repeats]
        if None not in values:
            return name.replace("_", " "), statistics.median(values)
    return "loss", None


def build_fronts(report: Report, mark: Markup) -> list[Section]:
    """Build a folded section: speed against memory of every group; empty if the first picture shows everything."""
    entries = report["pareto"]
    if len(entries) < 2 and not any(entry["note"] for entry in entries):
        return []
    boxes = []
    for entry in entries:
        points = {point["run"]: (point["memory_gib"], point["samples_per_s"]) for point in entry["points"]}
        chart = scatter(points, "GiB per rank", "samples per s", front=entry["front"], height=220, width=HALF)
        remark = note(f"Memory: {entry['memory_is']}. Throughput as measured, whatever its noise.")
        boxes.append(
            Markup("<div>{}{}{}</div>").format(subtitle(f"Among {', '.join(points)}"), chart, remark)
        )
    html = Markup('<div class="pair">{}</div>').format(Markup("").join(boxes))
    title, count = "Speed against memory: all groups", format_count(len(entries), "group")
    return [Section(title, html, folded=True, result=count, mark=mark)]


def build_best(report: Report) -> Section:
    """Build a folded section: the best run by each measure and goal with the reason, or why no run is named."""
    html, names = Markup(""), {row["run"]: row["configuration"] for row in report["runs"]}
    groups = report["group_winners"] or [report]
    for group in groups[:MOST_GROUPS]:
        members = dict.fromkeys(names[run] for run in group["runs"]) if report["group_winners"] else ()
        among = f"Among {', '.join(members)}" if members else "All runs"
        best = [
            {
                "measure": each.metric.name,
                "run": badge(each.run, "good") if each.run else None,
                "why": _shorten(each.reason),
            }
            for each in read_winners(group)
        ]
        html += subtitle(among) + html_table(best, ["measure", Column("run", "best run"), "why"])
    html += build_goals_html(report)
    if rest := groups[MOST_GROUPS:]:
        html += note(f"{format_count(len(rest), 'smaller group')}: report.json.")
    named = [f"{each.metric.name}: {each.run}" for each in read_winners(groups[0]) if each.run]
    return Section("Best by measure", html, folded=True, result=", ".join(named[:2]) or "none named")


def _shorten(reason: str) -> str:
    return reason.replace(NO_INTERVAL, "").replace(ON_CPU, NOT_RANKED)


def list_points(series: Mapping[str, Any]) -> tuple[list[dict[str, Any]], Columns]:
    """Return rows and columns of the table of a series, without columns that no point fills."""
    rows = [{**point, "runs": ", ".join(point["runs"])} for point in series["points"]]
    return rows, [
        column
        for column in SCALING_COLUMNS
        if isinstance(column, str) or any(row[column.key] is not None for row in rows)
    ]


def build_scaling_chart(report: Report, mark: Markup) -> list[Section]:
    """Draw all strategies over whole numbers of ranks, and the even share of the fastest."""
    lines: dict[str, list[tuple[float, float]]] = {}
    configurations = {row["run"]: row["configuration"] for row in report["runs"]}
    for series in report["scaling"]:
        points = [(point["world_size"], point["samples_per_s"]) for point in series["points"]]
        if single := series["single"]:
            points = [(1, single["samples_per_s"]), *(point for point in points if point[0] > 1)]
        last = series["points"][-1]
        pct = last["scaling_efficiency_pct"] or last["efficiency_vs_single_pct"]
        kind = f", {series['kind']}" if len({each["kind"] for each in report["scaling"]}) > 1 else ""
        name = name_series(series)
        if sum(name_series(each) == name for each in report["scaling"]) > 1:
            first = "single" if series["single"] else configurations[series["points"][0]["runs"][0]]
            name = f"{first} → {configurations[last['runs'][0]]}"
        name = f"{name}{kind}" + (f" ({pct:.0f} %)" if pct else "")
        lines[name] = [*lines.get(name, []), *points]
    if not lines:
        return []
    drawn = dict([*lines.items()][:MOST_LINES])
    sizes = sorted({size for points in drawn.values() for size, _ in points})
    first, speed = max((points[0] for points in drawn.values()), key=lambda point: point[1] / point[0])
    drawn["ideal"] = [(size, speed * size / first) for size in sizes if size >= first]
    chart = line_chart(drawn, "ranks", "samples per s", height=220, width=HALF, x_values=sizes)
    return [
        Section("Scaling", chart + note("In brackets: efficiency on the most ranks."), half=True, mark=mark)
    ]


def build_scaling_tables(report: Report) -> list[Section]:
    """Build a table for each series; empty without any."""
    html, told = Markup(""), list[str]()
    for series in report["scaling"]:
        table, single = html_table(*list_points(series)), series["single"]
        equal = f" Against single: {', '.join(single['runs'])}, equal but for the strategy." if single else ""
        said = f"{series['what']}.{equal}"
        html += subtitle(f"{name_series(series)}: {series['kind']} scaling") + table
        html += note(said) if said not in told else Markup("")
        told.append(said)
    remark = note("Speed-up: throughput against the fewest ranks; efficiency: speed-up / times more ranks.")
    last = [series["points"][-1] for series in report["scaling"]]
    pct = [each["scaling_efficiency_pct"] or each["efficiency_vs_single_pct"] for each in last]
    result = f"efficiency {format_range(pct, '%', 0)}"
    return [Section("Scaling in numbers", html + remark, folded=True, result=result)] if html else []


def build_search_section(report: Report) -> list[Section]:
    """Build one section; empty if no setting is varied."""
    search = report.get("search")
    if not search:
        return []
    settings = name_settings(search["best"])
    best = badge(settings, "good") if settings else badge("not named", "warn")
    html = paragraph(best + f" {search['reason']}.")
    for remark in search["remarks"]:
        html += paragraph(badge("note", "warn") + f" {remark}.")
    if search["points"]:
        goal = search["goal"]
        bars = {name_point(point): {goal["name"]: point["value"]} for point in search["points"]}
        html += html_table(build_search_rows(search), list_columns(search))
        html += stacked_bars(bars, goal["unit"] or goal["name"])
        html += note(
            f"Varied on purpose: {', '.join(search['varied'])}. Runs with equal values of these are one point: "
            "strategies compute the same training, seeds are its repeats, and several runs of one seed count once. "
            f"Noise: {search['noise']['method']}; {search['noise']['degrees']} degrees of freedom. What was learnt "
            "does not depend on how fast the hardware is; where the numbers come from stands at the head of the page."
        )
    for entry in search["left_out"]:
        html += note(f"Not ranked: {entry['run']}, {entry['why']}.")
    return [Section("Search", html)]


def build_search_rows(search: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one flat row for each point, best first."""
    rows = []
    for point in search["points"]:
        row = {**point, "apart": "no" if point["within_noise"] else "yes"}
        row |= {f"setting {name}": format_fact(value) for name, value in point["settings"].items()}
        row |= {name: ", ".join(point[name]) for name in ("runs", "strategies")}
        rows.append(row | (dict.fromkeys(("behind", "noise", "apart")) if point["place"] == 1 else {}))
    return rows


def list_columns(search: Mapping[str, Any]) -> Columns:
    """Return the columns of the table of points."""
    goal = search["goal"]
    tested = {
        "test_accuracy_pct": Column("test_accuracy_pct", "test accuracy", "%", 2),
        "test_perplexity": Column("test_perplexity", "test perplexity", "", 2),
    }
    return [
        "place",
        *(Column(f"setting {name}", name) for name in search["varied"]),
        Column("value", goal["name"], goal["unit"]),
        "seeds",
        Column("behind", "behind the best", goal["unit"]),
        Column("noise", "noise of that", goal["unit"]),
        Column("apart", "told apart from the best"),
        *(
            column
            for name, column in tested.items()
            if name != goal["key"] and any(point[name] is not None for point in search["points"])
        ),
        Column("samples_seen", "samples seen"),
        *("strategies", "runs"),
    ]


def build_sharding_section(entries: Sequence[Mapping[str, Any]]) -> list[Section]:
    """Return one section; none without a run."""
    if not entries:
        return []
    bars: dict[str, dict[str, float | None]] = {}
    different: dict[str, list[str]] = {}  # below the table: as a column of it sentences make every line tall
    for entry in entries:
        if entry["why"] != AS_PROMISED:
            different.setdefault(entry["why"], []).append(entry["run"])
        kinds = {each["kind"]: each for each in entry["kinds"]}
        if kinds:
            for what in ("held", "promised"):
                bars[f"{entry['run']}: {what}"] = {kind: kinds[kind][f"{what}_gib"] for kind in STATE}
            shares = {kind: kinds[kind]["state_gib"] / entry["world_size"] for kind in STATE}
            bars[f"{entry['run']}: even share"] = dict(shares)
    remark = note(NOTES.sharding(f"{TOLERANCE_PCT:g}"))
    rows = [{**entry, "kept": KEPT[entry["kept"]]} for entry in entries]
    html = html_table(rows, SHARDING_COLUMNS[:-1])
    for why, names in different.items():
        html += note(f"{', '.join(names)}: {why}.")
    kept = f"{sum(entry['kept'] is True for entry in entries)} of {len(entries)} promises kept"
    if broken := [entry for entry in entries if entry["kept"] is False]:
        first, more = broken[0], len(broken) - 1
        factor, unit = fit_unit([first["held_gib"], first["promised_gib"]])
        kept += f"; {first['run']} holds {first['held_gib'] * factor:.3g} {unit}"
        kept += f" instead of {first['promised_gib'] * factor:.3g}{f', {more} more differ' * bool(more)}"
    html += (stacked_bars(bars, "GiB per rank") if len(entries) <= MOST_DRAWN else Markup("")) + remark
    return [Section("Sharding", html, folded=True, result=kept)]


def build_tuning(report: Mapping[str, Any]) -> list[Section]:
    """Build one section; empty if the strategies were not tuned by a sweep."""
    tuning = report.get("tuning")
    if not tuning:
        return []
    metric, origin = tuning["metric"], tuning["origin"]
    html = paragraph(
        f"By {metric['name']} ({'highest' if metric['highest'] else 'lowest'} is best), one knob at a time, at most "
        f"{tuning['candidates']} candidates for each combination; {tuning['steps']} steps and "
        f"{format_count(tuning['repeats'], 'repeat')} of each, in the comparison {tuning['tuning']}. "
        f"{verdict.describe_hardware(origin)}, {verdict.either(origin['measured_steps'])} steps timed."
    )
    for search in tuning["searches"]:
        html += subtitle(name_search(search)) + _show(search, metric)
    html += note(measured.NOTES.tuning)
    told = format_count(sum(not search["why_not"] for search in tuning["searches"]), "combination")
    return [Section("Tuning", html, folded=True, result=f"{told} tuned")]


def _show(search: Mapping[str, Any], metric: Mapping[str, Any]) -> Markup:
    is_tuned = not search["why_not"]
    html = paragraph(badge("not tuned", "bad") + f" {search['why_not']}.")
    if is_tuned:
        html = paragraph(badge("tuned", "good") + f" {say_choice(search)}.")
    rows = [
        {
            "candidate": name_knobs(each["knobs"]),
            "taken": badge("taken", "good") if is_tuned and each["knobs"] == search["chosen"] else None,
            "value": each["value"],
            "repeats": len(each["values"]),
            "lead_pct": each["lead_pct"] if each["knobs"] else None,
            "noise_pct": each["noise_pct"] if each["measured_noise"] and each["knobs"] else None,
            "why": each["why"] or None,
            "runs": ", ".join(each["runs"]),
        }
        for each in search["tried"]
    ]
    columns: Columns = [
        "candidate",
        "taken",
        Column("value", metric["key"], metric["unit"]),
        "repeats",
        Column("lead_pct", "better than as it comes", "%", 1),
        Column("noise_pct", "noise of that", "%", 1),
        Column("why", "out, because"),
        "runs",
    ]
    return html + html_table(rows, columns) if rows else html
