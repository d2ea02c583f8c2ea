"""All runs are checked before the first one starts: the trainer is asked once for all of them."""

import os
import sys

from stratlab.trainer_program import Answers, ask_trainer, list_notes, list_refusals

PYTHON = (sys.executable, "-m", "trainer")


def settings(tmp_path, **changes):
    given = {"run": "a", "results": str(tmp_path), "strategy": "ddp", "model": "cnn"} | changes
    return {f"TRAINER_{name.upper()}": value for name, value in given.items()}


def test_every_run_is_judged_and_none_is_started(tmp_path):
    finished = tmp_path / "default" / "b"
    finished.mkdir(parents=True)
    (finished / "summary.json").write_text("{}")
    runs = {
        "good": settings(tmp_path),
        "bad": settings(tmp_path, lr="-1", model="vitt"),
        "dataless": settings(tmp_path, dataset_path="/nowhere/pets"),
        "finished": settings(tmp_path, run="b"),
    }
    answers = ask_trainer(runs, os.environ, [], PYTHON)
    assert answers.reason == ""
    codes = {name: code for name, (code, _) in answers.refused.items()}
    assert codes == {"bad": 2, "dataless": 3, "finished": 2}
    lines = "\n".join(list_refusals(answers, len(runs)))
    assert "bad: run.config.lr='-1'" in lines and "bad: run.config.model='vitt'" in lines
    assert [path.name for path in (tmp_path / "default").iterdir()] == ["b"]
    assert ask_trainer({"b": runs["finished"]}, os.environ, ["--replace"], PYTHON) == Answers({})


def test_elsewhere_neither_data_nor_folders_are_looked_at(tmp_path):
    prepared = "/results/_prepared/pets"
    there = settings(tmp_path, dataset_path=prepared, model_path="/results/_prepared/vit", results="/nowhere")
    del there["TRAINER_MODEL"]  # two names of a model are refused
    runs = {
        "there": there | {"PET_NNODES": "2"},
        "hub": settings(tmp_path, dataset="no/such", results="/nowhere/at/all", model="vit_base"),
        "batch": settings(tmp_path, dataset_path=prepared, global_batch_size="50"),
        "short": settings(tmp_path, dataset_path=prepared, steps="3"),
    }
    refused = ask_trainer(runs, os.environ, ["--elsewhere"], PYTHON).refused
    assert {name: len(problems) for name, (_, problems) in refused.items()} == {"batch": 1, "short": 1}
    assert refused["short"][1][0].startswith("TRAINER_PROFILE_STEPS=3: ")


def test_a_sentence_names_the_settings_as_a_chart_does_and_is_said_once():
    problem = "TRAINER_WARMUP_STEPS=20: must be below TRAINER_STEPS=4; TRAINER_WAIT_S and MY_TRAINER_LR stay"
    told = (
        "run.config.warmup_steps=20: must be below run.config.steps=4; TRAINER_WAIT_S and MY_TRAINER_LR stay"
    )
    assert list_refusals(Answers({"a": (2, [problem])}), 1) == [told]
    answers = Answers({"a": (2, ["x", "y"]), "b": (2, ["x"])})
    assert list_refusals(answers, 3) == ["a, b: x", "a: y"]
    assert list_notes(Answers({}, notes={"a": [problem], "b": [problem]}), 2) == [f"a, b: {told}"]


def test_processes_on_several_nodes_are_told_with_the_nodes_that_a_chart_sets():
    answers = Answers({"hsdp": (2, ["must be a multiple of 16 x 4 processes = 64"])})
    two = {"hsdp": {"PET_NNODES": "2:2", "PET_NPROC_PER_NODE": "2"}}
    (line,) = list_refusals(answers, 1, two)
    assert "x 4 processes (run.nodes=2, " in line and "run.processesPerNode=2) = 64" in line
    one = {"hsdp": {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "4"}}
    assert list_refusals(answers, 1, one) == ["must be a multiple of 16 x 4 processes = 64"]
