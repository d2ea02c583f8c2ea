"""Names from the notes that this lab grew out of, and from other programs: refused, each with the lab's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainer.settings.config import Config, ConfigError
from trainer.settings.fields import MODELS as OURS
from trainer.settings.names_elsewhere import (
    DATASETS,
    MODELS,
    SETTINGS_ELSEWHERE,
    STRATEGIES,
    describe_for_tools,
    hint_of_dataset,
)
from trainer.settings.strategy_table import STRATEGIES as TABLE


def refuse(**settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Config.from_env({"TRAINER_RUN": "r", **settings})
    (problem,) = caught.value.problems
    return problem


def test_a_data_set_s_name_that_is_nearly_one_of_ours() -> None:
    assert hint_of_dataset("digitz") == "; did you mean digits?"
    assert hint_of_dataset("MetaMathQA-40k") == "; did you mean metamathqa?"
    assert hint_of_dataset("ethz/somebody-else") == ""
    described = str(Config.model_fields["dataset"].description)
    assert re.findall("`([a-z0-9]+)`", described) == list(DATASETS)


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("STRATEGY", "fsdp_stage2", "; DeepSpeed's stage 2 is called zero2"),
        ("STRATEGY", "fsdp_stage3", "; DeepSpeed's stage 3 is called zero3"),
        ("STRATEGY", "zero++", "; ZeRO++ is called zeropp"),
        ("MODEL", "CNN-LSTM", "; the network is called cnn_lstm"),
        ("MODEL", "vgg16", "; the network is called vgg"),
        ("MODEL", "Mobilenet", "; the network is called mobilenet"),
        ("MODEL", "VIT-Tiny", "; the network is called vit_tiny"),
        ("MODEL", "qwen2.5-3B", "; the network is called qwen2.5-3b"),
        ("MODEL", "mobilenet-finetuned", "; the network is called mobilenet_finetuned"),
        (
            "MODEL",
            "resnet50_finetuned",
            "; the network with its published weights is called resnet_finetuned",
        ),
        (
            "MODEL",
            "cnn_finetuned",
            "; no _finetuned name has the network cnn, only mobilenet_finetuned, efficientnet_finetuned, "
            "vgg_finetuned, resnet_finetuned; TRAINER_MODEL=cnn is the network itself",
        ),
        ("MODEL", "mobilnet", "; did you mean mobilenet?"),
        ("MODEL", "vit_hage", "; did you mean vit_huge or vit_large or vit_base?"),
        *(
            ("MODEL", name, "version 3, large; version 2 is on the hub: google/mobilenet_v2_1.0_224")
            for name in ("MobileNet-V2", "MobileNetV2", "mobilenet_v2_finetuned")
        ),
        ("MODEL", "qwen2.5-1.5b-instruct", "; did you mean qwen2.5-1.5b?"),
        ("MODEL", "mobilenet_v2", "version 3, large; version 2 is on the hub: google/mobilenet_v2_1.0_224"),
    ],
)
def test_a_value_is_refused_with_ours(setting, value, said):
    problem = refuse(**{f"TRAINER_{setting}": value})
    assert problem.startswith(f"TRAINER_{setting}={value!r}: expected one of ") and problem.endswith(said)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("LEARNING_RATE", "it is called TRAINER_LR"),
        ("GRADIENT_ACCUMULATION_STEPS", "and the accumulation follows from both"),
        ("ADAM_EPS", "AdamW has TRAINER_BETA1, TRAINER_BETA2 and TRAINER_EPS"),
        (
            "MODEL_SIZE",
            "TRAINER_MODEL_LAYERS, TRAINER_MODEL_HIDDEN, TRAINER_MODEL_HEADS, TRAINER_MODEL_INTERMEDIATE, "
            "TRAINER_MODEL_PATCH, TRAINER_MODEL_KV_HEADS, TRAINER_MODEL_VOCAB",
        ),
        ("MODEL_TYPE", "it is called TRAINER_MODEL"),
        ("NUM_GPUS", "how many processes there are is the chart's: run.nodes, run.processesPerNode"),
    ],
)
def test_a_setting_is_refused_with_ours(setting, said):
    problem = refuse(**{f"TRAINER_{setting}": "2"})
    assert problem.startswith(f"TRAINER_{setting}: unknown setting; ") and problem.endswith(said)


@pytest.mark.parametrize("name", ["alexnet", "resnet101", "resnet-18", "Qwen2.5-7B"])
def test_a_name_that_is_nobody_s_gets_no_hint(name):
    assert refuse(TRAINER_MODEL=name).endswith("a hub id such as google/vit-base-patch16-224")


def test_what_is_proposed_is_there_and_what_is_explained_is_not():
    assert {*MODELS.values()} <= {*OURS} and not {*MODELS} & {*OURS}
    assert {ours for ours, _ in STRATEGIES.values()} <= {*TABLE} and not {*STRATEGIES} & {*TABLE}
    assert not {*SETTINGS_ELSEWHERE} & {*Config.model_fields}
    proposed = {name for said in SETTINGS_ELSEWHERE.values() for name in re.findall(r"TRAINER_(\w+)", said)}
    assert proposed and {name.lower() for name in proposed} <= {*Config.model_fields}


def test_the_table_of_the_tools_is_current():
    assert Path("stratlab/tables/names_elsewhere.json").read_text() == describe_for_tools(), "make schema"
