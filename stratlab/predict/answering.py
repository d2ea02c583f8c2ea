"""Questions are answered from files, or by counting, or not at all: then with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stratlab.predict.counting import CountRefused, NotCounted, count_operations
from stratlab.predict.device_memory import Verdict
from stratlab.predict.operations_file import OperationsFile, find_operations
from stratlab.predict.prediction import Prediction, predict
from stratlab.predict.question import Question
from stratlab.predict.remedies import advise
from stratlab.tables.size_rules import find_size_refusal
from stratlab.tables.strategies import STRATEGIES
from stratlab.user_error import UserError

NOT_KNOWN, CANNOT_START = "not known", "cannot start"


@dataclass(frozen=True)
class Unknown:
    """A question without an answer, and why. `countable`: as far as is known, a count would answer it."""

    question: Question
    reason: str
    verdict: str = NOT_KNOWN
    countable: bool = True


def answer(
    questions: Sequence[Question],
    files: Sequence[OperationsFile],
    device_gib: float,
    cache: Path | None,
) -> list[Prediction | Unknown]:
    """In the order of the questions.

    Args:
        cache: where what is counted now is kept; None = nothing is counted.

    Raises:
        UserError: the trainer refuses every one of them.
    """
    known = list(files)
    found = [_answer(question, known, device_gib, cache) for question in questions]
    refused = [one for one in found if isinstance(one, Unknown) and one.verdict == CANNOT_START]
    if refused and len(refused) == len(found):
        alike: dict[str, list[str]] = {}
        for one in refused:
            alike.setdefault(one.reason, []).append(one.question.name)
        raise UserError("\n".join(f"{', '.join(names)}: {reason}" for reason, names in alike.items()))
    return [complete(one, known) if isinstance(one, Prediction) else one for one in found]


def complete(one: Prediction, files: Sequence[OperationsFile]) -> Prediction:
    """With what to change first, where it does not fit; of other strategies as far as files know them."""
    if one.verdict is Verdict.FITS:
        return one
    others = {}
    for strategy in STRATEGIES.keys() - {one.file.strategy}:
        other = replace(one.question, settings={**one.question.settings, "strategy": strategy})
        if file := find_operations(files, other):
            others[strategy] = predict(other, file, one.device.gib).largest
    return replace(one, advice=advise(one, others))


def _answer(
    question: Question, files: list[OperationsFile], device_gib: float, cache: Path | None
) -> Prediction | Unknown:
    """A file that is counted for it joins `files`."""
    if refusal := find_size_refusal(question.settings):
        return Unknown(question, refusal, CANNOT_START)
    file = find_operations(files, question)
    if file or question.settings.get("strategy") != "nd":  # whose layout nobody knows without a file
        share = file.share(question.ranks) if file else question.ranks
        if refusal := question.find_refusal(share):
            return Unknown(question, refusal, CANNOT_START)
    if file is None and cache is not None:
        try:
            file = count_operations(question, cache)
        except NotCounted as reason:
            return Unknown(question, str(reason), countable=not isinstance(reason, CountRefused))
        files.append(file)
    if file is None:
        return Unknown(question, _explain(question, files))
    return predict(question, file, device_gib)


def _explain(question: Question, files: Sequence[OperationsFile]) -> str:
    """What the nearest file of the same model and strategy lacks."""
    mine = [file for file in files if file.model == question.settings.get("model")]
    alike = [file.misses(question) for file in mine if file.strategy == question.settings.get("strategy")]
    if alike:
        return f"the nearest file has {', '.join(sorted(alike, key=len)[0])}"
    others = ", ".join(dict.fromkeys(file.strategy for file in mine))
    return (
        f"no operations file of this model and strategy{f' (there are some of {others})' if others else ''}"
    )
