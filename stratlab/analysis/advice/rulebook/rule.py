"""What a rule is: conditions on named values, and what to do when they hold. The rules themselves: all_rules.py."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["high", "medium", "low"]
Values = Mapping[str, Any]
"""Name -> number, text or None (not known)."""
Condition = tuple[str, str, Any]
"""Name of a value, operator, what it is compared with."""

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    "is": operator.eq,
    "is not": operator.ne,
    "in": lambda value, allowed: value in allowed,
}


@dataclass(frozen=True)
class Remedy:
    """What to change where `when` holds. `settings`: name -> value, both may hold {names of values}."""

    advice: str
    settings: Mapping[str, str] = field(default_factory=dict)
    when: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One way in which a rule fires.

    Args:
        id: R1 to R12. Of the entries with one id the first that fires gives the recommendation, the titles and
            numbers of the others that fire are added to it.
        when: all of them hold; a value that is not known holds nowhere.
        title: one sentence, {names of values} in it.
        lead: the value by which recommendations of one severity are sorted, the largest first.
        high_above: of `lead`; above it the severity is high. None = never.
        remedies: the first whose conditions hold is the advice.
        evidence: values that are shown, besides those of `when`.
        gpu_only: says nothing about a CPU.
        doubtful: lowers the severity of all others by one.
    """

    id: str
    when: tuple[Condition, ...]
    title: str
    lead: str
    severity: Severity
    remedies: tuple[Remedy, ...]
    high_above: float | None = None
    evidence: tuple[str, ...] = ()
    gpu_only: bool = False
    doubtful: bool = False


def holds(conditions: tuple[Condition, ...], values: Values) -> bool:
    """Whether all conditions hold; with a value that is None or absent none does."""
    return all(
        values.get(name) is not None and OPERATORS[sign](values[name], other)
        for name, sign, other in conditions
    )
