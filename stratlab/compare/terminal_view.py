"""A comparison on one screen of a terminal: a table of the runs, a line per answer, and why each is slower.

build_screen   all of it
list_answers   the lines that follow the table, as (label, sentence)
build_table    one row per run
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stratlab.compare.answers import name_answers
from stratlab.compare.attribution import split_busy
from stratlab.compare.causes import CAUSES, CPU_ORIGIN, NOT_TRACED, format_ms, say_collective
from stratlab.compare.efficiency import say_sharding
from stratlab.compare.fairness import COMPARABLE
from stratlab.compare.run_rows import RunRow, read_rows
from stratlab.compare.search_ranking import say_search
from stratlab.compare.summary_view import SHORT, name_configurations, shorten_names
from stratlab.compare.trust import REPEATED, find_group, judge_trust
from stratlab.compare.verdict_view import describe_origin, describe_work
from stratlab.compare.winners import ON_CPU, ONE_REPEAT
from stratlab.progress import build_lines
from stratlab.wording import capitalize, fit_unit, format_number, quote

Report = Mapping[str, Any]
PIPED, MOST_WIDTH = 160, 10_000
MOST_PAIRS, MOST_NOTES, MOST_ANSWERS = 3, 3, 6
"""Shown on one screen; the report has all."""
LEAST_SHARE = 0.05
"""Share of the largest part of a difference: smaller parts are one number."""
Cell = tuple[str, str, int | None]
"""Key of the row, heading, decimals."""
STATE = "state_memory_gib"
COLUMNS: tuple[Cell, ...] = (
    ("strategy", "strategy", None),
    ("status", "status", None),
    ("samples_per_s", "samples/s", 1),
    ("useful_tokens_per_s", "useful tokens/s", 0),
    ("step_time_ms_p50", "step ms", 2),
    (STATE, "state GiB/rank", 4),
    ("peak_memory_gib", "device peak GiB", 2),
    ("comm_exposed_pct", "exposed comm %", 1),
    ("test_accuracy_pct", "test acc %", 2),
    ("test_perplexity", "test perplexity", 3),
    ("bubble_pct", "bubble %", 1),
)
OF_TRACES: tuple[Cell, ...] = (
    ("status", "status", None),
    ("trace_source", "events", None),
    ("trace_ranks", "ranks", None),
    ("recorded_steps", "steps", None),
    ("recorded_step_ms", "recorded step ms", 2),
    ("compute_pct", "compute %", 1),
    ("comm_exposed_pct", "exposed comm %", 1),
    ("copy_exposed_pct", "exposed copies %", 1),
    ("idle_pct", "idle %", 1),
)
LEFT = ("strategy", "status", "trace_source")


def build_screen(report: Report, width: int = PIPED) -> Group:
    """Return the output of `stratlab compare`, on a terminal of `width` columns."""
    report, _, prefix = shorten_names(name_configurations(report), [])
    work = describe_work(report).rstrip(".")
    heading = Text(f"Comparison {quote(report['comparison'])}", style="bold")
    heading.append(f": {work}" if work else "", style="")
    about = [describe_origin(report, versions=False), f"{SHORT.format(prefix)}." if prefix else ""]
    origin = Text(" ".join(filter(None, about)), style="dim")
    return Group(
        heading, origin, build_table(report, width), build_lines(list_answers(report)), *_build_why(report)
    )


def build_table(report: Report, width: int = PIPED) -> Table:
    """Return one row per run: the fastest first, or in the report's order on CPUs, where times rank nothing.

    If the columns do not fit, headings are broken first. Then columns are left out from the end, and named below.
    """
    rows = read_rows(report)
    if ON_CPU not in report["remarks"]:
        rows.sort(key=lambda row: -(row.samples_per_s or 0))
    factor, unit = fit_unit(row.state_memory_gib for row in rows)
    cells = [_read_cells(row, factor) for row in rows]
    columns = _choose_columns(rows, cells, unit)
    ruler = Console(width=MOST_WIDTH)
    table = _draw(columns, rows, cells, broken=False)
    for count in range(len(columns), 0, -1):
        if ruler.measure(table).maximum <= width:
            break
        table = _draw(columns[:count], rows, cells, broken=True)
        table.caption = ", ".join(header for _, header, _ in columns[count:])
    if table.caption:
        table.caption = f"too wide for here, in the report: {table.caption}"
    return table


def _draw(
    columns: Sequence[Cell], rows: Sequence[RunRow], cells: Sequence[Mapping[str, Any]], broken: bool
) -> Table:
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1 if broken else 2, 0, 0), caption_justify="left"
    )
    table.add_column("run", overflow="fold")  # the distinguishing part is at the end
    for name, header, _ in columns:
        heading = header.replace(" ", "\n") if broken else header
        table.add_column(heading, justify="left" if name in LEFT else "right", overflow="fold")
    for row, values in zip(rows, cells, strict=True):
        shown = (format_number(values[name], digits) for name, _, digits in columns)
        table.add_row(*map(Text, (row.run, *shown)))
    return table


def _choose_columns(rows: Sequence[RunRow], cells: Sequence[Mapping[str, Any]], unit: str) -> list[Cell]:
    """Return the useful columns: filled by a run, a strategy that is not the run's name, a status unlike `finished`.

    Args:
        unit: of their state.
    """
    others = OF_TRACES if any(row.is_foreign for row in rows) else ()
    kept: tuple[Cell, ...] = () if all(row.is_foreign for row in rows) else COLUMNS
    kept = (*kept, *(column for column in others if column not in kept))
    named = [row.strategy if row.strategy in re.split(r"[^a-z0-9]+", row.run) else None for row in rows]
    if {row.task for row in rows} - {None} == {"text"}:
        kept = tuple(column for column in kept if column[0] != "samples_per_s")
    usual = {"strategy": named, "status": ["finished"] * len(rows)}
    columns = []
    for name, header, digits in kept:
        values = [each[name] for each in cells]
        if any(value is not None for value in values) and values != usual.get(name):
            columns.append((name, f"state {unit}/rank", 3) if name == STATE else (name, header, digits))
    return columns


def _read_cells(row: RunRow, factor: float) -> dict[str, Any]:
    """Return a row's values for the table. Numbers of steps need labels that mark the steps."""
    step_ms = row.recorded_step_ms
    bubble = row.bubble_pct if (row.pp or 1) > 1 else None
    return {
        **vars(row),
        "strategy": f"{row.strategy} {row.layout}" if row.layout else row.strategy,
        "status": "degenerate" if row.degenerate else row.status,
        "bubble_pct": bubble,
        STATE: row.state_memory_gib and row.state_memory_gib * factor,
        "trace_ranks": len(row.phases_present) or None,
        "recorded_steps": None if step_ms is None else row.trace_steps,
        "recorded_step_ms": step_ms,
    }


def list_answers(report: Report) -> list[tuple[str, str]]:
    """Return whether the runs are comparable, their answers, the best run for each goal, and weaknesses."""
    groups, answered = report["goals"]["groups"], {row.run for row in find_group(report)[0]}
    trust = judge_trust(report)
    answers = [("Fair?", f"{trust.answer}: {trust.reason}")]
    answers += [("", doubt.sentence.rstrip(".")) for doubt in trust.doubts]
    verdict, reason = report["headline"]["verdict"], report["headline"]["reason"]
    if verdict != COMPARABLE and reason not in trust.reason:
        answers.append(("All runs", f"{verdict}: {reason}"))
    answers += [("", sentence) for sentence in _limit(report["headline"]["answers"], MOST_ANSWERS)]
    named = {" ".join(each.question.split()[:2]): each for each in name_answers(report) if each.run}
    for group in groups:
        is_answer = {*group["runs"]} == answered
        for goal in (
            group["goals"] if is_answer else group["goals"][2:]
        ):  # of other groups the requested goals
            label = capitalize(goal["goal"])
            tied = None if goal["run"] else named.get(label)
            said = f"{tied.run}: {tied.number}, {tied.why}" if tied else ""
            answers.append((label, said or f"{goal['run'] or 'not named'}: {goal['reason']}"))
            if is_answer and label in named and named[label].cause:
                answers.append(("", named[label].cause))
    answers += _label("Search", say_search(report["search"]))
    missing = [each["why"] for each in report["attribution"]["not_attributed"]]
    answers += _label("Why", _limit([f"not known: {why}" for why in missing]))
    said = " ".join(sentence for _, sentence in answers)
    doubted = ONE_REPEAT if any(doubt.sentence == REPEATED for doubt in trust.doubts) else ""
    remarks = [
        each for each in report["remarks"] if each != doubted and (each != ON_CPU or ON_CPU not in said)
    ]
    notes = [*remarks, *say_sharding(report["sharding"])]
    return answers + _label("Note", _limit([note.partition(". ")[0] for note in notes]))


def _limit(sentences: Sequence[str], most: int = MOST_NOTES) -> list[str]:
    shown, more = list(sentences[:most]), len(sentences) - most
    return [*shown, f"{more} more in the report"] if more > 0 else shown


def _label(label: str, sentences: Iterable[str]) -> list[tuple[str, str]]:
    return [(label if number == 0 else "", sentence) for number, sentence in enumerate(sentences)]


def _build_why(report: Report) -> Iterator[RenderableType]:
    """The pairs of the answer that are furthest apart, then the others, each with the parts of its difference."""
    answered = {name for row in find_group(report)[0] for name in (row.run, row.configuration)}
    pairs: Sequence[Mapping[str, Any]] = sorted(
        report["attribution"]["pairs"],
        key=lambda pair: (pair["run"] not in answered, -abs(pair["difference_ms"])),
    )
    pairs, busy = split_busy(pairs)
    if busy:
        yield Text("\nTimes are not compared: other work kept the machine busy", style="yellow")
    shown = pairs[:MOST_PAIRS]
    for number, pair in enumerate(shown):
        slower = "is slower than" if pair["difference_ms"] >= 0 else "is faster than"
        away = f"{_sign(pair['difference_ms'])} ms a step, {pair['difference_pct']:+.0f} %"
        title = f"Why {pair['run']} {'differs from' if pair['no_cause'] else slower} {pair['baseline']}"
        yield Text("" if number else "\n").append(title, style="bold").append(f" ({away})")
        if doubt := _find_doubt(pair):
            yield Padding(Text(doubt, style="yellow"), (0, 0, 0, 2))
        if not pair["no_cause"]:
            parts = [Text(f"{_sign(ms):>6}  {name}") for name, ms in list_parts(pair)]
            yield Padding(Columns(parts, equal=True, padding=(0, 3)), (0, 0, 0, 2))
        if pair["remedy"] and pair["remedy"] not in {each["remedy"] for each in shown[:number]}:
            yield Padding(Text(f"try: {pair['remedy']}"), (0, 0, 0, 2))
    if any("cpu" in pair["sources"] and not pair["no_cause"] for pair in shown):
        yield Text(f"Parts: {CPU_ORIGIN}", style="dim")
    if more := len(pairs) - len(shown):
        yield Text(f"{more} more in the report", style="dim")


def _find_doubt(pair: Mapping[str, Any]) -> str:
    """Return why the pair's parts are not a finding; "" if they are."""
    if pair["no_cause"]:
        return f"not determined: {pair['no_cause']}"
    if pair["differing"]:
        return f"no finding, they are not comparable: they differ in {', '.join(pair['differing'])}"
    return "" if pair["comparable"] else "no finding: traces do not tell whether they are comparable"


def list_parts(pair: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return (cause, ms) that sum to the difference, the largest first. A collective is one part; so are all small
    ones.
    """
    sums: dict[str, float] = {}
    for row in pair["parts"]:
        name = _name_part(row, pair)
        sums[name] = sums.get(name, 0.0) + row["ms"]
    least = LEAST_SHARE * max(map(abs, sums.values()), default=0.0)
    large = sorted(
        ((name, ms) for name, ms in sums.items() if abs(ms) >= least), key=lambda part: -abs(part[1])
    )
    rest = sum(ms for ms in sums.values() if abs(ms) < least)
    return [*large, *([("other", rest)] if rest else [])]


def _name_part(row: Mapping[str, Any], pair: Mapping[str, Any]) -> str:
    if row["collective"] is not None:
        return say_collective(row["collective"], row["axis"] or "")
    if row["cause"] == NOT_TRACED:
        return "unexplained"
    late = row["cause"] == "straggler" and pair["late_rank"] is not None
    return CAUSES[row["cause"]].more + (f" (rank {pair['late_rank']})" if late else "")


def _sign(ms: float) -> str:
    return f"{'-' if ms < 0 else '+'}{format_ms(abs(ms)).removesuffix(' ms')}"
