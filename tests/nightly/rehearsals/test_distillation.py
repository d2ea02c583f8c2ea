"""The commands of docs/distillation.md in their order, with less training: a teacher, students, who is comparable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.documents.commands import ROOT, read_section, split
from tests.rehearsals.test_comparison import stratlab

FEWER = ("--set", "run.config.epochs=2", "--set", "run.config.profile_steps=3")
STUDENTS = ("ddp", "fsdp", "zero2")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distil")
    commands = read_section("Here", ROOT / "docs" / "distillation.md")
    assert [split(command)[1] for command in commands] == ["rehearse", "rehearse", "rehearse", "compare"]
    for command in commands:
        _, verb, *arguments = [word.replace("distil-results", str(folder)) for word in split(command)]
        done = stratlab(verb, *arguments, *(FEWER if verb == "rehearse" else ()))
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return folder


def facts(results: Path, run: str) -> dict[str, Any]:
    return json.loads((results / "runs" / "students" / run / "config.json").read_text())["resolved"]


def test_students_of_one_teacher_are_comparable_and_the_one_without_is_not(results: Path) -> None:
    fairness = json.loads((results / "report.json").read_text())["fairness"]
    assert fairness["groups"] == [["ddp", "fsdp"], ["zero2"]]
    assert fairness["verdict"] == "not comparable"
    (teacher,) = [entry for entry in fairness["differences"] if entry["field"] == "teacher_sha256"]
    assert teacher["matters"] and teacher["values"]["zero2"] == "no teacher"
    assert teacher["values"]["ddp"] == teacher["values"]["fsdp"] == facts(results, "ddp")["teacher_sha256"]


def test_they_learn_the_same_from_it(results: Path) -> None:
    losses = {}
    for run in STUDENTS:
        text = (results / "runs" / "students" / run / "metrics.jsonl").read_text()
        losses[run] = [x["loss"] for x in map(json.loads, text.splitlines()) if x["kind"] == "train"]
    assert losses["fsdp"] == pytest.approx(losses["ddp"], abs=1e-4)
    assert losses["zero2"] != pytest.approx(losses["ddp"], abs=1e-2)
    whole, alone = (facts(results, run)["flops_per_sample"] for run in ("ddp", "zero2"))
    assert whole == alone + facts(results, "ddp")["teacher_flops_per_sample"]
