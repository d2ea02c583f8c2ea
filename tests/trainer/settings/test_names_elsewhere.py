"""Names from other programs: refused, each with the lab's own."""

from __future__ import annotations

import re

import pytest

from stratlab_spec.settings.config import (
    DATASETS,
    MODELS_ELSEWHERE,
    SETTINGS_ELSEWHERE,
    STRATEGIES_ELSEWHERE,
    Config,
    ConfigError,
    hint_of_dataset,
    hint_of_value,
)
from stratlab_spec.settings.fields import MODELS as OURS
from stratlab_spec.strategies import STRATEGIES as TABLE
from tests.codes import find_codes


def test_what_a_data_set_and_a_model_are_called_in_tables() -> None:
    named = Config(run="r", dataset="cifar100", model="owner/name")
    assert (named.dataset_name, named.model_name) == ("cifar100", "owner/name")
    local = Config(run="r", dataset_path="/data/pets/", model_path="/data/net")
    assert (local.dataset_name, local.model_name) == ("pets", "net")


def test_a_data_set_s_name_that_is_nearly_one_of_ours() -> None:
    assert "digits?" in hint_of_dataset("digitz") and "metamathqa?" in hint_of_dataset("MetaMathQA-40k")
    assert hint_of_dataset("ethz/somebody-else") == ""
    described = str(Config.model_fields["dataset"].description)
    assert re.findall("`([a-z0-9]+)`", described) == list(DATASETS)


@pytest.mark.parametrize(
    ("setting", "value", "ours"),
    [
        ("strategy", "fsdp_stage3", " zero3"),
        ("strategy", "zero++", " zeropp"),
        ("model", "CNN-LSTM", " cnn_lstm"),
        ("model", "VIT-Tiny", " vit_tiny"),
        ("model", "resnet50_finetuned", " resnet_finetuned"),
        ("model", "cnn_finetuned", "TRAINER_MODEL=cnn"),
        ("model", "vit_hage", "vit_huge or vit_large or vit_base?"),
        ("model", "mobilenet_v2_finetuned", "google/mobilenet_v2_1.0_224"),
    ],
)
def test_a_value_of_others_is_answered_with_ours(setting, value, ours):
    assert f"{ours} " in f"{hint_of_value(setting, value)} "


@pytest.mark.parametrize("name", ["alexnet", "resnet101", "Qwen2.5-7B"])
def test_a_name_that_is_nobody_s_gets_no_hint(name):
    assert hint_of_value("model", name) == ""


def test_a_setting_of_others_is_refused_with_ours():
    with pytest.raises(ConfigError) as caught:
        Config.from_env({"TRAINER_RUN": "r", "TRAINER_LEARNING_RATE": "2", "TRAINER_MODEL_SIZE": "2"})
    rate, size = caught.value.problems
    assert find_codes(rate) == find_codes(size) == ["SL-setting-unknown"]
    assert "TRAINER_LR " in rate and "TRAINER_MODEL_KV_HEADS" in size


def test_what_is_proposed_is_there_and_what_is_explained_is_not():
    assert {*MODELS_ELSEWHERE.values()} <= {*OURS} and not {*MODELS_ELSEWHERE} & {*OURS}
    assert {ours for ours, _ in STRATEGIES_ELSEWHERE.values()} <= {*TABLE} and not {*STRATEGIES_ELSEWHERE} & {*TABLE}
    assert not {*SETTINGS_ELSEWHERE} & {*Config.model_fields}
    proposed = {name for said in SETTINGS_ELSEWHERE.values() for name in re.findall(r"TRAINER_(\w+)", said)}
    assert proposed and {name.lower() for name in proposed} <= {*Config.model_fields}
