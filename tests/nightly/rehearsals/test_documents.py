"""What the documents have a user do here, in their order: demo, quickstart, tuning, distillation, a notebook."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.documents.commands import ROOT, read_section, split
from tests.notebooks.cells import TWO_T4, read_cells

STRATLAB = Path(sys.executable).with_name("stratlab")
QUICKSTART = ROOT / "docs" / "start.md"
SECTIONS = (
    "1. Read the answer (5 minutes)", "2. Look into a run (5 minutes)",
    "3. Change one thing (10 minutes)", "4. Use your own data and model (30 minutes)",
)  # fmt: skip
FEWER = ("--set", "run.config.epochs=2", "--set", "run.config.profile_steps=3")


def run(*words: str | Path, timeout_s: float = 1800, **variables: str) -> str:
    command, env = [str(word) for word in words], os.environ | variables
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-3000:]}"
    return done.stdout


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def check_comparable(report: dict[str, Any], runs: list[str], name: str = "run") -> None:
    assert [(row[name], row["status"]) for row in report["runs"]] == [(run, "finished") for run in runs]
    assert report["fairness"]["verdict"] == "comparable", report["fairness"]["reason"]


def draw_pets(folder: Path) -> None:
    """One folder per class: noise around a colour of its own."""
    random = np.random.default_rng(0)
    for number in range(3):
        (folder / f"pet{number}").mkdir(parents=True)
        for index in range(60):
            pixels = random.integers(0, 80, (64, 64, 3), dtype=np.uint8)
            pixels[..., number] += 120
            Image.fromarray(pixels).save(folder / f"pet{number}" / f"{index}.png")


def test_the_quickstart_as_it_stands(tmp_path: Path) -> None:
    """Its first command is the demo, which ends with its answer; then somebody's own pictures."""
    results, values = tmp_path / "demo-results", tmp_path / "my-values.yaml"
    draw_pets(tmp_path / "pets")
    (block,) = re.findall(r"^```yaml\n(.*?)^```", QUICKSTART.read_text(), re.DOTALL | re.MULTILINE)
    values.write_text(block.replace("/data/pets", str(tmp_path / "pets")))
    demo, *commands = [command for title in SECTIONS for command in read_section(title, QUICKSTART)]
    assert demo == "make demo" and len(commands) == 8  # also those within a sentence
    said = run("make", "demo", f"DEMO={results}")
    assert said.count("stratlab mlflow ") == 1 and "stratlab compare " not in said
    report = read(results / "report.json")
    check_comparable(report, ["ddp", "fsdp", "zero2"], "strategy")
    assert all(row["test_accuracy_pct"] >= 95.0 for row in report["runs"])
    assert (results / "report.html").exists()
    for command in commands:
        line = command.replace("demo-results", str(results)).replace("my-values.yaml", str(values))
        run("bash", "-c", line)
    for comparison, runs in (("half", ["ddp", "zero2"]), ("pets", ["ddp", "fsdp"])):
        check_comparable(read(results / "runs" / comparison / "report" / "report.json"), runs)
        summaries = [read(results / "runs" / comparison / name / "summary.json") for name in runs]
        assert min(summary["measured_steps"] for summary in summaries) >= 10


def test_the_best_of_each_is_compared_and_the_report_says_how(tmp_path: Path) -> None:
    """`examples/tuned.yaml` by the rehearsal way: tuned, run, compared; a second start repeats nothing."""
    sweep = (STRATLAB, "sweep", "examples/tuned.yaml", "--rehearse", tmp_path)

    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/summary.json")}

    run(*sweep)
    report = read(tmp_path / "report" / "report.json")
    assert report["fairness"]["verdict"] == "comparable" and report["fairness"]["same"]["tuning"] == "tuned"
    tried = [search["tried"] for search in report["tuning"]["searches"]]
    assert [len(each["values"]) for several in tried for each in several] == [2] * 6 and len(tried) == 2
    assert len(report["runs"]) == 4, "the candidates are a comparison of their own"
    assert len(list((tmp_path / "runs" / "digits-tuned-tuning").glob("*/summary.json"))) == 12
    before = times()
    run(*sweep)
    assert times() == before


def test_students_of_one_teacher_are_comparable_and_the_one_without_is_not(tmp_path: Path) -> None:
    commands = read_section("Try it here", ROOT / "docs" / "distillation.md")
    assert [split(command)[1] for command in commands] == ["rehearse", "rehearse", "rehearse", "compare"]
    for command in commands:
        _, verb, *arguments = [word.replace("distil-results", str(tmp_path)) for word in split(command)]
        run(STRATLAB, verb, *arguments, *(FEWER if verb == "rehearse" else ()))
    students, losses = tmp_path / "runs" / "students", {}
    facts = {name: read(students / name / "config.json")["resolved"] for name in ("ddp", "fsdp", "zero2")}
    fairness = read(tmp_path / "report.json")["fairness"]
    assert fairness["groups"] == [["ddp", "fsdp"], ["zero2"]] and fairness["verdict"] == "not comparable"
    (teacher,) = [entry for entry in fairness["differences"] if entry["field"] == "teacher_sha256"]
    assert teacher["matters"] and teacher["values"]["ddp"] == teacher["values"]["fsdp"]
    assert teacher["values"]["ddp"] == facts["ddp"]["teacher_sha256"] != teacher["values"]["zero2"]
    for name in facts:
        lines = [json.loads(line) for line in (students / name / "metrics.jsonl").read_text().splitlines()]
        losses[name] = [line["loss"] for line in lines if line["kind"] == "train"]
    assert losses["fsdp"] == pytest.approx(losses["ddp"], abs=1e-4)
    assert losses["zero2"] != pytest.approx(losses["ddp"], abs=1e-2)
    whole, alone = (facts[name]["flops_per_sample"] for name in ("ddp", "zero2"))
    assert whole == alone + facts["ddp"]["teacher_flops_per_sample"]


def test_every_cell_of_two_t4_in_its_order(tmp_path: Path) -> None:
    """notebooks/two_t4.ipynb on a machine without GPUs: the small form."""
    program = tmp_path / "cells.py"
    program.write_text("\n\n".join(read_cells(TWO_T4)))
    run(sys.executable, program, STRATLAB_OUT=str(tmp_path / "out"))
    check_comparable(read(tmp_path / "out" / "report" / "report.json"), ["ddp", "zero2", "zero3"], "strategy")
