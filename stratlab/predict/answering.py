"""Questions are answered from files, or by counting, or not at all: then with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stratlab.predict.counting import NotCounted, count_operations
from stratlab.predict.operations_file import OperationsFile, find_operations
from stratlab.predict.prediction import Prediction, Question, predict


@dataclass(frozen=True)
class Unknown:
    """A question without an answer, and why."""

    question: Question
    reason: str


def answer(
    questions: Sequence[Question],
    files: Sequence[OperationsFile],
    device_gib: float,
    cache: Path | None,
) -> list[Prediction | Unknown]:
    """In the order of the questions.

    Args:
        cache: where what is counted now is kept; None = nothing is counted.
    """
    found: list[Prediction | Unknown] = []
    for question in questions:
        file = _find(question, files)
        if file is None and cache is not None:
            try:
                file = count_operations(question, cache)
            except NotCounted as refusal:
                found.append(Unknown(question, str(refusal)))
                continue
        if file is None:
            found.append(Unknown(question, _explain(question, files)))
        else:
            found.append(predict(question, file, device_gib))
    return found


def _find(question: Question, files: Sequence[OperationsFile]) -> OperationsFile | None:
    return find_operations(
        files,
        question.settings,
        question.ranks,
        question.accumulates,
        question.whole,
        _told_per_node(question),
    )


def _told_per_node(question: Question) -> int:
    """0 where only a number of GPUs was given."""
    return question.per_node if question.whole else 0


def _explain(question: Question, files: Sequence[OperationsFile]) -> str:
    """What the nearest file of the same model and strategy lacks."""
    alike: list[list[str]] = [
        file.misses(
            question.settings, question.ranks, question.accumulates, question.whole, _told_per_node(question)
        )
        for file in files
        if file.model == question.settings.get("model") and file.strategy == question.settings.get("strategy")
    ]
    if not alike:
        return "no operations file of this model and strategy"
    return f"the nearest file has {', '.join(sorted(alike, key=len)[0])}"
