"""Advise on a run that will not fit: a run that fits, with its need, or else what may help.

remedies has the runs that are tried, `Look` answers them. A run is proposed only if its answer is known to fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from stratlab.predict import Prediction
from stratlab.predict.remedies import (
    DEFAULTS,
    TIMES,
    WHY,
    change_question,
    explain_no_change,
    list_allowed_changes,
    list_candidates,
    list_light_changes,
    list_nearest,
    place_ranks,
)
from stratlab.run_settings import SETTINGS
from stratlab_spec.memory.prediction import GATE, STATE, Device, Verdict
from stratlab_spec.memory.profiles import GIB, Question
from stratlab_spec.memory.simulated import Simulated
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.models.model_specs import has_batch_norm
from stratlab_spec.settings.wording import as_text

NOT_KNOWN, CANNOT_START = "not known", "cannot start"
"""Verdicts without a number."""
Look = Callable[[Question], Prediction | str]
"""Return the prediction of another question, or one of these verdicts."""
ORDER = {strategy: place for place, strategy in enumerate(WHY)}
KEPT = ("activations", "masks", "low-precision copies")
LOSS = ("logits and loss",)
OF_KIND = {"kept": "activation_checkpointing", "loss": "loss_chunk_tokens"}
REASONS = {
    "kept": "activations are most of it, and are computed again",
    "loss": "logits are most of it",
    "state": "weights, gradients and optimizer state are most of it",
}
NOT_COUNTED = "not counted, --count shows whether it fits"
COSTLY = ("lora_rank", "offload")
"""Settings that remedies change only where the user allows it."""
NEEDS_MORE = 1.02
"""Times as much memory on more GPUs, by more than communicators."""
MOST_FEWEST = 1024
"""GPUs up to which the smallest number is looked for."""


def advise(one: Prediction, look: Look, allowed: Sequence[str] = ()) -> Prediction:
    """Return the run with a sentence: settings to give that are known to fit, or else what may help.

    Args:
        allowed: of remedies.ALLOWED.
    """
    if rows := _find_rows(one):
        return _propose(one, one.with_rows(rows))
    tried, ranks = [], one.question.ranks
    never_fits = partial(_never_fits, gpus=max(TIMES) * ranks, look=look, experts=_count_experts(one))
    alone = Device(one.device.gib, 1).judge(0) is not Verdict.FITS  # NCCL and CUDA's context leave no room
    for question in list_candidates(one.question, one.file.settings, allowed):
        if question.ranks > ranks and (alone or never_fits(question)):
            continue
        if isinstance(found := look(question), Prediction):
            if rows := _find_rows(found):
                return _propose(one, found.with_rows(rows))
            tried.append(found)
    return replace(one, advice=_guess(one, look, allowed) or _explain_none(one, look, tried))


def _never_fits(asked: Question, gpus: int, look: Look, experts: int) -> bool:
    """Return whether a run does not fit on so many GPUs, which are more; experts may take more there than on fewer."""
    found = look(place_ranks(asked, gpus))
    return not experts and isinstance(found, Prediction) and not _find_rows(found)


def _propose(one: Prediction, found: Prediction) -> Prediction:
    return replace(one, advice=say_remedy(one.question, found), remedy=found)


def say_remedy(asked: Question, found: Prediction) -> str:
    """Return `strategy=fsdp, activation_checkpointing=blocks fits, 18.21 of 24 GiB`, with all that comes with it."""
    after, batch = found.question, ""
    only_rows = {**asked.settings, "micro_batch_size": ""} == {**after.settings, "micro_batch_size": ""}
    if after.rows != asked.rows and asked.ranks == after.ranks:
        if asked.global_batch:
            batch = " at the same global batch" if only_rows else ""
        elif isinstance(found.file, Simulated):
            rows = found.file.micro_batches * found.file.share(after.ranks) * after.rows
            batch = f" in steps of {rows} samples"
    notes = [f"{_name_changes(asked, after)} fits{batch}, {found.say_needs()}"]
    if after.rows != asked.rows and isinstance(found.file, Simulated) and has_batch_norm(found.file.config):
        notes.append("with batch norm it is another training")
    if found.host.total:
        notes.append(f"each rank needs at least {found.host.total / GIB:.2f} GiB of host memory")
    return "; ".join(notes)


def advise_room(one: Prediction, look: Look, allowed: Sequence[str] = ()) -> str:
    """Return changes that leave room if a run fits with only one row at a time; "" if none is known."""
    for question in list_candidates(one.question, one.file.settings, allowed):
        found = look(question)
        if isinstance(found, Prediction) and found.verdict is Verdict.FITS and found.largest > 1:
            changes = _name_changes(one.question, question)
            return f"{changes} takes {found.say_needs()} and allows a micro-batch up to {found.say_largest()}"
    return ""


def find_idle(one: Prediction, look: Look, allowed: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, reason) for each of `allowed` that the advice on a run does not propose."""
    settings = one.file.settings
    for name in allowed:
        changes = [*list_allowed_changes(one.question, settings, [name])]
        if f"{'lora_rank' if name == 'lora' else name}=" in one.advice:
            continue
        runs = [
            change_question(one.question, {**light, **change})
            for light in ({}, *list_light_changes(settings))
            for change in changes
        ]
        looked = [look(run) for run in runs]
        found = [known for known in looked if isinstance(known, Prediction)]
        fits = one.verdict is Verdict.FITS
        if not runs:
            yield name, explain_no_change(name, settings)
        elif fits and one.largest > 1:
            yield name, "no advice is needed where a run fits with room"
        elif any(known.largest > 1 if fits else _find_rows(known) for known in found):
            yield name, "a run fits that changes less"
        elif found:
            yield name, "no run with it does better"
        elif NOT_KNOWN not in looked:
            yield name, "no run can start with it"
        else:
            place, count = ("run.config.", "") if one.question.whole else ("", " --count")
            given = " ".join(f"--set {place}{key}={text}" for key, text in changes[0].items())
            yield name, f"it was not counted; {given}{count} says whether it fits"


def choose_remedy(answers: Sequence[Prediction]) -> Prediction | None:
    """Return the run whose change is to be tried first: on as many GPUs, without costs, with the strategy that sends
    least, with the fewest changes.
    """

    def rank(one: Prediction) -> tuple[Any, ...]:
        assert one.remedy
        before, after = one.question, one.remedy.question
        costs = sum(before.settings.get(name, "0") != after.settings.get(name, "0") for name in COSTLY)
        changes = sum(before.settings.get(name) != text for name, text in after.settings.items())
        order = ORDER.get(one.remedy.file.strategy, len(ORDER))
        return before.ranks != after.ranks, after.ranks, costs, order, changes

    return min((one for one in answers if one.remedy), key=rank, default=None)


def say_whole(one: Prediction, found: Prediction) -> str:
    """Return `say_remedy` with the strategy, for a reader who asked about several."""
    return say_remedy(_forget_strategy(one.question), found)


def _forget_strategy(question: Question) -> Question:
    kept = {
        name: text
        for name, text in question.settings.items()
        if name not in ("strategy", "dimensions") or (name != "strategy" and name in question.typed)
    }
    return replace(question, settings=kept)


def find_fewest(
    question: Question, answers: Sequence[Prediction], look: Look, allowed: Sequence[str] = ()
) -> str:
    """Return the smallest number of GPUs on which the same training fits, with the run; "" = none is known.

    Looked for are powers of two, or full nodes, below the number of GPUs on which a run, or its remedy, fits. Tried
    are the strategies that need no other model code.
    """
    fitting = [one for one in answers if one.verdict is Verdict.FITS]
    best = min(fitting, key=lambda one: ORDER.get(one.file.strategy, len(ORDER)), default=None)
    one = None if best else choose_remedy(answers)
    best = one.remedy if one else best
    settings = {**DEFAULTS, **question.settings}
    light = [{}, *list_light_changes(settings)]
    sizes = [*list_sizes(question, best.question.ranks if best else MOST_FEWEST + 1)]
    experts = max(map(_count_experts, answers), default=0)
    for gpus in sizes:
        runs = [
            place_ranks(change_question(question, {"strategy": name}), gpus)
            for name in WHY
            if name != "nd" and (name == "single") is (gpus == 1)
        ]
        tried = [change_question(run, change) for change in light for run in runs]
        for run in runs if allowed else ():
            own = {**settings, "offload": "none", **run.settings}
            more = [*list_allowed_changes(run, own, allowed)]
            tried += [change_question(run, {**less, **change}) for change in more for less in light]
        for asked in tried:
            if gpus > 1 and _never_fits(asked, sizes[-1], look, experts):
                continue
            if isinstance(found := look(asked), Prediction) and (rows := _find_rows(found)):
                return f"{gpus}: {_say_on(question, found.with_rows(rows))}"
    return f"{best.question.ranks}: {_say_on(question, best)}" if best else ""


def _say_on(question: Question, found: Prediction) -> str:
    """Return `strategy=fsdp fits, 18.21 of 24 GiB`, without the number of GPUs."""
    return say_remedy(replace(_forget_strategy(question), ranks=found.question.ranks), found)


def list_sizes(question: Question, end: int) -> Iterator[int]:
    """Yield numbers of GPUs below `end`: powers of two, above a node so many full nodes."""
    gpus, node = 1, question.per_node or end
    while gpus < end:
        yield gpus
        gpus = 2 * gpus if 2 * gpus < node or gpus % node == 0 else (node if gpus < node else 2 * gpus)


def _find_rows(found: Prediction) -> int:
    """Return the micro-batch that fits: the run's own, or a smaller one of the same step; 0 = none."""
    if found.verdict is Verdict.FITS:
        return found.question.rows
    share = found.file.share(found.question.ranks)
    return next(found.question.list_smaller(share, found.largest), 0)


def _name_changes(before: Question, after: Question) -> str:
    """Return `8 GPUs with strategy=fsdp, activation_checkpointing=blocks without offload`: all that `--set` is to
    change.

    Of charts a setting has its place, and null takes one back.
    """
    names = ["strategy", *(name for name in after.settings if name != "micro_batch_size")]
    changed = {
        name: after.settings[name] for name in names if after.settings.get(name) != before.settings.get(name)
    }
    if after.rows != before.rows:
        changed["micro_batch_size"] = str(after.rows)
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
    gpus = f"{after.ranks} GPU{'s' * (after.ranks > 1)}"
    told = ", ".join(f"{name}={text}" for name, text in changed.items())
    without = f" without {', '.join(sorted(gone))}" if gone else ""
    return " with ".join(filter(None, [gpus * (after.ranks != before.ranks), told])) + without


def _guess(one: Prediction, look: Look, allowed: Sequence[str]) -> str:
    """Return a change that is not known, by the largest cause; "" = all are known."""
    settings = one.file.settings
    held = one.peak if one.largest else one.smallest  # fewer rows are not enough on their own
    sizes = {
        kind: sum(held.causes.get(cause, 0) for cause in causes)
        for kind, causes in (("kept", KEPT), ("loss", LOSS), ("state", STATE))
    }
    if one.device.judge(sizes["state"]) is not Verdict.FITS:
        sizes = {"state": sizes["state"]}  # which no other change affects
    alone = [change for change in list_light_changes(settings) if len(change) == 1]
    for kind in sorted(sizes, key=lambda name: -sizes[name]):
        tried: list[Mapping[str, str]]
        if kind == "state":
            tried = [*list_allowed_changes(one.question, settings, allowed)]
            if one.question.ranks > 1:
                tried += [{"strategy": name} for name in list_nearest(str(settings["strategy"]))]
        else:
            tried = [change for change in alone if change.keys() == {OF_KIND[kind]}]
        for change in tried:
            changed = change_question(one.question, change)
            if look(changed) == NOT_KNOWN:
                return f"{_name_changes(one.question, changed)}: {REASONS[kind]}; {NOT_COUNTED}"
    return ""


def _explain_none(one: Prediction, look: Look, tried: Sequence[Prediction]) -> str:
    """Return the GPU that the run with the smallest need would fit, and whether more GPUs need more."""
    gib, ranks = one.device.gib, one.question.ranks
    if Device(gib, 0).judge(0) is not Verdict.FITS:
        return f"larger GPUs: CUDA's context takes {Device(gib, 0).fixed_gib:.2f} GiB, whatever the model"
    here = [one, *(found for found in tried if found.question.ranks == ranks)]
    smallest = [found.with_rows(1) for found in here if _divides(found)]
    least = min(smallest or here, key=lambda found: found.needs_gib)
    changes = _name_changes(one.question, least.question)
    larger = f"GPUs of at least {math.ceil(least.needs_gib / GATE)} GiB{' with ' * bool(changes)}{changes}"
    needs = f"{larger}, which needs {least.show(least.needs_gib)} GiB"
    again = look(place_ranks(one.question, 2 * ranks))
    if not isinstance(again, Prediction) or again.needs_gib < NEEDS_MORE * one.needs_gib:
        return f"{needs}; or a smaller model"
    needs += f"; {2 * ranks} GPUs need more, {again.show(again.needs_gib)} GiB each"
    experts = _count_experts(one)
    shards = f", because a layer's experts have {experts} shards at most, and further ranks hold padding"
    return needs + shards * bool(experts)


def _divides(found: Prediction) -> bool:
    """Return whether the same step can be made of micro-batches of one row."""
    return found.question.global_batch % found.file.share(found.question.ranks) == 0


def _count_experts(one: Prediction) -> int:
    if not isinstance(one.file, Simulated) or not one.file.config.is_text:
        return 0
    return read_shape(one.file.config).experts
