"""Advice that is followed to the letter is a run that the trainer starts."""

import re

import pytest

from stratlab.predict import Prediction
from stratlab.predict.answering import answer
from stratlab.predict.asking import ask_of_model
from stratlab.predict.counting import fill_question
from stratlab.predict.remedies import ALLOWED, change_question
from stratlab_spec.memory.profiles import SHIPPED, Question, read_operations
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.strategies import STRATEGIES
from trainer.launch.batch_validation import check_run

FILES = list(read_operations([SHIPPED]))
Typed = dict[str, str]


def follow(advice: str, gpus: int, typed: Typed) -> tuple[Typed, int]:
    """What is typed after the advice, and the number of GPUs."""
    told = re.split(r" fits|: | leaves room", advice)[0]
    changed = {name: text.rstrip(",") for name, text in re.findall(r"([a-z_]+)=(\S+)", told)}
    gone = re.split(", ", told.partition(" without ")[2])
    more = re.match(r"(\d+) GPUs", told)
    kept = {name: text for name, text in {**typed, **changed}.items() if name not in gone}
    return kept, int(more[1]) if more else gpus


def find_problems(question: Question) -> list[str]:
    """As `python -m trainer` says it before it starts."""
    filled = fill_question(question)
    per_node = filled.per_node or filled.ranks
    env = {f"TRAINER_{name.upper()}": text for name, text in filled.settings.items()}
    places = {"PET_NNODES": str(filled.ranks // per_node), "PET_NPROC_PER_NODE": str(per_node)}
    found = check_run(env | places | {"TRAINER_RUN": "x"}, elsewhere=True, replaces=False, opened=set())
    return list(found["problems"])


@pytest.mark.parametrize(
    ("model", "gpus", "device_gib", "typed", "allowed"),
    [
        ("qwen2.5-3b", 8, 79.2, {}, ()),
        ("qwen2.5-3b", 4, 16, {"strategy": "ddp", "init": "pretrained"}, ALLOWED),
        ("qwen2.5-3b", 8, 16, {"strategy": "nd", "dimensions": "2"}, ()),
        ("vit_huge", 64, 139.8, {"micro_batch_size": "1000"}, ALLOWED),
    ],
)
def test_what_is_advised_is_accepted(model, gpus, device_gib, typed, allowed):
    questions = ask_of_model(model, gpus, FILES, [f"{name}={text}" for name, text in typed.items()])
    for one in answer(questions, FILES, device_gib, None, allowed):
        if isinstance(one, Prediction) and one.advice:
            strategy = one.question.settings["strategy"]
            given, ranks = follow(one.advice, gpus, {**typed, "strategy": strategy})
            pairs = [f"{name}={text}" for name, text in given.items()]
            for question in ask_of_model(model, ranks, FILES, pairs):
                assert find_problems(question) == [], f"{one.advice} -> {pairs}"


KNOBS = """reduce_bucket_mib=64 reduce_dtype=bf16 static_graph=true accumulate=unsharded reshard_after_forward=true
prefetch_blocks=2 overlap_reduction=false gather_bucket_mib=64 persistent_elements=10 zeropp=hpz pp_schedule=gpipe
cp_method=ring layout=given tp=2 offload=optimizer"""


def read_env(settings: Typed) -> Config:
    return Config.from_env(
        {"TRAINER_RUN": "x", **{f"TRAINER_{name.upper()}": v for name, v in settings.items()}}
    )


def test_another_strategy_leaves_its_own_settings_behind():
    for strategy in STRATEGIES:
        kept = {"model": "qwen2.5-3b", "strategy": strategy}
        for name, _, text in (knob.partition("=") for knob in KNOBS.split()):
            try:
                read_env({"model": "qwen2.5-3b", "strategy": strategy, name: text})
            except ConfigError:
                continue
            kept[name] = text
        asked = Question("x", kept, 8, 4, 1, 0, whole=False, typed=frozenset(kept))
        for other in STRATEGIES.keys() - {"single"}:
            read_env(dict(change_question(asked, {"strategy": other}).settings))
