"""Experiments that may be ranks of one run, for nothing tells the rank of their traces."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stratlab.traces.discover import Finding
from stratlab.traces.experiments import Experiment

NUMBER = re.compile(r"\d+")
WORD_BEFORE = re.compile(r"[A-Za-z]+[_.-]?$")
EXAMPLE = r"gpu(\d+)"


def find_hints(experiments: Sequence[Experiment]) -> list[str]:
    """A sentence for each folder, and for folders whose names differ in numbers alone, that hold several traces without
    a rank. Each experiment gets it as a finding too."""
    alone = {file: each for each in experiments if (file := _find_alone(each))}
    groups: dict[tuple[str, ...], list[str]] = {}
    for shown in alone:
        groups.setdefault(("folder", shown.rpartition("/")[0]), []).append(shown)
    single = {names[0] for names in groups.values() if len(names) == 1}
    for shown in sorted(single):
        groups.setdefault(("numbers", NUMBER.sub("#", shown)), []).append(shown)
    hints = []
    for names in groups.values():
        if len(names) > 1:
            hints.append(_say(names))
            for name in names:
                alone[name].findings.append(Finding("noted", hints[-1], name))
    return hints


def _find_alone(experiment: Experiment) -> str:
    """The file of an experiment with nothing but one trace that names no rank."""
    traces = list(experiment.traces.values())
    is_alone = len(traces) == 1 and traces[0].rank is None and traces[0].identity.world_size != 1
    return traces[0].file.shown if is_alone else ""


def _say(names: Sequence[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return (
        f"{', '.join(names[:2])}{more}: no rank is told, so each is an experiment of its own [SL-rank-hint]; if they "
        "are the ranks of one run, write the rank into the names (rank0, rank1, ...) or say where it stands: "
        f'--rank-pattern "{_find_pattern(names)}"'
    )


def _find_pattern(names: Sequence[str]) -> str:
    """For the number in them that counts from 0, with the word before it."""
    found = [list(NUMBER.finditer(name)) for name in names]
    for numbers in zip(*found, strict=False):
        counts = {int(number[0]) for number in numbers} == set(range(len(names)))
        before = (WORD_BEFORE.search(number.string[: number.start()]) for number in numbers)
        words = {word[0] if word else "" for word in before}
        if not counts or len(words) > 1 or not (word := words.pop()):
            continue
        for start in ("", "/"):  # a folder may begin alike
            pattern = start + word.replace(".", r"\.") + r"(\d+)"
            if all(_finds(pattern, number) for number in numbers):
                return pattern
    return EXAMPLE


def _finds(pattern: str, number: re.Match[str]) -> bool:
    """Whether it finds this number in its name, and none before."""
    found = re.search(pattern, number.string)
    return found is not None and found.start(1) == number.start()
