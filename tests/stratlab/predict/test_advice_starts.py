"""Advice that is followed to the letter is a run that the trainer starts."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from stratlab.predict.answering import answer
from stratlab.predict.asking import ask_of_model
from stratlab.predict.count_command import fill_question
from stratlab.predict.operations_file import SHIPPED, read_operations
from stratlab.predict.prediction import Prediction
from stratlab.predict.question import Question
from stratlab.predict.runs_to_try import (
    ALLOWED,
    UNPUBLISHED,
    change_question,
    explain_no_change,
    list_allowed_changes,
)
from stratlab.tables.strategies import STRATEGIES
from trainer.launch.questions import check_run
from trainer.settings.config import Config, ConfigError
from trainer.settings.fields import MODELS
from trainer.shapes.decoder_rules import TEXT_HUB_IDS
from trainer.shapes.model_shapes import PUBLISHED

FILES = list(read_operations([SHIPPED]))
Typed = dict[str, str]


def advise(model: str, gpus: int, device_gib: float, typed: Typed, allowed: Sequence[str]) -> list[str]:
    questions = ask_of_model(model, gpus, FILES, [f"{name}={text}" for name, text in typed.items()])
    found = answer(questions, FILES, device_gib, None, allowed)
    return [
        one.question.settings["strategy"] + "|" + one.advice
        for one in found
        if isinstance(one, Prediction) and one.advice
    ]


def follow(advice: str, gpus: int, typed: Typed) -> tuple[Typed, int]:
    """What is typed after the advice, and the number of GPUs."""
    told = re.split(r" fits|: | leaves room", advice)[0]
    changed = {name: text.rstrip(",") for name, text in re.findall(r"([a-z_]+)=(\S+)", told)}
    gone = re.split(", ", told.partition(" without ")[2])
    more = re.match(r"(\d+) GPUs", told)
    return {name: text for name, text in {**typed, **changed}.items() if name not in gone}, int(
        more[1]
    ) if more else gpus


def refusal(question: Question) -> list[str]:
    """What the trainer says of the run, as `python -m trainer` says it before it starts."""
    filled = fill_question(question)
    per_node = filled.per_node or filled.ranks
    env = {f"TRAINER_{name.upper()}": text for name, text in filled.settings.items()}
    env |= {
        "TRAINER_RUN": "x",
        "PET_NNODES": str(filled.ranks // per_node),
        "PET_NPROC_PER_NODE": str(per_node),
    }
    found = check_run(env, elsewhere=True, replaces=False, opened=set())
    return list(found["problems"])


@pytest.mark.parametrize("allowed", [(), ALLOWED], ids=["", "lora,offload"])
@pytest.mark.parametrize(
    ("model", "gpus", "device_gib", "typed"),
    [
        ("qwen2.5-3b", 8, 79.2, {}),
        ("qwen2.5-3b", 8, 24, {}),
        ("qwen2.5-3b", 4, 24, {}),
        ("qwen2.5-3b", 4, 16, {}),
        ("qwen2.5-3b", 4, 24, {"strategy": "zero2", "gather_bucket_mib": "64"}),
        ("qwen2.5-3b", 4, 16, {"strategy": "ddp", "init": "pretrained"}),
        ("qwen2.5-3b", 8, 16, {"strategy": "nd", "dimensions": "2"}),
        ("qwen2.5-3b", 8, 6, {}),
        ("vit_huge", 8, 79.2, {}),
        ("vit_huge", 8, 8, {}),
        ("vit_huge", 64, 139.8, {"micro_batch_size": "1000"}),
    ],
)
def test_what_is_advised_is_accepted(
    model: str, gpus: int, device_gib: float, typed: Typed, allowed: Sequence[str]
) -> None:
    for line in advise(model, gpus, device_gib, typed, allowed):
        strategy, _, advice = line.partition("|")
        given, ranks = follow(advice, gpus, {**typed, "strategy": strategy})
        pairs = [f"{name}={text}" for name, text in given.items()]
        for question in ask_of_model(model, ranks, FILES, pairs):
            assert refusal(question) == [], f"{line} -> {pairs}"


KNOBS: Typed = {
    "reduce_bucket_mib": "64",
    "reduce_dtype": "bf16",
    "static_graph": "true",
    "accumulate": "unsharded",
    "reshard_after_forward": "true",
    "prefetch_blocks": "2",
    "overlap_reduction": "false",
    "gather_bucket_mib": "64",
    "persistent_elements": "10",
    "zeropp": "hpz",
    "pp_schedule": "gpipe",
    "cp_kind": "ring",
    "layout": "given",
    "tp": "2",
    "offload": "optimizer",
}


@pytest.mark.parametrize("other", [name for name in STRATEGIES if name != "single"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_strategy_leaves_its_own_settings_behind(strategy: str, other: str) -> None:
    kept = {"model": "qwen2.5-3b", "strategy": strategy}
    env = {"TRAINER_RUN": "x", "TRAINER_MODEL": "qwen2.5-3b", "TRAINER_STRATEGY": strategy}
    for name, text in KNOBS.items():
        try:
            Config.from_env({**env, f"TRAINER_{name.upper()}": text})
        except ConfigError:
            continue
        kept[name] = text
    asked = Question("x", kept, 8, 4, 1, 0, whole=False, typed=frozenset(kept))
    changed = change_question(asked, {"strategy": other})
    given = {f"TRAINER_{name.upper()}": text for name, text in changed.settings.items()}
    Config.from_env({"TRAINER_RUN": "x", **given})


@pytest.mark.parametrize(
    ("settings", "strategy", "rank", "idle"),
    [
        ({"model": "vit_huge"}, "single", 0, ["offload"]),
        ({"model": "vit_tiny"}, "fsdp", 0, ["lora"]),
        ({"model": "vit_huge"}, "fsdp", 8, ["lora"]),
        ({"model": "vit_huge"}, "fsdp", 0, []),
    ],
)
def test_what_is_allowed_in_vain_is_named(
    settings: dict[str, str], strategy: str, rank: int, idle: list[str]
) -> None:
    asked = Question("x", settings, 1, 1, 1, 0, whole=False)
    file = {"strategy": strategy, "lora_rank": rank}
    assert [name for name in ALLOWED if not [*list_allowed_changes(asked, file, [name])]] == idle
    reasons = {explain_no_change(name, file) for name in idle}
    assert len(reasons) == len(idle)


def test_adapters_are_proposed_where_weights_are_published() -> None:
    published = {*PUBLISHED, *TEXT_HUB_IDS}
    assert {*UNPUBLISHED} == {name for name in MODELS if name not in published and "finetuned" not in name}
    file = {"strategy": "fsdp", "lora_rank": 0}

    def propose(**settings: str) -> list[Typed]:
        asked = Question("x", settings, 8, 8, 1, 0, whole=False)
        return [dict(change) for change in list_allowed_changes(asked, file, ["lora"])]

    assert propose(model="qwen2.5-3b") == [{"lora_rank": "16", "init": "pretrained"}]
    assert propose(model="qwen2.5-3b", init="pretrained") == [{"lora_rank": "16"}]
    assert propose(model_path="/results/m") == [{"lora_rank": "16", "init": "pretrained"}]
    assert propose(model="vit_tiny") == [] == propose(model="qwen2.5-3b", model_layers="7")
