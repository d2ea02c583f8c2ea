"""Find changes for a run that will not fit: a run that fits, with its need, or else changes that may help.

Runs are tried in this order: changes without effect on results, changes that the user allows, other strategies, more
GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from stratlab.predict import Prediction
from stratlab.run_settings import SETTINGS
from stratlab_spec.memory.prediction import STATE, Verdict
from stratlab_spec.memory.profiles import Question
from stratlab_spec.registry import NETWORKS, SIZES
from stratlab_spec.settings.wording import as_text
from stratlab_spec.strategies import STRATEGIES

Settings = Mapping[str, str]
DEFAULTS = {name: SETTINGS[name]["default"] for name in ("activation_checkpointing", "loss_chunk_tokens")}
WHY = {name: row.why for name, row in sorted(STRATEGIES.items(), key=lambda each: (each[1].tried, each[0]))}
"""Strategies in the order in which they are tried, by their communication (docs/strategies.md)."""
LESS_CHUNK = 512
"""Tokens whose logits exist at once."""
ADAPTERS = 16
UNPUBLISHED = (
    *("vit_tiny", "vit_small", "qwen_tiny", "qwen_moe_tiny"),
    *(name for name, row in NETWORKS.items() if row.builder),
)
"""Presets whose weights were never published: adapters on random weights are not proposed."""
DEGREES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")
OF_ND = {*DEGREES, "layout", "dimensions", "pp_schedule", "cp_method", "sequence_parallel"}
DIMENSIONS = ("2", "3", "4", "5")
TIMES = (2, 4, 8, 16)
"""Multiples of the run's GPUs that are tried."""
ALLOWED = ("lora", "offload")
"""Changes that are proposed only if the user allows them: adapters train other parameters, offloading takes time."""


def list_candidates(
    question: Question, settings: Mapping[str, Any], allowed: Sequence[str]
) -> Iterator[Question]:
    """Yield questions about other runs, in the order of the attempts.

    Args:
        settings: of the run's file, for settings that `question` leaves out.
        allowed: of ALLOWED.
    """
    light: list[Settings] = [{}, *list_light_changes(settings)]
    yield from (change_question(question, change) for change in light[1:])
    for more in list_allowed_changes(question, settings, allowed):
        yield from (change_question(question, {**change, **more}) for change in light)
    others = [*_list_strategies_to_try(question, settings)]
    yield from (change_question(other, change) for change in light for other in others)
    for times, one in product(TIMES, (question, *others)):
        larger = replace(one, ranks=times * question.ranks)
        yield from (change_question(larger, change) for change in light)


def list_light_changes(settings: Mapping[str, Any]) -> list[Settings]:
    """Return changes that need less memory and train the same: blocks computed again, fewer logits at once, both."""
    found: list[Settings] = []
    if settings["activation_checkpointing"] != "blocks":
        found.append({"activation_checkpointing": "blocks"})
    if int(settings.get("loss_chunk_tokens", 0)) > LESS_CHUNK:
        found.append({"loss_chunk_tokens": str(LESS_CHUNK)})
    return [*found, *([{**found[0], **found[1]}] if len(found) > 1 else [])]


def list_allowed_changes(
    question: Question, settings: Mapping[str, Any], allowed: Sequence[str]
) -> Iterator[Settings]:
    """Yield changes that need less memory and that the user allows. Adapters come with the weights that they need."""
    if "lora" in allowed and not settings["lora_rank"] and _has_weights(question):
        given = question.settings.get("init") or question.settings.get("resume_from")
        yield {"lora_rank": str(ADAPTERS), **({} if given else {"init": "pretrained"})}
    places = ("none", *STRATEGIES[str(settings["strategy"])].offload)
    if "offload" in allowed and (now := settings.get("offload", "none")) in places:
        for place in places[places.index(now) + 1 :]:
            yield {"offload": place}


def explain_no_change(name: str, settings: Mapping[str, Any]) -> str:
    """Return why `list_allowed_changes` does not find a change of this name."""
    if name == "offload":
        return "the strategy has no offload that it does not use yet"
    if settings["lora_rank"]:
        return "the run trains adapters already"
    return "adapters need weights, and this model has no published ones; --set model_path=FOLDER"


def _list_strategies_to_try(question: Question, settings: Mapping[str, Any]) -> Iterator[Question]:
    """Yield the same run under other strategies, and under nd with other numbers of dimensions."""
    for strategy in WHY:
        if strategy == "nd":
            for number in DIMENSIONS:
                if (strategy, number) != (settings["strategy"], str(settings.get("dimensions", 1))):
                    yield change_question(question, {"strategy": strategy, "dimensions": number})
        elif strategy != settings["strategy"] and (strategy != "single" or question.ranks == 1):
            yield change_question(question, {"strategy": strategy})


def change_question(question: Question, change: Settings) -> Question:
    """Return the same run with other settings; with another strategy, without the settings that it rejects."""
    kept = dict(question.settings)
    if strategy := change.get("strategy"):
        refused = list_foreign(strategy) | OF_ND
        if kept.get("offload", "none") not in ("none", *STRATEGIES[strategy].offload):
            refused.add("offload")
        kept = {name: text for name, text in kept.items() if name not in refused}
    return replace(question, settings={**kept, **change})


def list_foreign(strategy: str) -> set[str]:
    """Return settings of other strategies, which the trainer rejects with this strategy."""
    others = {knob for row in STRATEGIES.values() for knob in row.knobs}
    others -= {*STRATEGIES[strategy].knobs}
    return others | (OF_ND if strategy != "nd" else set()) | ({"zeropp"} if strategy != "zeropp" else set())


def _has_weights(question: Question) -> bool:
    """Return whether there are weights for adapters: published ones, or a folder's."""
    given = question.settings
    if given.get("model_path") or given.get("resume_from"):
        return True
    is_resized = any(given.get(size, "0") != "0" for size in SIZES)
    return not is_resized and given.get("model", SETTINGS["model"]["default"]) not in UNPUBLISHED


KEPT = ("activations", "masks", "low-precision copies")
LOSS = ("logits and loss",)
OF_KIND = {"kept": "activation_checkpointing", "loss": "loss_chunk_tokens"}
REASONS = {
    "kept": "activations are most of it, and are computed again",
    "loss": "logits are most of it",
    "state": "weights, gradients and optimizer state are most of it",
}
NOT_COUNTED = "not counted, --count shows whether it fits"
Look = Callable[[Question], Prediction | None]


def advise(one: Prediction, look: Look, allowed: Sequence[str] = ()) -> str:
    """Return one sentence, with the settings to give.

    Args:
        look: the prediction of another question, as far as files know; None = they do not, or no run can start so.
        allowed: of ALLOWED.
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
    """Return changes that leave room if a run fits with only one row at a time; "" if none is known."""
    for question in list_candidates(one.question, one.file.settings, allowed):
        found = look(question)
        if found and found.verdict is Verdict.FITS and found.largest > 1:
            changes = _name_changes(one.question, question, question.rows)
            return f"{changes} takes {found.say_needs()} and allows a micro-batch up to {found.say_largest()}"
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


MOST_GPUS = 1024


def find_fewest(question: Question, look: Look) -> str:
    """Return the smallest number of GPUs, a power of two, on which the same training fits, with the run; "" = none.

    Tried are the strategies that need no other model code, each as it is, then with less memory.
    """
    light: list[Settings] = [{}, *list_light_changes({**DEFAULTS, **question.settings})]
    gpus = 1
    while gpus <= MOST_GPUS:
        strategies = [name for name in WHY if name != "nd" and (name == "single") is (gpus == 1)]
        for change, strategy in product(light, strategies):
            asked = change_question(question, {"strategy": strategy, **change})
            per_node = min(gpus, question.per_node or gpus)
            found = look(replace(asked, ranks=gpus, per_node=per_node))
            if found and found.verdict is Verdict.FITS:
                changes = "".join(f", {name}={text}" for name, text in change.items())
                return f"{gpus}: strategy={strategy}{changes} fits, {found.say_needs()}"
        gpus *= 2
    return ""


def _find_rows(found: Prediction) -> int:
    """Return the micro-batch that fits: the run's own, or a smaller one of the same step; 0 = none."""
    if found.verdict is Verdict.FITS:
        return found.question.rows
    share = found.file.share(found.question.ranks)
    return next(found.question.list_smaller(share, found.largest), 0)


def _name_changes(before: Question, after: Question, rows: int) -> str:
    """Return `8 GPUs with strategy=fsdp, activation_checkpointing=blocks without offload`: all that `--set` is to
    change.

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
    """Return changes that may help, by the largest cause; never a change that is known not to fit."""
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
    """Yield strategies that hold less of the state, the nearest first."""
    mine = str(one.file.settings["strategy"])
    steps = [mine]
    while (less := STRATEGIES[steps[-1]].holds_less) and less not in steps:
        steps.append(less)
    divided = set(STRATEGIES[mine].holds.divided)
    more = [name for name, row in STRATEGIES.items() if divided < {*row.holds.divided} and name != "nd"]
    for name in dict.fromkeys((*steps[1:], *more)):
        if one.question.ranks > 1:
            yield {"strategy": name}
