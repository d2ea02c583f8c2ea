"""Runs to try where one does not fit: what changes no result first, then other strategies, then more GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

from stratlab.predict.question import Question
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
    for more in list_allowed_changes(settings, allowed):
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


def list_allowed_changes(settings: Mapping[str, Any], allowed: Sequence[str]) -> Iterator[Settings]:
    """What holds less where the user allows it."""
    if "lora" in allowed and not settings["lora_rank"]:
        yield {"lora_rank": str(ADAPTERS)}
    places = ("none", *STRATEGIES.get(str(settings["strategy"]), {}).get("offload", ()))
    if "offload" in allowed and (now := settings.get("offload", "none")) in places:
        for place in places[places.index(now) + 1 :]:
            yield {"offload": place}


def _list_strategies(question: Question, settings: Mapping[str, Any]) -> Iterator[Question]:
    """The same run under the others, and under nd with other numbers of dimensions."""
    kept = {name: text for name, text in question.settings.items() if name not in OF_ND}
    for strategy in WHY:
        if strategy == "nd":
            for number in DIMENSIONS:
                if (strategy, number) != (settings["strategy"], str(settings.get("dimensions", 1))):
                    yield replace(question, settings={**kept, "strategy": strategy, "dimensions": number})
        elif strategy != settings["strategy"] and (strategy != "single" or question.ranks == 1):
            yield replace(question, settings={**kept, "strategy": strategy})


def change_question(question: Question, change: Settings) -> Question:
    """The same run with other settings."""
    return replace(question, settings={**question.settings, **change})
