"""The answers of a comparison for a reader in a hurry: four answers with a number each, and a few sentences.

name_answers   the fastest run, the least memory, the best learner, and whether the comparison is fair.
say_answer     the answer in up to three sentences, or the facts missing for one.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.compare.run_rows import Rows, read_rows
from stratlab.compare.search_ranking import choose_goal, find_difference_noise, pool_seeds, say_search
from stratlab.compare.trust import APART, WITH_DOUBTS, find_group, judge_trust, name_missing
from stratlab.compare.winners import LEAST_LEAD_PCT, NOT_RECORDED, ON_CPU, Winner, choose_memory, read_winners
from stratlab.run_directory.outcome import TRACED
from stratlab.run_directory.record import RunRecord
from stratlab.wording import capitalize, fit_digits, fit_unit

Report = Mapping[str, Any]
MOST_NAMES = 4
MOST_TIED = 2
NOT_NAMED = "not named"
PARTS = {  # kind -> its number in a row, its words
    "parameters": ("parameter_memory_gib", "parameters"),
    "gradients": ("gradient_memory_gib", "gradients"),
    "optimizer": ("optimizer_memory_gib", "optimizer state"),
}
LESS = 0.98
"""Share of a size: a larger one is none smaller."""
AS_TIMES = 1.1
"""As long: worth a word if no run is named."""


@dataclass(frozen=True)
class Answer:
    """The answer to one question. `run`: the named run; "" = none, and `why` gives the reason."""

    question: str
    answer: str
    number: str
    why: str
    run: str = ""
    cause: str = ""
    """Of the number: one line."""
    doubtful: bool = False

    @property
    def open(self) -> bool:
        """Whether no run is named."""
        return not self.run


def name_answers(report: Report, runs: Sequence[RunRecord] = ()) -> list[Answer]:
    """Return the answers that have a number."""
    rows, judged = find_group(report)
    if len(rows) < 2 or any(row.is_foreign for row in rows):
        return [_judge_fairness(report)] if len(rows) > 1 else []
    winners = {winner.metric.key: winner for winner in read_winners(judged or report)}
    memory = choose_memory(rows)
    found = [
        _name_fastest(rows, winners["samples_per_s"]),
        _name_leanest(rows, winners[memory], memory, report["sharding"]),
        _name_best(rows, runs) if judged else None,
        _judge_fairness(report),
    ]
    return [answer for answer in found if answer]


def say_answer(report: Report, runs: Sequence[RunRecord] = ()) -> str:
    """Return the answer, or the facts missing for one; and the lost runs."""
    headline, rows = report["headline"], read_rows(report)
    compared, judged = find_group(report)
    lost = [f"{row.run} {row.status}" for row in rows if not row.is_compared and row.status != "finished"]
    rest = f"; {_list(lost)}" if lost else ""
    if report["search"]:
        return f"{capitalize(say_search(report['search'])[0])}{rest}."
    grown = headline["verdict"].endswith(" scaling")
    if grown and not judged:
        return f"{capitalize(headline['reason'])}{rest}."
    if len(compared) < 2:
        return f"Nothing to compare: {headline['reason']}."
    if any(row.is_foreign for row in compared):
        return f"No winner: {headline['reason']}{rest}."
    if not judged:
        return f"No winner: {headline['reason']}; {name_missing(report)}{rest}."
    fast, lean, *others = name_answers(report, runs)
    said = [
        f"{fast.run} is the fastest{_number(fast)}" if fast.run else _say_none(fast, "is the fastest"),
        f"{lean.run} {'need' if ' and ' in lean.run else 'needs'} the least memory{_number(lean)}"
        if lean.run
        else _say_none(lean, "needs the least memory"),
    ]
    for best in others[:-1]:
        learns = f"{best.run} learns best" if best.run else "All learn alike"
        said.append(learns + _number(best))
    if judged is report:
        return f"{'. '.join(said)}{rest}."
    if grown:
        said = [said[0] if fast.run else said[1], headline["reason"]]
    among = _list([*dict.fromkeys(row.configuration for row in compared)])
    first = said[0].replace("No run", "no run", 1)
    return f"Among {among}, {'. '.join([first, *said[1:]])}{rest}."


def _say_none(answer: Answer, question: str) -> str:
    """Return `No run is the fastest: CPU times are not ranked`, or `single or ddp is the fastest: less than ...`."""
    return f"{'No run' if answer.answer == NOT_NAMED else answer.answer} {question}: {answer.why}"


def _number(answer: Answer) -> str:
    return f" ({', '.join(filter(None, (answer.number, answer.why)))})"


def _list(names: Sequence[str], word: str = "and") -> str:
    shown = [*names[:MOST_NAMES]] + [f"{len(names) - MOST_NAMES} more"] * (len(names) > MOST_NAMES)
    return f" {word} ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def is_foreign(report: Report) -> bool:
    """Return whether traces are the only source about its runs."""
    return all(row["status"] == TRACED for row in report["runs"])


def _rank(rows: Rows, key: str, sign: int) -> list[tuple[str, float]]:
    """Name and median of each configuration, best first."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if getattr(row, key) is not None:
            values.setdefault(row.configuration, []).append(getattr(row, key))
    ranked = [(label, statistics.median(each)) for label, each in values.items()]
    return sorted(ranked, key=lambda entry: sign * entry[1])


def _say_spread(rows: Rows, name: str, key: str) -> str:
    """`; median of 3 repeats, 998 to 1,004`; "" of one run, and of equal values."""
    values = [getattr(row, key) for row in rows if row.configuration == name]
    if min(values) == max(values):
        return ""
    return f"; median of {len(values)} repeats, {min(values):,.0f} to {max(values):,.0f}"


def _name_fastest(rows: Rows, winner: Winner) -> Answer:
    ranked = _rank(rows, "samples_per_s", -1)
    if not ranked:
        return Answer("Fastest", NOT_NAMED, "no step timed", "not recorded")
    steps = [row.step_time_ms_p50 for row in rows if row.step_time_ms_p50]
    if winner.run and len(ranked) > 1:
        (best, speed), (second, other) = ranked[:2]
        key = "tokens_per_s" if any(row.task == "text" for row in rows) else "samples_per_s"
        speed = dict(_rank(rows, key, -1)).get(best, speed)
        return Answer(
            "Fastest",
            best,
            f"{speed:,.0f} {key.partition('_')[0]}/s",
            f"{100 * (ranked[0][1] / other - 1):.0f} % more than {second}{_say_spread(rows, best, key)}",
            best,
        )
    low, high = min(steps), max(steps)
    digits = fit_digits([high])
    span = " to ".join(dict.fromkeys(f"{ms:,.{digits}f}" for ms in (low, high)))
    none, why = _name_none(winner, ranked)
    times = ranked[0][1] / ranked[-1][1]
    if winner.reason != ON_CPU and len(ranked) > 2 and times >= AS_TIMES:
        why += f"; {ranked[-1][0]} takes {times:.2g} times as long"
    return Answer("Fastest", none, f"{span} ms a step", why)


def _name_leanest(rows: Rows, winner: Winner, key: str, sharding: Sequence[Report]) -> Answer:
    ranked = _rank(rows, key, 1)
    question = "Least memory per rank" if key.startswith("peak") else "Least memory for the state per rank"
    if not ranked:
        return Answer(question, NOT_NAMED, "not recorded", "not recorded")
    factor, unit = fit_unit(size for _, size in ranked)
    (best, size), (last, most) = ranked[0], ranked[-1]
    if winner.run and len(ranked) > 1:
        second, other = ranked[1]
        less = f"{100 * (1 - size / other):.0f} % less than {second}"
        if last != second:
            less += f", {100 * (1 - size / most):.0f} % less than {last}"
        cause = _explain_least(best, second, rows, sharding)
        return Answer(question, best, f"{size * factor:.3g} {unit}", less, best, cause)
    if " are equal: " in winner.reason and most > size:
        tied = [label for label, each in ranked if each == size]
        less = f"{100 * (1 - size / most):.0f} % less than {last}"
        causes = dict.fromkeys(_explain_least(label, last, rows, sharding) for label in tied[:MOST_TIED])
        return Answer(
            question, _list(tied), f"{size * factor:.3g} {unit}", less, _list(tied), "; ".join(causes)
        )
    span = " to ".join(dict.fromkeys(f"{each * factor:.3g}" for each in (size, most)))
    none, why = _name_none(winner, ranked)
    return Answer(question, none, f"{span} {unit}", why)


def _explain_least(best: str, second: str, rows: Rows, sharding: Sequence[Report]) -> str:
    """Return the strategy's shared parts as measured, else the parts of the state that shrank against `second`."""
    mine, other = (next(row for row in rows if row.configuration == name) for name in (best, second))
    entry: Report = next((each for each in sharding if each["run"] in (mine.run, best)), {})
    shared = [PARTS[e["kind"]][1] for e in entry.get("kinds", []) if e["held_gib"] < LESS * e["state_gib"]]
    if shared and entry["divided_by"] > 1:
        return f"{entry['strategy']} shares {_list(shared)} over {entry['divided_by']} ranks"
    parts = {words: [getattr(row, key) for row in (mine, other)] for key, words in PARTS.values()}
    known = {
        words: sizes for words, sizes in parts.items() if None not in sizes and sizes[0] < LESS * sizes[1]
    }
    if not known:
        whole = all(None not in sizes for sizes in parts.values())
        return "smaller: activations and buffers, not the state" if whole else "its parts are not recorded"
    factor, unit = fit_unit(size for sizes in known.values() for size in sizes)
    told = [f"{words} {a * factor:.3g} instead of {b * factor:.3g} {unit}" for words, (a, b) in known.items()]
    return f"smaller: {', '.join(told)}"


def _name_none(winner: Winner, ranked: Sequence[tuple[str, float]]) -> tuple[str, str]:
    """Return (the runs that are too near each other, or `not named`; why no run is named)."""
    if winner.reason == ON_CPU:
        return NOT_NAMED, "CPU times are not ranked"
    near = "equal" if " are equal: " in winner.reason else winner.reason.rpartition(": ")[2]
    if ": " not in winner.reason or winner.reason.startswith(NOT_RECORDED) or len(ranked) < 2:
        return NOT_NAMED, winner.reason
    best, second = ranked[0][1], ranked[1][1]
    apart = max(LEAST_LEAD_PCT / 100, abs(second / best - 1)) if best else 0.0
    names = [name for name, value in ranked if abs(value - best) <= apart * abs(best)]
    return _list(names, "or"), near


def _name_best(rows: Rows, runs: Sequence[RunRecord]) -> Answer | None:
    """Return the best run by its learning; None if the difference may be chance."""
    goal = choose_goal(rows) if all(row.task for row in rows) else None
    if goal is None:
        return None
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row.configuration, []).append(getattr(row, goal.key))
    ranked = sorted(groups, key=lambda label: statistics.fmean(groups[label]) * (-1 if goal.highest else 1))
    points = [
        {"value": statistics.fmean(groups[label]), "seeds": len(groups[label]), "same_seed": 0.0}
        for label in ranked
    ]
    question, digits = "Best quality", 2 if goal.unit == "%" else 4
    first, last = points[0]["value"], points[-1]["value"]
    shown = list(dict.fromkeys(f"{value:.{digits}f}" for value in (first, last)))
    number = f"{' to '.join(shown)} {goal.unit}".strip()
    if len(points) < 2:
        return None
    spread, degrees = pool_seeds([*groups.values()])
    members = [run for run in runs if run.name in {row.run for row in rows}]
    noise, _ = find_difference_noise(points[0], points[1], goal, spread, degrees, members)
    lead = abs(first - points[1]["value"])
    if lead > noise:
        why = f"{goal.name}, {lead:.2g} ahead of {ranked[1]}"
        return Answer(question, ranked[0], number, why, ranked[0])
    if len(shown) == 1:
        return Answer(question, "all alike", number, goal.name)
    why = f"{goal.name}; differences up to {noise:.2g} may be chance"
    return Answer(question, "no difference", number, why)


def _judge_fairness(report: Report) -> Answer:
    trust = judge_trust(report)
    named = "" if trust.outcome == APART else trust.outcome
    doubtful = trust.outcome == WITH_DOUBTS
    return Answer("Fair?", trust.answer, trust.number, trust.say(), named, doubtful=doubtful)
