"""What to do with the verdicts, in one sentence: what to take first and why, or what to change."""

from __future__ import annotations

from collections.abc import Sequence

from stratlab.predict.answering import Unknown
from stratlab.predict.device_memory import Verdict
from stratlab.predict.prediction import Prediction

WHY = {
    "single": "one GPU has nothing to send",
    "ddp": "nothing else that divides the data sends less",
    "zero1": "it sends no more than ddp and holds less",
    "zero2": "it sends less than what gathers the parameters too",
    "fsdp": "it sends as much as zero3, with less work on the host",
    "zero3": "it shares out all of the state",
    "hsdp": "it shares out all of the state, and gathers inside a group of ranks alone",
    "zeropp": "it shares out all of the state, and its backward gathers stay inside a node",
    "nd": "it divides the model itself (docs/llm.md has the layouts)",
}
"""Strategies in the order in which they are tried, by what they send (docs/strategies.md)."""


def conclude(answers: Sequence[Prediction | Unknown]) -> str:
    """The sentence; "" = nothing is known of anything."""
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
    needs = f"{nearest.needs_gib:.2f} of {nearest.device.gib:g} GiB"
    return f"in short: {who}{least} ({needs}). Change first: {nearest.advice}"


def _say_first(fitting: Sequence[Prediction], asked: int, known: int) -> str:
    order = list(WHY)

    def place(one: Prediction) -> int:
        strategy = one.file.strategy
        return order.index(strategy) if strategy in order else len(order)

    first = min(fitting, key=place)
    name, why = first.question.name, WHY.get(first.file.strategy, "")
    if asked == 1:
        return f"in short: {name} fits, with a micro-batch up to {first.say_largest()}"
    if len(fitting) == 1:
        of_known = "" if known == asked else f" of the {known} that are known"
        return f"in short: only {name}{of_known} fits, with a micro-batch up to {first.say_largest()}"
    names = ", ".join(one.question.name for one in fitting)
    reason = f": {why}" if why else ""
    said = f"in short: {names} fit. Take {name} first{reason}"
    if first.largest > 1:
        return f"{said}; compare it with the next one before a long run"
    return f"{said}. {_say_narrow(first, sorted(fitting, key=place))}"


def _say_narrow(first: Prediction, others: Sequence[Prediction]) -> str:
    """That the first one hardly fits, and who has room: sending little is not all that makes a step short."""
    needs = f"no micro-batch above 1 fits under it ({first.needs_gib:.2f} of {first.device.gib:g} GiB)"
    roomy = next((one for one in others if one.largest > 1), None)
    if roomy is None:
        return f"But {needs}, nor under another of them; compare it with the next one before a long run"
    return (
        f"But {needs}: {roomy.question.name} has room for {roomy.largest}, and more rows at once may win more than "
        "sending less; measure both before a long run"
    )
