"""The facts of one run that the rules name, read from its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratlab.compare.judging.rules import RULES, Rule
from stratlab.run_directory.record import RunRecord

UNKNOWN = "unknown"
ADDING = ("tp", "cp")
"""Axes on which activations are added up, in the type of the products."""
REDUCED = {"bf16": "bfloat16"}
"""The knob reduce_dtype -> the type of the gradients; with any other value it is float32."""


def read_fact(run: RunRecord, rule: Rule) -> Any:
    """The fact of one run, or "unknown" where the run does not tell it."""
    if rule.task not in ("", read_task(run)):
        return f"not of {read_task(run)}"
    value = _read(run, rule)
    if value == [] and rule.none:
        return rule.none
    if _empty(value) and rule.instead:
        other = next(r for r in RULES if r.field == rule.instead)
        value = None if _empty(_read(run, other)) else f"{other.field} {_read(run, other)}"
    if rule.path[:-1] == ("resolved", "knobs") and not isinstance(
        read_path(run.config, rule.path[:-1]), dict
    ):
        return "not recorded"
    chosen = rule.path[:1] == ("config",)  # an empty text is a fact where the user chose it
    if value is None or (_empty(value) and not chosen):
        return UNKNOWN if rule.absent == "" else rule.absent
    return value


def read_task(run: RunRecord) -> str:
    """Of what kind it is, as the rules name it."""
    return "text" if run.is_text else "image"


def _read(run: RunRecord, rule: Rule) -> Any:
    if rule.source == "attempts":
        return sum(line.get("event") == "started" for line in run.attempts) or None
    if rule.source == "tuning":
        return run.tuning
    if rule.source == "ranks":
        world_size = run.config.get("resolved", {}).get("world_size")
        found = [read_path(rank, rule.path) for rank in run.ranks]
        if len(found) != world_size or None in found:
            return None
        if all(isinstance(value, list) for value in found):
            every = sorted({item for value in found for item in value})  # a rank may hold nothing of a kind
            return _divide_types(run, every, rule.added) if rule.added else every
        distinct = sorted(set(map(str, found)))
        return distinct[0] if len(distinct) == 1 else distinct
    sources = {"config": run.config, "summary": run.summary, "place": run.place}
    return read_path(sources[rule.source], rule.path)


def _divide_types(run: RunRecord, types: Sequence[str], added: str) -> list[str]:
    """Those of the gradients, or of the activations alone: ranks record them together.

    Of gradients that no rank has to add up the type is the one in which they would be.
    """
    axes = read_path(run.config, ("resolved", "axes")) or {}
    if all((axes.get(axis) or 1) == 1 for axis in ADDING):
        return list(types) if added == "gradients" else []
    of_gradients = REDUCED.get(str(read_path(run.config, ("resolved", "knobs", "reduce_dtype"))), "float32")
    products = {name for rank in run.ranks for name in read_path(rank, ("dtypes", "products")) or []}
    of_activations = [name for name in types if name in products - {of_gradients}]
    if added == "activations":
        return of_activations
    return [name for name in types if name not in of_activations] or [of_gradients]


def read_path(value: Any, path: Sequence[str]) -> Any:
    """What lies below these keys; None where there is nothing."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _empty(value: Any) -> bool:
    return value is None or value in ("", [], {})
