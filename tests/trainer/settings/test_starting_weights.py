"""Adapters stand on random weights only where that was asked for, and a run says what it starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer.launch.questions import check_run
from trainer.settings.config import Config
from trainer.settings.starting_weights import describe_starting_weights

CHARTS = Path(__file__).parents[3] / "charts"
CURE = "TRAINER_INIT=pretrained"


def refuse(elsewhere: bool = True, **settings: Any) -> tuple[int, str]:
    """(exit code, sentences) of the check before a start."""
    env = {f"TRAINER_{name.upper()}": str(value) for name, value in {"run": "r", **settings}.items()}
    found = check_run(env, elsewhere=elsewhere, replaces=True, opened=set())
    return found["code"], " ".join(found["problems"])


@pytest.mark.parametrize("elsewhere", [True, False])
@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({}, True),
        ({"model": "cnn"}, True),
        ({"model": "qwen_tiny", "dataset": "arithmetic", "seq_len": 64, "strategy": "nd"}, True),
        ({"init": "scratch"}, False),
        ({"lora_rank": 0}, False),
    ],
)
def test_adapters_on_random_weights_are_asked_for(elsewhere, settings, refused, tmp_path):
    given = {"lora_rank": 4, "image_size": 32, "results": tmp_path, "steps": 40, **settings}
    if "dataset" in settings:
        del given["image_size"]
    code, said = refuse(elsewhere, **given)
    assert (code == 2 and CURE in said and "TRAINER_INIT=scratch" in said) == refused, said
    assert code == (2 if refused else 0), said


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_folder_of_weights_is_no_answer_by_itself(elsewhere, tmp_path):
    """Left out, `init` is scratch: the folder would say the architecture alone."""
    given = {"model_path": tmp_path / "net", "lora_rank": 4, "results": tmp_path}
    code, said = refuse(elsewhere, **given)
    assert code == 2 and f"{CURE} takes those of {tmp_path / 'net'}" in said
    assert CURE not in refuse(elsewhere, **given, init="pretrained")[1]


def test_a_name_with_published_weights_is_an_answer():
    assert refuse(model="mobilenet_finetuned", lora_rank=4, image_size=32)[0] == 0
    assert refuse(model="vit_base", dataset="cifar100", lora_rank=4, init="pretrained")[0] == 0


def test_a_run_that_goes_on_from_another_has_its_weights():
    assert CURE not in refuse(lora_rank=4, resume_from="default/first")[1]


def test_the_chart_of_adapters_asks_which_weights():
    asked = yaml.safe_load((CHARTS / "lora" / "values.yaml").read_text())["run"]["config"]
    code, said = refuse(**asked)
    assert code == 2 and CURE in said
    assert refuse(**asked, model="vit_base", dataset="cifar100", init="pretrained")[0] == 0
    assert refuse(**asked, init="scratch")[0] == 0


def test_memory_and_layouts_may_be_asked_without_weights():
    assert Config(run="r", lora_rank=4, model="qwen_tiny").lora_rank == 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "random weights"),
        ({"model_path": "/data/net", "seed": 3}, "random weights"),
        ({"model_path": "/data/net", "init": "pretrained"}, "the weights in /data/net"),
        ({"model": "vit_base", "init": "pretrained"}, "the published weights of vit_base"),
        ({"model": "mobilenet_finetuned"}, "the published weights of mobilenet"),
        ({"model": "owner/name", "init": "pretrained"}, "the published weights of owner/name"),
        ({"resume_from": "demo/ddp"}, "a checkpoint of demo/ddp"),
    ],
)
def test_a_run_says_what_it_starts_from(settings, said):
    assert describe_starting_weights(Config(run="r", **settings)) == said
