"""Changes of a run that may need less memory, as the questions that a user would ask next, in the order of attempts.

On the run's GPUs: changes without effect on results, changes that the user allows, other strategies with these. Then
more GPUs, and one GPU at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stratlab import UserError
from stratlab.run_settings import SETTINGS
from stratlab_spec.memory.profiles import Question
from stratlab_spec.registry import NETWORKS, SIZES
from stratlab_spec.strategies import STRATEGIES

Settings = Mapping[str, str]
DEFAULTS = {
    name: SETTINGS[name]["default"]
    for name in ("activation_checkpointing", "loss_chunk_tokens", "lora_rank", "offload")
}
NODE = 8
"""GPUs of a node, by default."""
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
MOST_GPUS = 1 << 16
"""Of advice."""
ALLOWED = ("lora", "offload")
"""Changes that are proposed only if the user allows them: adapters train other parameters, offloading takes time."""


def read_allowed(names: str) -> list[str]:
    """Return the changes that a user allows, separated by commas.

    Raises:
        UserError: an unknown one.
    """
    allowed = [name for name in names.split(",") if name]
    if wrong := [name for name in allowed if name not in ALLOWED]:
        raise UserError(f"--allow {','.join(wrong)}: expected of {', '.join(ALLOWED)} [SL-predict-allow]")
    return allowed


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
    yield from _allow(others, settings, allowed, light)
    for times in (times for times in TIMES if times * question.ranks <= MOST_GPUS):
        larger = [place_ranks(one, times * question.ranks) for one in (question, *others)]
        yield from (
            change_question(one, change) for one in larger for change in (*light[:1], *light[1:][-1:])
        )
        yield from _allow(larger, settings, allowed, light[-1:])
    if question.ranks > 1 and not question.whole:  # without NCCL
        alone = place_ranks(change_question(question, {"strategy": "single"}), 1)
        yield from (change_question(alone, change) for change in light)


def _allow(
    runs: Sequence[Question], settings: Mapping[str, Any], allowed: Sequence[str], light: Sequence[Settings]
) -> Iterator[Question]:
    """Yield runs with the changes that the user allows: the first change of every run, then the second ones."""
    each = [[*list_allowed_changes(run, {**settings, **_own(run)}, allowed)] for run in runs]
    for place in range(max(map(len, each), default=0)):
        for change in light:
            for run, changes in zip(runs, each, strict=True):
                yield from (change_question(run, {**change, **more}) for more in changes[place : place + 1])


def _own(run: Question) -> Settings:
    """Return the settings that decide which changes are possible; another strategy may have lost some."""
    return {"offload": "none", "strategy": "", **run.settings}


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
    adapters: Settings = {}
    if "lora" in allowed and not int(settings["lora_rank"]) and _has_weights(question):
        given = question.settings.get("init") or question.settings.get("resume_from")
        pretrained = {} if given or _has_only_sizes(question) else {"init": "pretrained"}
        adapters = {"lora_rank": str(ADAPTERS), **pretrained}
        yield adapters
    places = ("none", *STRATEGIES[str(settings["strategy"])].offload)
    if "offload" in allowed and (now := settings.get("offload", "none")) in places:
        moved = [{"offload": place} for place in places[places.index(now) + 1 :]]
        yield from moved
        yield from ({**adapters, **change} for change in moved if adapters)


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


def find_per_node(gpus: int) -> int:
    """Return the GPUs of a node where none are given; 0 = all are on one node."""
    return NODE if gpus > NODE and gpus % NODE == 0 else 0


def check_nodes(gpus: int, per_node: int) -> None:
    """Check that times would be of real nodes.

    Raises:
        UserError: more GPUs than a node has, which fill no nodes of NODE.
    """
    if not per_node and gpus > NODE and gpus % NODE:
        raise UserError(
            f"--gpus {gpus}: no multiple of {NODE}; expected --gpus-per-node for the times [SL-gpus-fill-nodes]"
        )


def place_ranks(question: Question, gpus: int) -> Question:
    """Return the same run on so many GPUs, as if asked with this number: on nodes as large, if these are full.

    The step stays the same, so that the micro-batch becomes smaller where its share does.
    """
    told, rows = question.per_node, question.rows
    per_node = told if told and told < gpus and gpus % told == 0 else find_per_node(gpus)
    if question.global_batch % (rows * gpus) and question.settings.get("strategy") != "nd":
        rows = next(question.list_smaller(gpus, question.global_batch // gpus), rows)
    settings = {**question.settings, **({"micro_batch_size": str(rows)} if rows != question.rows else {})}
    return replace(question, ranks=gpus, per_node=per_node, rows=rows, settings=settings)


def list_foreign(strategy: str) -> set[str]:
    """Return settings of other strategies, which the trainer rejects with this strategy."""
    others = {knob for row in STRATEGIES.values() for knob in row.knobs}
    others -= {*STRATEGIES[strategy].knobs}
    return others | (OF_ND if strategy != "nd" else set()) | ({"zeropp"} if strategy != "zeropp" else set())


def list_nearest(strategy: str) -> list[str]:
    """Return strategies that hold less of the state, the nearest first."""
    steps = [strategy]
    while (less := STRATEGIES[steps[-1]].holds_less) and less not in steps:
        steps.append(less)
    divided = {*STRATEGIES[strategy].holds.divided}
    more = [name for name, row in STRATEGIES.items() if divided < {*row.holds.divided} and name != "nd"]
    return [*dict.fromkeys((*steps[1:], *more))]


def _has_weights(question: Question) -> bool:
    """Return whether there are weights for adapters: published ones, or a folder's."""
    given = question.settings
    if given.get("model_path") or given.get("resume_from"):
        return True
    is_resized = any(given.get(size, "0") != "0" for size in SIZES)
    return not is_resized and given.get("model", SETTINGS["model"]["default"]) not in UNPUBLISHED


def _has_only_sizes(question: Question) -> bool:
    """Return whether the model is a config.json here without its weights, so that none can be asked for."""
    folder = question.settings.get("model_path", "")
    return bool(folder) and not question.whole and not any(Path(folder).glob("*.safetensors"))
