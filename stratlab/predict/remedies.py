"""What to change first where a run will not fit: a run that fits, with what it takes, or else what may help."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from stratlab.predict.device_memory import Verdict
from stratlab.predict.prediction import Prediction
from stratlab.predict.question import Question
from stratlab.predict.runs_to_try import (
    Settings,
    change_question,
    explain_no_change,
    list_allowed_changes,
    list_candidates,
    list_light_changes,
)
from stratlab.predict.setting_text import as_text
from stratlab.tables.settings import SETTINGS
from stratlab.tables.strategies import STRATEGIES, find_other

KEPT = ("activations", "masks", "low-precision copies")
LOSS = ("logits and loss",)
STATE = ("parameters", "master copies", "gradients", "gradient buckets", "optimizer state", "teacher")
OF_KIND = {"kept": "activation_checkpointing", "loss": "loss_chunk_tokens"}
REASONS = {
    "kept": "activations are most of it, and are computed again",
    "loss": "logits are most of it",
    "state": "weights, gradients and optimizer state are most of it",
}
NOT_COUNTED = "not counted, --count says whether it fits"
Look = Callable[[Question], Prediction | None]


def advise(one: Prediction, look: Look, allowed: Sequence[str] = ()) -> str:
    """One sentence, with the settings to give.

    Args:
        look: the prediction of another question, as far as files know; None = they do not, or no run can start so.
        allowed: of `runs_to_try.ALLOWED`.
    """
    if one.device.judge(0) is not Verdict.FITS:
        return (
            f"no setting makes it fit: CUDA's context and communicators take {one.device.fixed_gib:.2f} GiB, whatever "
            "the model"
        )
    if rows := _find_rows(one):
        return f"{_name_changes(one.question, one.question, rows)} fits at the same global batch, {one.say_needs(rows)}"
    for question in list_candidates(one.question, one.file.settings, allowed):
        found = look(question)
        rows = _find_rows(found) if found else 0
        if found and rows:
            return f"{_name_changes(one.question, question, rows)} fits, {found.say_needs(rows)}"
    return _guess(one, look, allowed)


def advise_room(one: Prediction, look: Look, allowed: Sequence[str] = ()) -> str:
    """What leaves room where the run fits with one row at a time alone; "" = nothing that is known."""
    for question in list_candidates(one.question, one.file.settings, allowed):
        found = look(question)
        if found and found.verdict is Verdict.FITS and found.largest > 1:
            changes = _name_changes(one.question, question, question.rows)
            return (
                f"{changes} leaves room ({found.say_needs()}), for a micro-batch up to {found.say_largest()}"
            )
    return ""


def find_idle(one: Prediction, look: Look, allowed: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, reason) for each of `allowed` that the advice on a run does not propose."""
    settings = one.file.settings
    for name in allowed:
        changes = [*list_allowed_changes(one.question, settings, [name])]
        if any(f"{key}={text}" in one.advice for change in changes for key, text in change.items()):
            continue
        runs = [
            change_question(one.question, {**light, **change})
            for light in ({}, *list_light_changes(settings))
            for change in changes
        ]
        found = [known for known in map(look, runs) if known]
        fits = one.verdict is Verdict.FITS
        if not runs:
            yield name, explain_no_change(name, settings)
        elif fits and one.largest > 1:
            yield name, "no advice is needed where a run fits with room"
        elif any(known.largest > 1 if fits else _find_rows(known) for known in found):
            yield name, "a run fits that changes less"
        elif found:
            yield name, "no run with it does better"
        else:
            place, count = ("run.config.", "") if one.question.whole else ("", " --count")
            given = " ".join(f"--set {place}{key}={text}" for key, text in changes[0].items())
            yield name, f"it was not counted; {given}{count} says whether it fits"


def _find_rows(found: Prediction) -> int:
    """The micro-batch that fits: the run's own, or a smaller one of the same step; 0 = none."""
    if found.verdict is Verdict.FITS:
        return found.question.rows
    share = found.file.share(found.question.ranks)
    return found.question.find_smaller(found.largest, share) if found.largest else 0


def _name_changes(before: Question, after: Question, rows: int) -> str:
    """`8 GPUs with strategy=fsdp, activation_checkpointing=blocks without offload`: all that `--set` is to change.

    Of charts a setting has its place, and null takes one back.
    """
    names = ["strategy", *after.settings]  # which the other settings are of
    changed = {
        name: after.settings[name] for name in names if after.settings.get(name) != before.settings.get(name)
    }
    if rows != before.rows:
        changed["micro_batch_size"] = str(rows)
    gone = [
        name
        for name in before.settings.keys() - after.settings.keys()
        if (before.whole or name in before.typed)
        and before.settings[name] != as_text(SETTINGS[name]["default"])
    ]
    if before.whole:
        changed = {
            f"run.config.{name}": text for name, text in {**changed, **dict.fromkeys(gone, "null")}.items()
        }
        gone = []
    more = [f"{after.ranks} GPUs"] if after.ranks != before.ranks else []
    told = ", ".join(f"{name}={text}" for name, text in changed.items())
    without = f" without {', '.join(sorted(gone))}" if gone else ""
    return " with ".join([*more, *filter(None, [told])]) + without


def _guess(one: Prediction, look: Look, allowed: Sequence[str]) -> str:
    """What may help, by what holds most; never what is known not to fit."""
    settings = one.file.settings
    held = one.peak if one.largest else one.smallest  # fewer rows alone are not enough
    sizes = {
        kind: sum(held.causes.get(cause, 0) for cause in causes)
        for kind, causes in (("kept", KEPT), ("loss", LOSS), ("state", STATE))
    }
    if one.device.judge(sizes["state"]) is not Verdict.FITS:
        sizes = {"state": sizes["state"]}  # which no other remedy touches
    alone = [change for change in list_light_changes(settings) if len(change) == 1]
    for kind in sorted(sizes, key=lambda name: -sizes[name]):
        if kind == "state":
            tried = [*list_allowed_changes(one.question, settings, allowed), *_list_strategies(one)]
        else:
            tried = [change for change in alone if change.keys() == {OF_KIND[kind]}]
        for change in tried:
            changed = change_question(one.question, change)
            if look(changed) is None:
                named = _name_changes(one.question, changed, one.question.rows)
                return f"{named}: {REASONS[kind]}; {NOT_COUNTED}"
    return "more GPUs, or a smaller model"


def _list_strategies(one: Prediction) -> Iterator[Settings]:
    """Those that hold less of the state, the nearest one first."""
    mine = str(one.file.settings["strategy"])
    steps = [mine]
    while (less := find_other(steps[-1], "holds_less")) and less not in steps:
        steps.append(less)
    divided = set(STRATEGIES.get(mine, {}).get("holds", {}).get("divided", ()))
    more = [name for name, row in STRATEGIES.items() if divided < {*row["holds"]["divided"]} and name != "nd"]
    for name in dict.fromkeys((*steps[1:], *more)):
        if one.question.ranks > 1:
            yield {"strategy": name}
