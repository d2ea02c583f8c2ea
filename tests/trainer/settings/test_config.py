"""Settings as variables: what is read, one row for every rule between them, and names from other programs."""

import re
from pathlib import Path

import pytest

from stratlab_spec.settings.config import Config, ConfigError, hint_of_value
from stratlab_spec.strategies import STRATEGIES
from tests.codes import find_codes, refuses


def read(**settings: str) -> Config:
    return Config.from_env({"PATH": "/bin", "TRAINER_RUN": "try"} | settings)


def problems(**settings: str) -> list[str]:
    with pytest.raises(ConfigError) as failure:
        read(**settings)
    return failure.value.problems


def test_every_setting_is_read_somewhere():
    sources = [path for top in ("stratlab_spec", "trainer") for path in Path(top).rglob("*.py")]
    sources = [path for path in sources if path.name != "fields.py"]
    text = "\n".join(path.read_text() for path in sources)
    idle = [name for name in Config.model_fields if not re.search(rf"\.{name}\b|['\"]{name}['\"]", text)]
    assert not idle, f"nothing in trainer/ reads {', '.join(idle)}"


def test_all_wrong_names_values_and_rules_are_named_at_once():
    rule = {"TRAINER_OPTIMIZER": "sgd", "TRAINER_NESTEROV": "true", "TRAINER_MOMENTUM": "0"}
    unknown, lost, spelt, broken = problems(TRAINER_LRR="1", TRAINER_XYZZY="1", TRAINER_lr="0.5", **rule)
    assert find_codes(unknown) == find_codes(lost) == ["SL-setting-unknown"]
    assert "TRAINER_LRR" in unknown and "TRAINER_LR?" in unknown and "?" not in lost
    assert find_codes(spelt) == ["SL-variable-capitals"] and find_codes(broken) == ["SL-nesterov-momentum"]
    wrong = problems(TRAINER_LR="x", TRAINER_STRATEGY="dpp", **rule)  # rules need values
    assert find_codes(wrong) == ["SL-setting-value"] * 2
    rate, strategy = sorted(wrong)
    assert rate.startswith("TRAINER_LR='x': ") and " 0 " in rate
    assert strategy.startswith("TRAINER_STRATEGY='dpp': ") and ", ".join(STRATEGIES) in strategy
    with refuses(ConfigError, "SL-setting-value", "TRAINER_RUN"):
        Config.from_env({})


@pytest.mark.parametrize(
    ("setting", "value"),
    [("LR", "0"), ("COMPARISON", "../elsewhere"), ("PRECISION", "fp8"), ("FAULT", "kill")],
)
def test_a_value_out_of_range_is_named_and_no_expression_shown(setting, value):
    (found,) = problems(**{f"TRAINER_{setting}": value})
    assert find_codes(found) == ["SL-setting-value"]
    assert found.startswith(f"TRAINER_{setting}={value!r}: ") and "^" not in found


TEXT = {"MODEL": "qwen_tiny", "DATASET": "arithmetic"}
ND = {"STRATEGY": "nd", "MODEL": "qwen_tiny"}


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"MODEL_PATH": "/data/net", "MODEL": "cnn"}, "SL-model-twice"),
        ({"MODEL": "vgg_finetuned", "INIT": "scratch"}, "SL-finetuned-scratch"),
        ({"EPOCHS": "2", "STEPS": "5"}, "SL-epochs-and-steps"),
        ({"STEPS": "5", "WARMUP_STEPS": "5"}, "SL-warmup-above-steps"),
        ({"PROFILE_FIRST_STEP": "1"}, "SL-profile-before-warmup"),
        ({"DATASET": "digits", "DATASET_PATH": "/x"}, "SL-dataset-twice"),
        (TEXT | {"BATCH_NORM": "synchronised"}, "SL-batch-norm-for-text"),
        (TEXT | {"AUGMENT": "mixup"}, "SL-pixels-for-text"),
        (TEXT | {"NORMALIZATION": "imagenet"}, "SL-pixels-for-text"),
        (TEXT | {"TARGET_ACCURACY_PCT": "90"}, "SL-accuracy-for-text"),
        (TEXT | {"TARGET_PERPLEXITY": "1"}, "SL-perplexity-low"),
        ({"TARGET_PERPLEXITY": "9"}, "SL-perplexity-for-images"),
        ({"LORA_ALPHA": "32"}, "SL-lora-alpha-unused"),
        ({"LORA_TARGETS": "q_proj"}, "SL-lora-targets-unused"),
        ({"DISTILL_TEMPERATURE": "3"}, "SL-teacher-setting-unused"),
        ({"MOMENTUM": "0.9", "OPTIMIZER": "adamw"}, "SL-optimizer-setting-unused"),
        ({"BETA2": "0.95", "OPTIMIZER": "sgd"}, "SL-optimizer-setting-unused"),
        ({"STRATEGY": "nd"}, "SL-nd-images"),
        (ND | {"TP": "2", "DP_SHARD": "4"}, "SL-layout-auto-degrees"),
        (ND | {"OFFLOAD": "all"}, "SL-offload-strategy"),
        ({"STRATEGY": "fsdp", "OFFLOAD": "optimizer"}, "SL-offload-strategy"),
        ({"STRATEGY": "zero2", "OFFLOAD": "all"}, "SL-offload-strategy"),
        ({"STRATEGY": "ddp", "PRECISION": "bf16_native"}, "SL-bf16-native-strategy"),
        ({"STRATEGY": "fsdp", "LAYOUT": "given"}, "SL-nd-setting-unused"),
        ({"STRATEGY": "fsdp", "TP": "2"}, "SL-nd-setting-unused"),
        ({"STRATEGY": "zeropp", "ZEROPP": "hpz,xyz"}, "SL-zeropp-part"),
        ({"STRATEGY": "zero3", "ZEROPP": "hpz"}, "SL-zeropp-strategy"),
        ({"FAULT": "kill@3"}, "SL-fault-not-allowed"),
        ({"RESUME_FROM": "demo/a", "RESUME": "never"}, "SL-resume-never"),
        ({"RESUME_FROM": "demo/a", "MODE": "evaluate"}, "SL-resume-from-evaluate"),
        ({"MODEL": "cnn", "MODEL_LAYERS": "3"}, "SL-sizes-of-model"),
        ({"MODEL_PATH": "/m", "MODEL_LAYERS": "3"}, "SL-sizes-of-folder"),
        ({"MODEL": "vit_base", "MODEL_LAYERS": "3", "INIT": "pretrained"}, "SL-sizes-pretrained"),
        (TEXT | {"MODEL_PATCH": "4"}, "SL-size-unknown"),
        ({"STRATEGY": "fsdp", "FLOPS_PROFILER": "true"}, "SL-flops-profiler-strategy"),
        ({"STRATEGY": "zero2", "FLOPS_PROFILER": "true", "COMPILE": "true"}, "SL-flops-profiler-compile"),
        ({"STRATEGY": "zero2", "FLOPS_PROFILER": "true", "PROFILE_WARMUP": "0"}, "SL-flops-profiler-no-warmup"),
        ({"MEMORY_SNAPSHOT": "true", "PROFILE_STEPS": "0"}, "SL-snapshot-no-profile"),
        ({"LOSS_CHUNK_TOKENS": "512"}, "SL-loss-chunks-for-images"),
    ],
)  # fmt: skip
def test_rules_between_settings(settings, code):
    (found,) = problems(**{f"TRAINER_{name}": value for name, value in settings.items()})
    assert find_codes(found) == [code] and "TRAINER_" in found


def test_what_is_said_without_effect_is_taken():
    assert read(TRAINER_LORA_ALPHA="16").lora_rank == 0 and read(
        TRAINER_LORA_ALPHA="32", TRAINER_LORA_RANK="4"
    )
    read(TRAINER_OPTIMIZER="sgd", TRAINER_MOMENTUM="0.9", TRAINER_NESTEROV="true", TRAINER_BETA1="0.9")
    read(TRAINER_BETA1="0.8", TRAINER_BETA2="0", TRAINER_EPS="1e-6", TRAINER_MOMENTUM="0")
    assert read(TRAINER_STRATEGY="fsdp", TRAINER_TP="0").tp == 0
    nd = {f"TRAINER_{name}": value for name, value in ND.items()}
    assert read(**nd, TRAINER_LAYOUT="given", TRAINER_TP="2", TRAINER_DIMENSIONS="3").tp == 2
    assert read(**nd, TRAINER_TP="0", TRAINER_PRECISION="fp16").layout == "auto"
    assert read(TRAINER_STRATEGY="zeropp", TRAINER_FLOPS_PROFILER="true").flops_profiler
    read(TRAINER_LOSS_CHUNK_TOKENS="2048")
    read(TRAINER_MODEL="qwen_tiny", TRAINER_DATASET="arithmetic", TRAINER_LOSS_CHUNK_TOKENS="512")


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


def test_a_setting_of_others_is_refused_with_ours():
    with pytest.raises(ConfigError) as caught:
        Config.from_env({"TRAINER_RUN": "r", "TRAINER_LEARNING_RATE": "2", "TRAINER_MODEL_SIZE": "2"})
    rate, size = caught.value.problems
    assert find_codes(rate) == find_codes(size) == ["SL-setting-unknown"]
    assert "TRAINER_LR " in rate and "TRAINER_MODEL_KV_HEADS" in size


def test_what_a_data_set_and_a_model_are_called_in_tables() -> None:
    named = Config(run="r", dataset="cifar100", model="owner/name")
    assert (named.dataset_name, named.model_name) == ("cifar100", "owner/name")
    local = Config(run="r", dataset_path="/data/pets/", model_path="/data/net")
    assert (local.dataset_name, local.model_name) == ("pets", "net")
