"""May a reader believe the answer? One judgement, which pages, terminal, summary and MLflow print.

find_group     the runs that the answer is about
judge_trust    fair, fair with named doubts, or not comparable: with the reason, and what to do about each doubt
list_doubts    what weakens the times: the report's flags, then steps that are too uneven
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stratlab.compare.causes import BUSY_MACHINE, FEW_TIMED_STEPS, UNEQUAL_WARM_UP
from stratlab.compare.fairness import AS_SEARCH, COMPARABLE, FIELD, UNSHOWN
from stratlab.compare.run_rows import Rows, read_rows
from stratlab.compare.winners import LEAST_LEAD_PCT, ON_CPU
from stratlab.wording import format_number

Report = Mapping[str, Any]
FAIR, WITH_DOUBTS, APART = "yes", "yes, with doubts", "no"
"""The three outcomes."""
TIMES_APART = "memory and quality: yes; times: no"
"""A form of WITH_DOUBTS on a CPU that other work kept busy."""
NOT_KNOWN = "not known"
"""A form of APART without visible differences if some runs have only traces."""
UNSTEADY = 3.0
"""Times the median that one step in twenty takes or exceeds: above it other work was on the machine."""
MOST_FIELDS = 3
LONGEST = 24
"""Letters of a value."""


@dataclass(frozen=True)
class Doubt:
    """A weakness of the answer. `remedy`: its fix; `sentence`: both, with the numbers."""

    name: str
    remedy: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.name} ({self.remedy})"


@dataclass(frozen=True)
class Trust:
    """`outcome`: one of three. `number`: how many settings are equal or differ."""

    outcome: str
    number: str
    reason: str
    doubts: Sequence[Doubt] = ()
    times: bool = True
    """Whether the step times are comparable."""

    def say(self) -> str:
        """Return the reason, and each doubt with its fix."""
        return "; ".join([self.reason, *map(str, self.doubts)])

    @property
    def answer(self) -> str:
        if self.outcome == APART:
            return NOT_KNOWN if UNSHOWN in self.reason else APART
        return self.outcome if self.times else f"{TIMES_APART} (other work kept the machine busy)"


EQUAL = "give all runs equal values, or compare settings on purpose with --vary"
DISAGREE = "find out why their losses differ"
"""Conditions of a winner."""
FLAGS = {  # of the report -> its name, its fix, its meaning for the times
    FEW_TIMED_STEPS: (
        "few timed steps",
        "train longer",
        "Only a few steps are timed ({}), so a time can be chance: train longer before you trust one.",
    ),
    UNEQUAL_WARM_UP: (
        "unequal warm-up",
        "train longer",
        "Unequal warm-up ({} steps left out), so the times are of unequal stretches: train longer.",
    ),
    BUSY_MACHINE: (
        "busy machine",
        "run again on a quiet one",
        "Other work kept the machine busy ({} %), so times may be too long: run again on a quiet machine.",
    ),
}
NOT_COMPARED = (
    "busy machine",
    "run again on a quiet one",
    "Other work kept the machine busy ({} %), so the times are not comparable: run again on a quiet machine.",
)
ONE_PROCESS = (
    "Each run has one process, which shares and sends nothing: this compares only the overhead of strategies."
)
UNEVEN = (
    "Uneven steps: one in twenty takes several times the median ({} times): run again on a quiet machine."
)
REPEATED = (
    f"One repeat per configuration, so no confidence interval: differences below {LEAST_LEAD_PCT:g} % count as none, "
    "until a sweep sets repeats: 3."
)


def find_group(report: Report) -> tuple[Rows, Report | None]:
    """Return the runs that the answers are about, and the entry with their winners.

    They are all runs, or the largest group of comparable ones, of several the group with most ranks; None if no two
    are comparable.
    """
    rows = [row for row in read_rows(report) if row.is_compared]
    if report["fairness"]["verdict"] == COMPARABLE:
        return rows, report
    if not report["group_winners"]:
        return rows, None
    sizes = {row.run: row.world_size or 0 for row in rows}
    largest = max(
        report["group_winners"],
        key=lambda group: (len(group["runs"]), max(map(sizes.__getitem__, group["runs"]))),
    )
    return [row for row in rows if row.run in largest["runs"]], largest


def judge_trust(report: Report) -> Trust:
    """Judge the whole comparison; of several groups the doubt is that the rest differs."""
    return replace(_judge(report), times=report.get("times_comparable", True))


def _judge(report: Report) -> Trust:
    fairness, headline = report["fairness"], report["headline"]
    same = f"{len(fairness['same'])} settings equal"
    apart = [entry for entry in fairness["differences"] if entry["matters"] and not entry["varied"]]
    fields = _name_fields(apart)
    doubts = [*list_doubts(report), *_doubt_repeats(report, find_group(report)[0])]
    verdict = fairness["verdict"]
    if verdict == COMPARABLE:
        return _be_fair(same, _say_differing(report) + _say_losses(report), doubts)
    if verdict == AS_SEARCH:
        return _be_fair(same, fairness["reason"], doubts)
    if headline["verdict"].endswith(" scaling"):
        return _be_fair(same, f"only the number of processes differs ({headline['verdict']})", doubts)
    differ = f"{len(apart)} difference{'s' * (len(apart) != 1)} that matter{'s' * (len(apart) == 1)}"
    compared = [row for row in read_rows(report) if row.is_compared]
    if verdict != UNSHOWN and report["group_winners"]:
        most = max(len(group["runs"]) for group in report["group_winners"])
        rest = f"{len(compared) - most} others differ in {fields}"
        other = Doubt(rest, "judged apart", f"{rest}: each group has its own answer.")
        number, reason = f"{most} of {len(compared)} runs", f"only among {most} of {len(compared)} runs"
        return Trust(WITH_DOUBTS, number, reason, [other, *doubts])
    if verdict == UNSHOWN:
        return Trust(APART, differ if apart else same, f"{UNSHOWN}: {fairness['reason']}")
    reason = f"{fields}: {name_missing(report)}" if fields and len(compared) > 1 else headline["reason"]
    return Trust(APART, differ if apart else same, reason)


def name_missing(report: Report) -> str:
    """Return a change that would make the other runs comparable."""
    apart = {entry["field"] for entry in report["fairness"]["differences"] if entry["matters"]}
    return DISAGREE if FIELD in apart else EQUAL


def _be_fair(number: str, reason: str, doubts: Sequence[Doubt]) -> Trust:
    return Trust(WITH_DOUBTS if doubts else FAIR, number, reason, doubts)


def _say_differing(report: Report) -> str:
    """`only the strategy differs`."""
    compared = [row for row in read_rows(report) if row.is_compared]
    strategy = ["the strategy"] if len({row.strategy for row in compared}) > 1 else []
    differing = [*strategy, *report["fairness"]["ways"]]
    return (
        f"only {' and '.join(differing)} differ{'s' * (len(differing) == 1)}"
        if differing
        else "equal settings"
    )


def _say_losses(report: Report) -> str:
    apart = [pair["loss_difference_pct"] for pair in report["loss_agreement"]["pairs"] if pair["agrees"]]
    if not apart:
        return ""
    return f"; judged losses differ by {max(apart):.2g} % at most" if any(apart) else "; judged losses equal"


def _name_fields(apart: Sequence[Mapping[str, Any]]) -> str:
    """The first few; of a single one the values too."""
    ordered = sorted(apart, key=lambda entry: entry["field"].endswith("sha256") or "." in entry["field"])
    fields = [entry["field"] for entry in ordered[:MOST_FIELDS]]
    if len(ordered) == 1 and len(ordered[0]["values"]) <= MOST_FIELDS:
        values = [f"{run} {str(value)[:LONGEST]}" for run, value in ordered[0]["values"].items()]
        fields = [f"{fields[0]} ({', '.join(values)})"]
    fields += [f"{len(ordered) - MOST_FIELDS} more"] * (len(ordered) > MOST_FIELDS)
    return ", ".join(fields)


def list_doubts(report: Report) -> list[Doubt]:
    """Those that no reader may miss."""
    found = []
    for each in report.get("flags", []):
        values = ", ".join(f"{run} {format_number(value, 0)}" for run, value in each["values"].items())
        name, remedy, sentence = FLAGS[each["flag"]] if each["times_comparable"] else NOT_COMPARED
        found.append(Doubt(name, remedy, sentence.format(values)))
    if uneven := find_uneven(read_rows(report)):
        values = ", ".join(f"{run} {format_number(ratio, 0)}" for run, ratio in uneven.items())
        found.append(Doubt("uneven steps", "run again on a quiet machine", UNEVEN.format(values)))
    compared = [row for row in read_rows(report) if row.is_compared]
    if len({row.strategy for row in compared}) > 1 and {row.world_size for row in compared} == {1}:
        found.append(Doubt("one process each", "compare on several GPUs", ONE_PROCESS))
    return found


def find_uneven(rows: Rows) -> dict[str, float]:
    """Return run -> one step in twenty over the median, if it is large enough for another start to change the
    answer.
    """
    ratios = {
        row.run: row.step_time_ms_p95 / row.step_time_ms_p50
        for row in rows
        if row.is_compared and row.step_time_ms_p95 and row.step_time_ms_p50
    }
    return {run: ratio for run, ratio in ratios.items() if ratio >= UNSTEADY}


def _doubt_repeats(report: Report, rows: Rows) -> list[Doubt]:
    """Return the doubt of a single repeat, which weakens winners by time; on a CPU none is named by time."""
    repeats = Counter(row.configuration for row in rows)
    if ON_CPU in report["remarks"] or min(repeats.values(), default=0) != 1:
        return []
    return [Doubt("one repeat", "set repeats: 3", REPEATED)]
