"""Runs to try where one does not fit: what changes no result first, then other strategies, then more GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

from stratlab.predict.question import Question
from stratlab.tables.settings import SETTINGS
from stratlab.tables.strategies import STRATEGIES

Settings = Mapping[str, str]
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
LESS_CHUNK = 512
"""Tokens whose logits are there at once."""
ADAPTERS = 16
UNPUBLISHED = ("vit_tiny", "vit_small", "cnn", "cnn_lstm", "ensemble", "qwen_tiny", "qwen_moe_tiny")
"""Presets whose weights were never published: adapters on random weights are not proposed."""
SIZES = ("hidden", "heads", "kv_heads", "intermediate", "layers", "vocab", "patch")
DEGREES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")
OF_ND = {*DEGREES, "layout", "dimensions", "pp_schedule", "cp_kind", "sequence_parallel"}
DIMENSIONS = ("2", "3", "4", "5")
TIMES = (2, 4, 8, 16)
"""As many GPUs as these times those of the run are tried."""
ALLOWED = ("lora", "offload")
"""What is proposed only where the user allows it: adapters train other parameters, offloading takes time."""


def list_candidates(
    question: Question, settings: Mapping[str, Any], allowed: Sequence[str]
) -> Iterator[Question]:
    """Questions about other runs, in the order in which they are to be tried.

    Args:
        settings: those of the run's file: what `question` leaves out is as there.
        allowed: of ALLOWED.
    """
    light = list_light_changes(settings)
    for change in light:
        yield change_question(question, change)
    for more in list_allowed_changes(question, settings, allowed):
        for change in ({}, *light):
            yield change_question(question, {**change, **more})
    others = [*_list_strategies(question, settings)]
    for change in ({}, *light):
        for other in others:
            yield change_question(other, change)
    for times in TIMES:
        larger = [replace(one, ranks=times * question.ranks) for one in (question, *others)]
        for one in larger:
            for change in ({}, *light):
                yield change_question(one, change)


def list_light_changes(settings: Mapping[str, Any]) -> list[Settings]:
    """What holds less and trains the same: blocks computed again, fewer logits at once, both."""
    single: list[Settings] = []
    if settings["activation_checkpointing"] != "blocks":
        single.append({"activation_checkpointing": "blocks"})
    if settings.get("loss_chunk_tokens", 0) > LESS_CHUNK:
        single.append({"loss_chunk_tokens": str(LESS_CHUNK)})
    return [
        dict(chain.from_iterable(one.items() for one in each))
        for n in (1, 2)
        for each in combinations(single, n)
    ]


def list_allowed_changes(
    question: Question, settings: Mapping[str, Any], allowed: Sequence[str]
) -> Iterator[Settings]:
    """What holds less where the user allows it. Adapters come with the weights that they need."""
    if "lora" in allowed and not settings["lora_rank"] and _has_weights(question):
        given = question.settings.get("init") or question.settings.get("resume_from")
        yield {"lora_rank": str(ADAPTERS), **({} if given else {"init": "pretrained"})}
    places = ("none", *STRATEGIES.get(str(settings["strategy"]), {}).get("offload", ()))
    if "offload" in allowed and (now := settings.get("offload", "none")) in places:
        for place in places[places.index(now) + 1 :]:
            yield {"offload": place}


def explain_no_change(name: str, settings: Mapping[str, Any]) -> str:
    """Say why `list_allowed_changes` finds nothing of this name to change."""
    if name == "offload":
        return "the strategy has no offload that it does not use yet"
    if settings["lora_rank"]:
        return "the run trains adapters already"
    return "adapters need weights, and none of this model are published; --set model_path=FOLDER"


def _list_strategies(question: Question, settings: Mapping[str, Any]) -> Iterator[Question]:
    """The same run under the others, and under nd with other numbers of dimensions."""
    for strategy in WHY:
        if strategy == "nd":
            for number in DIMENSIONS:
                if (strategy, number) != (settings["strategy"], str(settings.get("dimensions", 1))):
                    yield change_question(question, {"strategy": strategy, "dimensions": number})
        elif strategy != settings["strategy"] and (strategy != "single" or question.ranks == 1):
            yield change_question(question, {"strategy": strategy})


def change_question(question: Question, change: Settings) -> Question:
    """The same run with other settings; with another strategy, without what that strategy refuses."""
    kept = dict(question.settings)
    if strategy := change.get("strategy"):
        refused = list_foreign(strategy) | OF_ND
        if kept.get("offload", "none") not in ("none", *STRATEGIES[strategy].get("offload", ())):
            refused.add("offload")
        kept = {name: text for name, text in kept.items() if name not in refused}
    return replace(question, settings={**kept, **change})


def list_foreign(strategy: str) -> set[str]:
    """Settings of other strategies, which the trainer refuses under this one."""
    others = {knob for row in STRATEGIES.values() for knob in row["knobs"]}
    others -= {*STRATEGIES.get(strategy, {}).get("knobs", ())}
    return others | (OF_ND if strategy != "nd" else set()) | ({"zeropp"} if strategy != "zeropp" else set())


def _has_weights(question: Question) -> bool:
    """Whether there are weights for adapters to stand on: published ones, or those of a folder."""
    given = question.settings
    if given.get("model_path") or given.get("resume_from"):
        return True
    is_resized = any(given.get(f"model_{size}", "0") != "0" for size in SIZES)
    return not is_resized and given.get("model", SETTINGS["model"]["default"]) not in UNPUBLISHED
