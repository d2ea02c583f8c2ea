"""The Python API as far as it starts nothing: runs, DeepSpeed's configuration, data and models."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stratlab_spec.settings.config import Config
from tests.codes import find_codes, refuses
from tests.trainer.data.text.token_caches import build, text_config
from trainer.api import (
    ConfigError,
    DataMissing,
    ExperimentFailed,
    LoadedData,
    deepspeed_config,
    experiment,
    load_data,
    load_model,
    run_experiment,
)
from trainer.api.experiment import main


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"processes": 1.5}, ["processes='1.5'"]),
        ({"dataset_path": "/a\0b"}, ["dataset_path='/a\\x00b'"]),
        ({"config": "/a\0b"}, ["config='/a\\x00b'"]),
        ({"lr": 0.5, "LR": 0.001}, ["'LR'"]),
        ({"lrr": 1, "steps": -1}, ["lrr", "steps='-1'"]),
    ],
)
def test_what_is_wrong_is_named_as_it_was_given_and_nothing_starts(tmp_path, monkeypatch, given, named):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiment, "_follow", lambda command, echo: pytest.fail(f"started: {command}"))
    with pytest.raises(ConfigError) as refused:
        run_experiment(**given)
    assert all(
        problem.startswith(name) for problem, name in zip(refused.value.problems, named, strict=True)
    ), refused.value.problems


@pytest.mark.parametrize("code", [0, 12])
def test_the_run_is_a_program_with_these_options(tmp_path, monkeypatch, capsys, code):
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done\nexit {code}\n')
    program.chmod(0o755)
    monkeypatch.setattr(experiment.sys, "executable", str(program))
    given = {"processes": 2, "run": "try", "lr": 0.5, "lora_rank": None, "tensorboard": True}
    folder = Path("results/runs/default/try")
    if code:
        with pytest.raises(ExperimentFailed) as failed:
            run_experiment(**given, echo=False)
        assert (failed.value.exit_code, failed.value.folder) == (12, folder) and "lr=0.5" in str(failed.value)
        assert capsys.readouterr().err == ""
    else:
        assert run_experiment(**given) == folder
        settings = ("run=try", "lr=0.5", "lora_rank=null", "tensorboard=true", "run=try")
        typed = [word for pair in settings for word in ("--set", pair)]
        assert capsys.readouterr().err.split() == ["-m", "trainer", "--processes", "2", *typed]


def test_a_call_without_a_name_is_a_new_run(tmp_path):
    now = datetime(2026, 11, 25, 15, 44, tzinfo=UTC)
    env = {"TRAINER_STRATEGY": "ddp", "TRAINER_RESULTS": str(tmp_path)}
    assert experiment.name_by_time(env, now) == "ddp-20261125-154400"
    (tmp_path / "default/ddp-20261125-154400").mkdir(parents=True)
    assert experiment.name_by_time(env, now) == "ddp-20261125-154400-2"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"nodes": 0}, "nodes=0"),
        ({"processes": 0}, "processes='0'"),
        ({"labels": -5}, "labels=-5"),
        ({"strategy": "ddp"}, "strategy='ddp'"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"strategy": "zeropp"}, "hpz"),  # nothing to it on one node
    ],
)
def test_what_is_wrong_is_named_as_it_was_given(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        deepspeed_config(**{"strategy": "zero3", "processes": 2, "model": "cnn", **given})
    assert named in str(refused.value) and "TRAINER_" not in str(refused.value)


def test_the_command_says_it_in_a_sentence(capsys) -> None:
    assert main(["--set", "strategy=fsdp"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and find_codes(said.err) == ["SL-not-deepspeed"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has just ended and left no weights."""
    folder = tmp_path / "demo" / "short"
    folder.mkdir(parents=True)
    asked = Config(run="short", model="cnn", image_size=8)
    content = {"config": asked.model_dump(), "resolved": {"image_size": 8}}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def test_weights_that_are_not_there(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataMissing) as missing:
        load_model(run)
    assert "checkpoint_every" in str(missing.value) and "checkpoint_minutes" in str(missing.value)
    for given, named in (({"weights": "bst"}, "weights="), ({"weights": 5}, "weights=")):
        with pytest.raises(ConfigError) as refused:
            load_model(run, **given)
        assert str(refused.value).startswith(named)
    with pytest.raises(DataMissing):
        load_model(run, weights=str(tmp_path))


def test_beside_a_run_directory_stands_nothing_but_a_path(run: Path, tmp_path: Path) -> None:
    for path in (5, ["a"]):
        with refuses(ConfigError, "SL-setting-no-path") as refused:
            load_data(run, dataset_path=path)  # type: ignore[arg-type]
        assert str(refused.value)[:13] == "dataset_path="
        with refuses(ConfigError, "SL-run-no-path"):
            load_data(path)  # type: ignore[arg-type]
    with refuses(ConfigError, "SL-setting-beside-run") as refused:
        load_model(run, lr=1e-3)
    assert str(refused.value).startswith("lr: ")
    with pytest.raises(DataMissing) as missing:
        load_data(run, dataset_path=tmp_path / "absent")  # type: ignore[arg-type]
    assert str(missing.value).startswith("dataset_path=")
    with pytest.raises(ConfigError) as refused:
        load_model(tmp_path)
    assert str(tmp_path) in str(refused.value)


def test_a_loaded_data_set_is_read_by_its_own_micro_batch(tmp_path):
    config = text_config(tmp_path, train_samples=300, micro_batch_size=3)
    inputs, labels = next(iter(LoadedData(config, build(config)).evaluation_batches("test")))
    assert inputs.shape[0] == labels.shape[0] == 3


def test_what_a_gpu_changes() -> None:
    given = {"processes": 2, "model": "cnn", "image_size": 8, "global_batch_size": 32, "micro_batch_size": 8}
    zero3 = deepspeed_config(strategy="zero3", offload="all", precision="bf16_native", **given)
    section = zero3["zero_optimization"]
    assert section["stage"] == 3 and section["offload_param"] == {"device": "cpu", "pin_memory": True}
    assert zero3["bf16"]["enabled"] and zero3["train_micro_batch_size_per_gpu"] == 8
    zeropp = deepspeed_config(strategy="zeropp", nodes=2, **given)
    assert zeropp["zero_optimization"]["zero_hpz_partition_size"] == 2
    assert zeropp["gradient_accumulation_steps"] == 1
