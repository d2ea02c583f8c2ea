"""The parts of the page for who has to choose: the best run per goal, memory against throughput, scaling, a search over
settings, and sharding: what a rank holds of the state, against an even share and against the promise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.compare.efficiency import AS_PROMISED, TOLERANCE_PCT, name_series
from stratlab.compare.placement import STATE
from stratlab.compare.search_ranking import name_point, name_settings
from stratlab.compare.winners import NO_INTERVAL, ON_CPU, Winner
from stratlab.drawing import (
    Column,
    Columns,
    Section,
    Tile,
    badge,
    html_table,
    line_chart,
    note,
    paragraph,
    scatter,
    stacked_bars,
    subtitle,
    tile_row,
)
from stratlab.wording import format_count, format_fact

Report = Mapping[str, Any]
NOT_RANKED = "times of a CPU are not ranked"
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


def build_tiles(winners: Sequence[Winner], means: str = "") -> Markup:
    """A tile for each winner, and one for all questions without.

    Args:
        means: what the numbers can say where nobody wins.
    """
    tiles = [Tile(each.metric.name, each.run, shorten_reason(each.reason)) for each in winners if each.run]
    questions: dict[str, list[str]] = {}  # reason -> what nobody is best in because of it
    for each in winners:
        if not each.run:
            questions.setdefault(shorten_reason(each.reason), []).append(each.metric.name)
    if len(questions) == 1:
        ((reason, names),) = questions.items()
        tiles.append(Tile(", ".join(names), None, reason, means))
    elif questions:
        why = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in questions.items())
        tiles.append(Tile(f"{sum(map(len, questions.values()))} questions", None, why, means))
    return tile_row(tiles)


def shorten_reason(reason: str) -> str:
    """Without what the banner says of all numbers."""
    return reason.replace(NO_INTERVAL, "").replace(ON_CPU, NOT_RANKED)


def build_goals_html(report: Report) -> Markup:
    """The best run per goal and group, and which runs do not fit."""
    goals, html = report["goals"], Markup("")
    for group in goals["groups"]:
        rows = [
            {
                "goal": entry["goal"],
                "run": badge(entry["run"], "good") if entry["run"] else None,
                "why": shorten_reason(entry["reason"]),
            }
            for entry in group["goals"]
        ]
        among = "" if len(goals["groups"]) == 1 else f", among {', '.join(group['runs'])}"
        html += subtitle(f"By goal{among}") + html_table(rows, ["goal", Column("run", "best run"), "why"])
    if goals["memory_limit_gib"] is not None:
        sizes = [f" ({each['memory_gib']:.3g} GiB)" if each["memory_gib"] else "" for each in goals["fits"]]
        fits = [f"{e['run']} {FITS[e['fits']]}{size}" for e, size in zip(goals["fits"], sizes, strict=True)]
        html += note(f"Within {goals['memory_limit_gib']:g} GiB per device: {', '.join(fits)}.")
    return html


def draw_pareto(entry: Mapping[str, Any], *, of_several: bool) -> Markup:
    """Speed against memory: one dot per run, and who is on the front.

    Args:
        of_several: there is such a picture of other runs too, so its heading names these.
    """
    of_whom = f": {', '.join(point['run'] for point in entry['points'])}" if of_several else ""
    points = {point["run"]: (point["memory_gib"], point["samples_per_s"]) for point in entry["points"]}
    chart = scatter(points, "GiB per rank", "samples per s", front=entry["front"])
    front = f"No run is put on the front: {NOT_RANKED}."
    if entry["front"]:
        front = f"On the front, where nobody is both faster and smaller: {', '.join(entry['front'])}."
    html = subtitle(f"Speed against memory{of_whom}") + chart + paragraph(front)
    return html + note(f"Memory: {entry['memory_is']}. Throughput as measured, whatever its noise.")


def build_choice(report: Report) -> list[Section]:
    """The section of scaling; none where nothing tells of it."""
    html = Markup("")
    for series in report["scaling"]:
        html += subtitle(f"{name_series(series)}: {series['kind']} scaling") + _draw_scaling(series)
    return [Section("Scaling", html)] if html else []


def list_points(series: Mapping[str, Any]) -> tuple[list[dict[str, Any]], Columns]:
    """Rows and columns of the table of a series, without columns that no point fills."""
    rows = [{**point, "runs": ", ".join(point["runs"])} for point in series["points"]]
    return rows, [
        column
        for column in SCALING_COLUMNS
        if isinstance(column, str) or any(row[column.key] is not None for row in rows)
    ]


def _draw_scaling(series: Mapping[str, Any]) -> Markup:
    rows, columns = list_points(series)
    single, several = series["single"], len(rows) > 1
    first = series["baseline"] if several else 1
    sizes = [row["world_size"] for row in rows]
    speedups = [row["speedup" if several else "speedup_vs_single"] for row in rows]
    start = [] if several else [(1, 1.0)]
    lines = {
        name_series(series): [*start, *zip(sizes, speedups, strict=True)],
        "ideal": [*start, *((size, size / first) for size in sizes)],
    }
    against = format_count(first, "process", "es") if several else "single"
    equal = f" Against single: {', '.join(single['runs'])}, equal but for the strategy." if single else ""
    remark = note(
        f"{series['what']}. Speed-up: throughput against that of {against}; efficiency: speed-up divided by how many "
        f"times more processes there are.{equal}"
    )
    return html_table(rows, columns) + line_chart(lines, "world size", "speed-up") + remark


def build_search_section(report: Report) -> list[Section]:
    """One section; none where nothing is varied."""
    search = report.get("search")
    if not search:
        return []
    settings = name_settings(search["best"])
    best = badge(settings, "good") if settings else badge("nobody is named", "warn")
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
    """One flat row for each point, best first."""
    rows = []
    for point in search["points"]:
        row = {**point, "apart": "no" if point["within_noise"] else "yes"}
        row |= {f"setting {name}": format_fact(value) for name, value in point["settings"].items()}
        row |= {name: ", ".join(point[name]) for name in ("runs", "strategies")}
        rows.append(row | (dict.fromkeys(("behind", "noise", "apart")) if point["place"] == 1 else {}))
    return rows


def list_columns(search: Mapping[str, Any]) -> Columns:
    """Of the table of points."""
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
    """One section; none without a run."""
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
    remark = note(
        "State: what one process holds that shards nothing, reckoned from the number of parameters, those that are "
        "trained, the element types that were observed, and the optimizer. Effectiveness: the even share, state / "
        "ranks, divided by what the rank with most holds, as counted from its tensors between the backward pass and "
        f"the update: exact on any hardware, no time in it. A promise is kept within {TOLERANCE_PCT:g} %. DeepSpeed's "
        "promise has the fp32 copy of each rank's share in it; activations, buckets and ZeRO++'s second copy in the "
        "node are not state."
    )
    rows = [{**entry, "kept": KEPT[entry["kept"]]} for entry in entries]
    html = html_table(rows, SHARDING_COLUMNS[:-1])
    for why, names in different.items():
        html += note(f"{', '.join(names)}: {why}.")
    return [Section("Sharding", html + stacked_bars(bars, "GiB per rank") + remark)]
