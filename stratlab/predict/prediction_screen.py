"""Predictions on one screen of a terminal: the verdict, a table with bars, and notes on the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.bar import Bar
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stratlab.predict.answering import CANNOT_START, NOT_KNOWN, Unknown
from stratlab.predict.prediction import MOST_ROWS, Prediction
from stratlab.predict.prediction_report import conclude, explain_lines, find_first
from stratlab.progress import build_lines
from stratlab_spec.memory.prediction import Verdict
from stratlab_spec.memory.profiles import GIB

Answers = Sequence[Prediction | Unknown]
COLOURS = {Verdict.FITS: "green", Verdict.NEAR_FULL: "yellow", Verdict.NOT: "red"}
ORDER = (*map(str, COLOURS), CANNOT_START, NOT_KNOWN)
ROOMY = 110
"""Columns from which on there are longer bars and two causes."""
MOST_LINES = 4
"""Lines of one kind, below the table; --json has all."""
BEYOND = "~"
TAKE = "◀ first"


def build_screen(answers: Answers, device_gib: float, width: int) -> Group:
    """Return the output of `stratlab predict`, on a terminal of `width` columns."""
    verdict = Text(conclude(answers) or "Nothing is known of what was asked", style="bold")
    return Group(
        verdict, build_table(answers, device_gib, width), build_lines(_list_notes(answers, device_gib))
    )


def build_table(answers: Answers, device_gib: float, width: int) -> Table:
    """Return one line per question, by verdict, then by the largest micro-batch; shared values have no column."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("run", overflow="fold")
    facts = {
        "ranks": {one.question.name: one.question.ranks for one in answers},
        "micro-\nbatch": {one.question.name: one.question.rows for one in answers},
    }
    facts = {name: values for name, values in facts.items() if len({*values.values()}) > 1}
    for fact in facts:
        table.add_column(fact, justify="right")
    table.add_column("verdict", no_wrap=True)
    rows = {one.question.rows for one in answers}
    at = f",\nmicro-\nbatch {rows.pop()}" if len(rows) == 1 else ""
    table.add_column(f"GiB of\n{device_gib:g}{at}", justify="right", no_wrap=True)
    table.add_column("largest\nmicro-batch", justify="right", no_wrap=True)
    table.add_column("largest\nmicro-batch" if width >= ROOMY else "largest", no_wrap=True)
    table.add_column("largest parts, GiB" if width >= ROOMY else "largest part, GiB", overflow="fold")
    most = max((one.largest for one in answers if isinstance(one, Prediction)), default=0) or 1
    first = find_first(answers)
    for one in sorted(answers, key=_rank):
        name = Text(f"{one.question.name} {TAKE}", style="bold") if one is first else Text(one.question.name)
        row: list[RenderableType] = [name, *(str(values[one.question.name]) for values in facts.values())]
        if isinstance(one, Unknown):
            table.add_row(*row, one.verdict)
            continue
        causes = sorted(one.peak.causes.items(), key=lambda cause: -cause[1])[: 2 if width >= ROOMY else 1]
        bar = Bar(most, 0, one.largest, width=24 if width >= ROOMY else 8, color=COLOURS[one.verdict])
        largest = (
            f"{BEYOND * (one.largest > one.counted_rows)}{one.largest}{'+' * (one.largest == MOST_ROWS)}"
        )
        told = ", ".join(f"{cause} {one.show(size / GIB)}" for cause, size in causes)
        verdict = Text(str(one.verdict), style=COLOURS[one.verdict])
        table.add_row(*row, verdict, one.show(one.needs_gib), largest, bar, told)
    return table


def _rank(one: Prediction | Unknown) -> tuple[int, float, float]:
    if isinstance(one, Unknown):
        return ORDER.index(one.verdict), 0, 0
    return ORDER.index(str(one.verdict)), -one.largest, one.needs_gib


def _list_notes(answers: Answers, device_gib: float) -> Iterator[tuple[str, Text]]:
    """Yield (label, line): changes, missing files, the origin of the numbers, and further output."""
    changes: dict[str, list[str]] = {}
    missing: dict[str, list[str]] = {}
    for one in answers:
        if isinstance(one, Unknown):
            missing.setdefault(one.reason, []).append(one.question.name)
        elif one.advice:
            changes.setdefault(one.advice, []).append(one.question.name)
    alone = len(answers) == 1  # its advice is in the verdict
    lines = iter(explain_lines(answers, device_gib))
    kinds = {
        "Change": [] if alone else [*_limit(changes)],
        "Missing": [*_limit(missing)],
        "Trust": [next(lines)],
        "Origin": [_say_common(answers), *lines],
        "All causes": ["--page FILE draws them, --json prints them"],
    }
    for label, sentences in kinds.items():
        for number, sentence in enumerate(sentences):
            yield "" if number else label, Text(sentence, style="dim" if label in ("Trust", "Origin") else "")


def _say_common(answers: Answers) -> str:
    ranks, rows = ({getattr(one.question, name) for one in answers} for name in ("ranks", "rows"))
    told = [f"{each} ranks" for each in ranks if len(ranks) == 1]
    told += [f"micro-batches of {each}" for each in rows if len(rows) == 1]
    beyond = any(isinstance(one, Prediction) and one.largest > one.counted_rows for one in answers)
    return ", ".join([*told, *([f"{BEYOND} marks an estimate"] if beyond else [])])


def _limit(groups: dict[str, list[str]]) -> Iterator[str]:
    for sentence, names in [*groups.items()][:MOST_LINES]:
        yield f"{', '.join(names)}: {sentence}"
    if len(groups) > MOST_LINES:
        yield f"{len(groups) - MOST_LINES} more: --json"
