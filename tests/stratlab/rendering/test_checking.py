"""All runs are checked before the first one starts: the trainer is asked once for all of them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from stratlab.rendering.checking import Answers, ask_trainer, list_refusals

PYTHON = (sys.executable, "-m", "trainer")


def settings(tmp_path: Path, **changes: str) -> dict[str, str]:
    given = {"run": "a", "results": str(tmp_path), "strategy": "ddp", "model": "cnn"} | changes
    return {f"TRAINER_{name.upper()}": value for name, value in given.items()}


def test_a_check_that_takes_long_is_heard_of_and_ends_with_who_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "program.py").write_text(
        "import json, sys, time; asked = json.load(sys.stdin); time.sleep(0.9)\n"
        "print(json.dumps({name: {'code': 2, 'problems': [name * 3]} for name in asked}))"
    )
    monkeypatch.setattr("stratlab.rendering.checking.WAITING_S", 0.2)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    heard: list[float] = []
    program = (sys.executable, "-m", "slow")
    answers = ask_trainer({"a": {}}, environ, [], program, heard.append)
    assert answers.refused == {"a": (2, ["aaa"])}
    assert len(heard) >= 2
    assert heard == sorted(heard)

    def give_up(seconds: float) -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        ask_trainer({"a": {}}, environ, [], program, give_up)
    assert time.monotonic() - began < 0.8  # the process has been ended, not waited for


def test_many_runs_are_asked_for_of_a_trainer_that_is_slow_to_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a pipe holds, and read late."""
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "program.py").write_text(
        "import json, sys, time; time.sleep(0.7); asked = json.load(sys.stdin)\n"
        "print(json.dumps({name: {'code': 0, 'problems': []} for name in asked}))"
    )
    monkeypatch.setattr("stratlab.rendering.checking.WAITING_S", 0.1)
    heard: list[float] = []

    def hear(seconds: float) -> None:
        heard.append(seconds)
        assert seconds < 20, "it waits for ever"

    runs = {f"run-{number}": {"TRAINER_RUN": "x" * 2000} for number in range(100)}
    answers = ask_trainer(
        runs, {**os.environ, "PYTHONPATH": str(tmp_path)}, [], (sys.executable, "-m", "late"), hear
    )
    assert answers == Answers({}) and len(heard) >= 2


def test_every_run_is_judged_and_none_is_started(tmp_path: Path) -> None:
    runs = {
        "good": settings(tmp_path),
        "bad": settings(tmp_path, lr="-1", model="vitt"),
        "alone": settings(tmp_path, strategy="single") | {"PET_NNODES": "2"},
        "dataless": settings(tmp_path, dataset_path="/nowhere/pets"),
    }
    answers = ask_trainer(runs, os.environ, [], PYTHON)
    assert answers.reason == ""
    assert {name: code for name, (code, _) in answers.refused.items()} == {
        "bad": 2,
        "alone": 2,
        "dataless": 3,
    }
    lines = "\n".join(list_refusals(answers, len(runs)))
    for words in (
        "bad: run.config.lr='-1'",
        "bad: run.config.model='vitt'",
        "alone: strategy single runs in 1 process",
    ):
        assert words in lines
    assert not (tmp_path / "default").exists()


def test_a_sentence_names_the_settings_as_a_chart_does() -> None:
    problem = "TRAINER_WARMUP_STEPS=20: must be below TRAINER_STEPS=4; TRAINER_WAIT_S and MY_TRAINER_LR stay"
    assert list_refusals(Answers({"a": (2, [problem])}), 1) == [
        "run.config.warmup_steps=20: must be below run.config.steps=4; TRAINER_WAIT_S and MY_TRAINER_LR stay"
    ]


def test_elsewhere_neither_data_nor_folders_are_looked_at(tmp_path: Path) -> None:
    runs = {
        "there": settings(
            tmp_path, dataset_path="/results/_prepared/pets", model_path="/results/_prepared/vit"
        )
        | {"PET_NNODES": "2"},
        "hub": settings(tmp_path, dataset="no/such", results="/nowhere/at/all", model="vit_base"),
        "scale": settings(tmp_path, model="vit_huge"),
        "batch": settings(tmp_path, dataset_path="/results/_prepared/pets", global_batch_size="50"),
        "short": settings(tmp_path, dataset_path="/results/_prepared/pets", steps="3"),
    }
    del runs["there"]["TRAINER_MODEL"]  # two names of a model are refused
    refused = ask_trainer(runs, os.environ, ["--elsewhere"], PYTHON).refused
    assert {name: len(problems) for name, (_, problems) in refused.items()} == {
        "scale": 1,
        "batch": 1,
        "short": 1,
    }
    assert "enlarged 28 times" in refused["scale"][1][0]
    assert refused["short"][1][0].startswith(
        "TRAINER_PROFILE_STEPS=3: the run has 3 steps, of which 2 steps can"
    )


def test_a_run_that_has_finished_is_refused_unless_it_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "default" / "a"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text("{}")
    runs = {"a": settings(tmp_path)}
    (sentence,) = ask_trainer(runs, os.environ, [], PYTHON).refused["a"][1]
    assert "has finished already" in sentence
    assert ask_trainer(runs, os.environ, ["--replace"], PYTHON) == Answers({})


def test_a_trainer_that_cannot_be_asked_is_no_refusal(tmp_path: Path) -> None:
    answers = ask_trainer({"a": settings(tmp_path)}, os.environ, ["--nope"], PYTHON)
    assert answers.refused == {} and "--nope" in answers.reason


def test_a_sentence_of_several_runs_is_said_once() -> None:
    answers = Answers({"a": (2, ["x", "y"]), "b": (2, ["x"])})
    assert list_refusals(answers, 3) == ["a, b: x", "a: y"]
    assert list_refusals(Answers({"a": (2, ["x"])}), 1) == ["x"]


def test_processes_on_several_nodes_are_told_with_the_nodes_that_a_chart_sets() -> None:
    answers = Answers({"hsdp": (2, ["must be a multiple of 16 x 4 processes = 64"])})
    two = {"hsdp": {"PET_NNODES": "2:2", "PET_NPROC_PER_NODE": "2"}}
    [line] = list_refusals(answers, 1, two)
    assert "x 4 processes (run.nodes=2, the chart's unless given, x run.processesPerNode=2) = 64" in line
    one = {"hsdp": {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "4"}}
    assert list_refusals(answers, 1, one) == ["must be a multiple of 16 x 4 processes = 64"]
