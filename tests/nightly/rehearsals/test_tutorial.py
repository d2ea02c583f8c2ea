"""The laptop's part of docs/tutorial.md: its commands in their order, with somebody's own pictures."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
from PIL import Image

from tests.documents.commands import ROOT, read_section

SECTIONS = (
    "1. See an answer (5 minutes)",
    "2. Look into a run (10 minutes)",
    "3. Change one thing (10 minutes)",
    "4. Your own data and model (30 minutes)",
)
CLASSES, IMAGES = 3, 60


def draw_pets(folder: Path) -> None:
    """One folder per class: noise around a colour of its own."""
    random = np.random.default_rng(0)
    for number in range(CLASSES):
        (folder / f"pet{number}").mkdir(parents=True)
        for index in range(IMAGES):
            pixels = random.integers(0, 80, (64, 64, 3), dtype=np.uint8)
            pixels[..., number] += 120
            Image.fromarray(pixels).save(folder / f"pet{number}" / f"{index}.png")


def read_values(page: Path, pets: Path) -> str:
    (block,) = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return block.replace("/data/pets", str(pets))


def test_the_tutorial_as_it_stands(tmp_path: Path) -> None:
    page, results, values = (
        ROOT / "docs" / "tutorial.md",
        tmp_path / "demo-results",
        tmp_path / "my-values.yaml",
    )
    draw_pets(tmp_path / "pets")
    values.write_text(read_values(page, tmp_path / "pets"))
    commands = [command for title in SECTIONS for command in read_section(title, page)]
    assert commands[0] == "make demo" and len(commands) == 9  # also those within a sentence
    for command in commands:
        line = command.replace("demo-results", str(results)).replace("my-values.yaml", str(values))
        line = f"make demo DEMO={results}" if command == "make demo" else line
        done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-3000:]}"
    for comparison, runs in (("half", ["ddp", "zero2"]), ("pets", ["ddp", "fsdp"])):
        report = json.loads((results / "runs" / comparison / "report" / "report.json").read_text())
        assert [run["run"] for run in report["runs"]] == runs
        summaries = [results / "runs" / comparison / run / "summary.json" for run in runs]
        assert min(json.loads(path.read_text())["measured_steps"] for path in summaries) >= 10
        assert report["fairness"]["verdict"] == "comparable", report["fairness"]["reason"]
