"""What to do with the verdicts, in one sentence: what to take first and why, or what to change."""

from __future__ import annotations

from collections.abc import Sequence

from stratlab.predict.answering import Unknown
from stratlab.predict.device_memory import Verdict
from stratlab.predict.prediction import Prediction
from stratlab.predict.runs_to_try import WHY

ORDER = {strategy: place for place, strategy in enumerate(WHY)}

NOT_ESTIMATED = "Time and cost are not estimated"


def conclude(answers: Sequence[Prediction | Unknown]) -> str:
    """The sentences; "" = nothing is known of anything."""
    known = [one for one in answers if isinstance(one, Prediction)]
    fitting = [one for one in known if one.verdict is Verdict.FITS]
    if fitting:
        return _say_first(fitting, len(answers), len(known))
    if not known:
        return ""
    nearest = min(known, key=lambda one: one.needs_gib)
    of_known = "" if len(known) == len(answers) else f" of the {len(known)} that are known"
    who = f"{nearest.question.name} {nearest.verdict}" if len(answers) == 1 else f"none{of_known} fits"
    least = "" if len(answers) == 1 else f"; {nearest.question.name} needs least"
    return f"in short: {who}{least} ({nearest.say_needs()}). Change first: {nearest.advice}. {NOT_ESTIMATED}"


def _say_first(fitting: Sequence[Prediction], asked: int, known: int) -> str:
    """Of those with room for more than one row the one that sends least; where there is none, what would make room."""
    ordered = sorted(fitting, key=lambda one: ORDER.get(one.file.strategy, len(ORDER)))
    roomy = [one for one in ordered if one.largest > 1]
    if asked == 1 or len(fitting) == 1:
        first = fitting[0]
        of_known = "" if known == asked else f" of the {known} that are known"
        only = "" if asked == 1 else "only "
        said = (
            f"in short: {only}{first.question.name}{of_known if only else ''} fits ({first.say_needs()}), with a "
            f"micro-batch up to {first.say_largest()}"
        )
    else:
        names = ", ".join(f"{one.question.name} ({one.say_needs()})" for one in fitting)
        said = f"in short: {names} fit"
    if not roomy:
        room = next((one.advice for one in ordered if one.advice), "nothing that was counted leaves room")
        return f"{said}. No micro-batch above 1 fits: {room}. {NOT_ESTIMATED}"
    first = roomy[0]
    if len(fitting) == 1 or asked == 1:
        return f"{said}. {NOT_ESTIMATED}"
    why = f": {WHY[first.file.strategy]}" if first.file.strategy in WHY else ""
    narrow = [one.question.name for one in ordered[: ordered.index(first)]]
    less = f"; {', '.join(narrow)} would send less, but no micro-batch above 1 fits there" if narrow else ""
    room = f"it has room for a micro-batch of {first.say_largest()}"
    return f"{said}. Take {first.question.name} first{why}, and {room}{less}. {NOT_ESTIMATED}"
