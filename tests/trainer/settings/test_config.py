from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.settings.config import Config, ConfigError
from trainer.settings.schema import USAGE, schema
from trainer.settings.strategy_table import STRATEGIES


def read(**settings: str) -> Config:
    return Config.from_env({"PATH": "/bin", "TRAINER_RUN": "try"} | settings)


def problems(**settings: str) -> list[str]:
    with pytest.raises(ConfigError) as failure:
        read(**settings)
    return failure.value.problems


def test_every_setting_is_read_somewhere():
    """One that nothing asks for would be recorded, audited, and without effect."""
    sources = [path for path in Path("trainer").rglob("*.py") if path.name != "fields.py"]
    text = "\n".join(path.read_text() for path in sources)
    idle = [name for name in Config.model_fields if not re.search(rf"\.{name}\b|['\"]{name}['\"]", text)]
    assert not idle, f"nothing in trainer/ reads {', '.join(idle)}"


def test_rules_are_said_beside_unknown_names_and_behind_wrong_values() -> None:
    rule = {"TRAINER_OPTIMIZER": "sgd", "TRAINER_NESTEROV": "true", "TRAINER_MOMENTUM": "0"}
    assert len(problems(TRAINER_LRR="1", **rule)) == 2
    assert len(problems(TRAINER_LR="x", TRAINER_STRATEGY="dpp", **rule)) == 2


def test_a_scale_of_adapters_needs_adapters() -> None:
    said = problems(TRAINER_LORA_ALPHA="32")
    assert said == ["TRAINER_LORA_ALPHA=32: has no effect without TRAINER_LORA_RANK above 0"]
    assert read(TRAINER_LORA_ALPHA="32", TRAINER_LORA_RANK="4").lora_alpha == 32
    assert read(TRAINER_LORA_ALPHA="16").lora_rank == 0  # what it is without being named


def test_a_model_is_named_once() -> None:
    (said,) = problems(TRAINER_MODEL_PATH="/data/net", TRAINER_MODEL="cnn")
    assert said.endswith("TRAINER_MODEL=null takes back what a chart or a file names")


def test_a_variable_has_one_spelling() -> None:
    said = problems(TRAINER_lr="0.5", TRAINER_LR="0.001")
    assert said == ["TRAINER_lr: the name of a variable is all in capital letters"]


def test_values_are_read_with_their_types():
    config = read(TRAINER_LR="1e-4", TRAINER_STEPS="16777216", TRAINER_PROFILE_MEMORY="false")
    assert (config.lr, config.steps, config.profile_memory) == (1e-4, 16777216, False)


@pytest.mark.parametrize(
    "place", ["trainer.settings.fields.is_reserved", "trainer.settings.config.broken_settings"]
)
def test_a_bug_in_a_rule_is_no_answer_to_the_user(monkeypatch, place):
    def broken(*_):
        raise ValueError("a bug of ours")

    monkeypatch.setattr(place, broken)
    with pytest.raises(ValueError, match="a bug of ours") as failure:
        read(TRAINER_RESULTS="/results")
    assert not isinstance(failure.value, ConfigError)


def test_a_misspelt_name_is_refused_with_the_nearest_one():
    assert problems(TRAINER_CLIP_NROM="1") == [
        "TRAINER_CLIP_NROM: unknown setting, did you mean TRAINER_CLIP_NORM?"
    ]


def test_a_name_like_no_other_is_refused_without_a_hint():
    assert problems(TRAINER_XYZZY="1") == ["TRAINER_XYZZY: unknown setting"]


def test_all_problems_are_named_at_once():
    found = "\n".join(problems(TRAINER_TPP="2", TRAINER_LR="abc", TRAINER_STRATEGY="zero4"))
    assert "TRAINER_TPP: unknown setting" in found
    assert "TRAINER_LR='abc'" in found
    assert f"TRAINER_STRATEGY='zero4': expected one of {', '.join(STRATEGIES)}" in found


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("GLOBAL_BATCH_SIZE", "0"),
        ("LR", "0"),
        ("LR", "-1"),
        ("VALIDATION_FRACTION", "1"),
        ("CLIP_NORM", "-0.1"),
        ("COMPARISON", "../elsewhere"),
        ("COMPARISON", ""),
        ("PRECISION", "fp8"),
        ("SEED", "1.5"),
        ("PROFILE_MEMORY", "perhaps"),
        ("DATASET", ""),
    ],
)
def test_a_value_out_of_range_is_named(setting, value):
    (found,) = problems(**{f"TRAINER_{setting}": value})
    assert found.startswith(f"TRAINER_{setting}={value!r}: ")


def test_what_is_recomputed_is_refused_in_words():
    with pytest.raises(ConfigError) as failure:
        Config.from_env({"TRAINER_RUN": "x", "TRAINER_ACTIVATION_CHECKPOINTING": "every_1"})
    (problem,) = failure.value.problems
    assert problem == (
        "TRAINER_ACTIVATION_CHECKPOINTING='every_1': expected none, selective, blocks, every_2 to every_999"
    )


def test_help_says_what_is_not_checked():
    assert "What depends on the number of processes and on the device" in USAGE


def test_what_a_pattern_allows_is_said_in_words():
    assert problems(TRAINER_COMPARISON="../elsewhere", TRAINER_FAULT="kill") == [
        "TRAINER_COMPARISON='../elsewhere': expected letters, digits, '.', '_' and '-', with a letter or a digit first",
        "TRAINER_FAULT='kill': expected kind@step[:rank], several with commas, each once or, with ! behind it, in "
        "every attempt; kinds: kill, hang, slow, nan, oom, disk-full, corrupt",
    ]
    for name in Config.model_fields:
        if any(getattr(each, "pattern", None) for each in Config.model_fields[name].metadata):
            (found,) = problems(**{f"TRAINER_{name.upper()}": " ?"})
            assert "expected " in found and "^" not in found, found


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"TRAINER_EPOCHS": "2", "TRAINER_STEPS": "5"}, "give one of them"),
        ({"TRAINER_STEPS": "5", "TRAINER_WARMUP_STEPS": "5"}, "TRAINER_WARMUP_STEPS=5: must be below"),
        ({"TRAINER_PROFILE_FIRST_STEP": "1"}, "TRAINER_PROFILE_FIRST_STEP=1: must be above"),
        ({"TRAINER_DATASET": "digits", "TRAINER_DATASET_PATH": "/x"}, "digits is built in"),
        (
            {"TRAINER_MODEL": "qwen_tiny", "TRAINER_BATCH_NORM": "synchronised"},
            "TRAINER_BATCH_NORM=synchronised: a language model has no batch norm; leave it out",
        ),
        *(
            (
                {"TRAINER_MODEL": "qwen_tiny", "TRAINER_" + name: value},
                f"TRAINER_{name}={value}: a language model sees no pixels; leave it out",
            )
            for name, value in (("AUGMENT", "mixup"), ("IMAGE_SIZE", "64"), ("NORMALIZATION", "imagenet"))
        ),
    ],
)
def test_rules_between_settings(settings, sentence):
    assert sentence in "\n".join(problems(**settings))


@pytest.mark.parametrize(
    ("optimizer", "settings", "sentence"),
    [
        (
            "adamw",
            {"MOMENTUM": "0.9"},
            "TRAINER_MOMENTUM=0.9: has no effect with optimizer adamw, only with sgd",
        ),
        ("sgd", {"EPS": "1e-6"}, "TRAINER_EPS=1e-06: has no effect with optimizer sgd, only with adamw"),
        ("sgd", {"BETA2": "0.95"}, "TRAINER_BETA2=0.95: has no effect with optimizer sgd, only with adamw"),
        ("sgd", {"NESTEROV": "true"}, "TRAINER_NESTEROV=true: needs TRAINER_MOMENTUM above 0"),
    ],
)
def test_what_the_optimizer_does_not_have_is_refused(optimizer, settings, sentence):
    given = {f"TRAINER_{name}": value for name, value in settings.items()}
    assert problems(TRAINER_OPTIMIZER=optimizer, **given) == [sentence]


def test_numbers_of_an_optimizer_are_taken_by_it_and_their_defaults_by_both():
    read(TRAINER_OPTIMIZER="sgd", TRAINER_MOMENTUM="0.9", TRAINER_NESTEROV="true", TRAINER_BETA1="0.9")
    read(TRAINER_BETA1="0.8", TRAINER_BETA2="0", TRAINER_EPS="1e-6", TRAINER_MOMENTUM="0")


ND = {"TRAINER_STRATEGY": "nd", "TRAINER_MODEL": "qwen_tiny"}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"TRAINER_MODEL": "vit_tiny"}, "TRAINER_STRATEGY=nd: trains language models, not images"),
        (
            {"TRAINER_TP": "2", "TRAINER_DP_SHARD": "4"},
            "TRAINER_LAYOUT=auto, TRAINER_DP_SHARD=4, TRAINER_TP=2: auto",
        ),
        ({"TRAINER_OFFLOAD": "all"}, "TRAINER_OFFLOAD=all: strategy nd can keep there only none"),
    ],
)
def test_what_nd_cannot_do_is_refused(settings, sentence):
    (found,) = problems(**ND | settings)
    assert found.startswith(sentence)


def test_nd_takes_degrees_that_are_given():
    assert read(**ND, TRAINER_LAYOUT="given", TRAINER_TP="2", TRAINER_DIMENSIONS="3").tp == 2
    assert read(**ND, TRAINER_TP="0", TRAINER_LABEL_SMOOTHING="0.1").layout == "auto"
    assert read(**ND, TRAINER_PRECISION="fp16").precision == "fp16"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("LAYOUT", "given"), ("DIMENSIONS", "3"), ("CP", "2"), ("TP", "2"), ("PP", "2"), ("EP", "2")),
        *(("PP_SCHEDULE", "gpipe"), ("CP_KIND", "allgather"), ("SEQUENCE_PARALLEL", "on")),
    ],
)
def test_settings_of_nd_have_no_effect_elsewhere(name, value):
    assert problems(TRAINER_STRATEGY="fsdp", **{f"TRAINER_{name}": value}) == [
        f"TRAINER_{name}: has no effect with strategy fsdp, only with nd"
    ]


def test_a_degree_of_zero_names_nothing():
    assert read(TRAINER_STRATEGY="fsdp", TRAINER_TP="0").tp == 0


def test_the_run_must_be_named():
    with pytest.raises(ConfigError, match="TRAINER_RUN: field required"):
        Config.from_env({})


def test_schema_leaves_out_what_the_chart_fills():
    names = set(schema()["properties"])
    filled = {"run", "results", "image", "accelerator", "wait_s", "grace_s", "allow_faults"}
    assert names == set(Config.model_fields) - filled
    assert schema()["additionalProperties"] is False


def test_schema_is_printed_by_the_module():
    done = subprocess.run(
        [sys.executable, "-m", "trainer.settings", "--schema"], capture_output=True, text=True
    )
    assert done.returncode == 0 and json.loads(done.stdout) == schema()
    done = subprocess.run([sys.executable, "-m", "trainer.settings", "--shcema"], capture_output=True)
    assert done.returncode == 2


def test_a_target_is_of_the_task_and_can_be_reached():
    text = {"TRAINER_MODEL": "qwen_tiny", "TRAINER_DATASET": "arithmetic"}
    assert read(TRAINER_TARGET_ACCURACY_PCT="90").target_accuracy_pct == 90
    assert read(**text, TRAINER_TARGET_PERPLEXITY="9.5").target_perplexity == 9.5
    assert "give TRAINER_TARGET_PERPLEXITY" in problems(**text, TRAINER_TARGET_ACCURACY_PCT="90")[0]
    assert "give TRAINER_TARGET_ACCURACY_PCT" in problems(TRAINER_TARGET_PERPLEXITY="9")[0]
    assert "give more than 1" in problems(**text, TRAINER_TARGET_PERPLEXITY="1")[0]
    assert "TRAINER_TARGET_ACCURACY_PCT" in problems(TRAINER_TARGET_ACCURACY_PCT="101")[0]


def test_images_have_no_chunks_of_tokens():
    (problem,) = problems(TRAINER_LOSS_CHUNK_TOKENS="512")
    assert problem.startswith("TRAINER_LOSS_CHUNK_TOKENS=512: images have no tokens")
    assert read(TRAINER_LOSS_CHUNK_TOKENS="2048").loss_chunk_tokens == 2048, "as a chart gives it"
    assert read(TRAINER_MODEL="qwen_tiny", TRAINER_DATASET="arithmetic", TRAINER_LOSS_CHUNK_TOKENS="512")
