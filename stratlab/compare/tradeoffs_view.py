"""The parts of the page for who has to choose: the best run per goal, memory against throughput, scaling.

The tiles of the verdict: who is best in what; all that nobody is best in is one tile.

The part of the page on a search: every point of it by rank, with the noise.

The part of the page on sharding: what a rank holds of the state, against an even share and against the promise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.compare.efficiency import AS_PROMISED, STATE_KINDS, TOLERANCE_PCT, name_series
from stratlab.compare.search_ranking import name_point
from stratlab.compare.winners import NAMES, NO_INTERVAL, ON_CPU
from stratlab.drawing import (
    Column,
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
from stratlab.wording import format_fact

NOT_RANKED = "times of a CPU are not ranked"


def build_tiles(found: Mapping[str, Any], means: str = "") -> Markup:
    """A tile for each winner, and one for all questions without.

    Args:
        found: winners and winner_reasons, of the report or of one of its groups.
        means: what the numbers can say where nobody wins.
    """
    winners, reasons = found["winners"], found["winner_reasons"]
    tiles = [Tile(NAMES[name], run, shorten_reason(reasons[name])) for name, run in winners.items() if run]
    open_questions: dict[str, list[str]] = {}
    for name, run in winners.items():
        if not run:
            open_questions.setdefault(shorten_reason(reasons[name]), []).append(NAMES[name])
    if open_questions:
        tiles.append(_say_open(open_questions, means))
    return tile_row(tiles)


def _say_open(questions: Mapping[str, list[str]], means: str) -> Tile:
    """`questions`: reason -> what nobody is best in because of it."""
    asked = [name for names in questions.values() for name in names]
    if len(questions) == 1:
        return Tile(", ".join(asked), None, next(iter(questions)), means)
    why = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in questions.items())
    return Tile(f"{len(asked)} questions", None, why, means)


def shorten_reason(reason: str) -> str:
    """Without what the banner says of all numbers."""
    return reason.replace(NO_INTERVAL, "").replace(ON_CPU, NOT_RANKED)


Report = Mapping[str, Any]

SCALING_COLUMNS: tuple[Column | str, ...] = (
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
        html += subtitle(
            "By goal" if len(goals["groups"]) == 1 else f"By goal, among {', '.join(group['runs'])}"
        )
        html += html_table(rows, ["goal", Column("run", "best run"), "why"])
    if goals["memory_limit_gib"] is not None:
        words = {True: "fits", False: "does not fit", None: "unknown"}
        fits = [
            f"{entry['run']} {words[entry['fits']]}"
            + (f" ({entry['memory_gib']:.3g} GiB)" if entry["memory_gib"] else "")
            for entry in goals["fits"]
        ]
        html += note(f"Within {goals['memory_limit_gib']:g} GiB per device: {', '.join(fits)}.")
    return html


def build_choice(report: Report) -> list[Section]:
    """The section of scaling; none where nothing tells of it."""
    html = Markup("")
    for series in report["scaling"]:
        html += subtitle(f"{name_series(series)}: {series['kind']} scaling") + _draw_scaling(series)
    return [Section("Scaling", html)] if html else []


def draw_pareto(entry: Mapping[str, Any], *, of_several: bool) -> Markup:
    """Speed against memory: one dot per run, and who is on the front.

    Args:
        of_several: there is such a picture of other runs too, so its heading names these.
    """
    of_whom = f": {', '.join(point['run'] for point in entry['points'])}" if of_several else ""
    points = {point["run"]: (point["memory_gib"], point["samples_per_s"]) for point in entry["points"]}
    chart = scatter(points, "GiB per rank", "samples per s", front=entry["front"])
    if entry["front"]:
        said = f"On the front, where nobody is both faster and smaller: {', '.join(entry['front'])}."
    else:
        said = f"No run is put on the front: {NOT_RANKED}."
    return (
        subtitle(f"Speed against memory{of_whom}")
        + chart
        + paragraph(said)
        + note(f"Memory: {entry['memory_is']}. Throughput as measured, whatever its noise.")
    )


def _draw_scaling(series: Mapping[str, Any]) -> Markup:
    rows = [{**point, "runs": ", ".join(point["runs"])} for point in series["points"]]
    known = [
        column
        for column in SCALING_COLUMNS
        if not isinstance(column, Column) or any(row[column.key] is not None for row in rows)
    ]
    strategy, single = name_series(series), series["single"]
    first = series["baseline"] if len(rows) > 1 else 1
    key = "speedup" if len(rows) > 1 else "speedup_vs_single"
    sizes = [row["world_size"] for row in rows]
    start = [] if len(rows) > 1 else [(1, 1.0)]
    lines = {
        strategy: [*start, *((row["world_size"], row[key]) for row in rows)],
        "ideal": [*start, *((size, size / first) for size in sizes)],
    }
    chart = line_chart(lines, "world size", "speed-up")
    said = note(
        f"{series['what']}. Speed-up: throughput against that of "
        + (f"{first} {'process' if first == 1 else 'processes'}" if len(rows) > 1 else "single")
        + "; efficiency: speed-up divided by how many times more processes there are."
        + (f" Against single: {', '.join(single['runs'])}, equal but for the strategy." if single else "")
    )
    return html_table(rows, known) + chart + said


def build_search_section(report: Mapping[str, Any]) -> list[Section]:
    """One section; none where nothing is varied."""
    search = report.get("search")
    if not search:
        return []
    settings = ", ".join(f"{name}={format_fact(value)}" for name, value in (search["best"] or {}).items())
    html = paragraph(
        (badge(settings, "good") if settings else badge("nobody is named", "warn")) + f" {search['reason']}."
    )
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
    return [
        {
            **point,
            **{f"setting {name}": format_fact(value) for name, value in point["settings"].items()},
            "runs": ", ".join(point["runs"]),
            "strategies": ", ".join(point["strategies"]),
            "behind": point["behind"] if point["place"] > 1 else None,
            "noise": point["noise"] if point["place"] > 1 else None,
            "apart": None if point["place"] == 1 else "no" if point["within_noise"] else "yes",
        }
        for point in search["points"]
    ]


def list_columns(search: Mapping[str, Any]) -> list[Column | str]:
    """Of the table of points."""
    goal = search["goal"]
    also = [
        Column(name, name.removesuffix("_pct").replace("_", " "), "%" if name.endswith("_pct") else "", 2)
        for name in ("test_accuracy_pct", "test_perplexity")
        if name != goal["key"] and any(point[name] is not None for point in search["points"])
    ]
    return [
        "place",
        *(Column(f"setting {name}", name) for name in search["varied"]),
        Column("value", goal["name"], goal["unit"]),
        "seeds",
        Column("behind", "behind the best", goal["unit"]),
        Column("noise", "noise of that", goal["unit"]),
        Column("apart", "told apart from the best"),
        *also,
        Column("samples_seen", "samples seen"),
        "strategies",
        "runs",
    ]


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
        bars[f"{entry['run']}: held"] = {kind: parts[kind]["held_gib"] for kind in STATE_KINDS}
        bars[f"{entry['run']}: promised"] = {kind: parts[kind]["promised_gib"] for kind in STATE_KINDS}
        shares = {kind: parts[kind]["state_gib"] / entry["world_size"] for kind in STATE_KINDS}
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
