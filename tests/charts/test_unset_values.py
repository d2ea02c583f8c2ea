"""A setting of a values file is taken back with null, under every supported helm."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.charts.rendering import CHARTS, HELMS, ROOT

EXAMPLE = ROOT / "examples" / "llm_tiny.yaml"


def render(program: str, *options: str, chart: str = "llm-1d") -> subprocess.CompletedProcess[str]:
    helm = ROOT / ".tools" / program
    arguments = [helm, "template", "x", CHARTS / chart, "--values", EXAMPLE, *options]
    return subprocess.run([str(part) for part in arguments], capture_output=True, text=True)


@pytest.mark.parametrize("program", HELMS)
def test_a_setting_of_an_example_is_taken_back(program: str) -> None:
    nulls = (
        "steps",
        "deadline_s",
        "comparison",
        "model",
        "lr",
        "activation_checkpointing",
        "profile_first_step",
    )
    done = render(program, *(f"--set=run.config.{name}=null" for name in nulls), "--set=run.config.epochs=2")
    assert done.returncode == 0, done.stderr
    for name in nulls:
        assert f"TRAINER_{name.upper()}" not in done.stdout
    assert "TRAINER_EPOCHS" in done.stdout and "null" not in done.stdout
    assert "/results/default/x" in done.stdout  # as without a comparison


@pytest.mark.parametrize("program", HELMS)
def test_a_strategy_is_the_charts_own(program: str) -> None:
    done = render(program, "--set=run.config.strategy=null", chart="ddp")
    assert done.returncode != 0 or '"ddp"' in done.stdout


@pytest.mark.parametrize("program", HELMS)
def test_a_preparation_leaves_it_out_too(program: str, tmp_path: Path) -> None:
    tokens = (
        "--set=prepare.dataset=arithmetic",
        "--set=prepare.tokenize=qwen_tiny",
        "--set=run.config.seq_len=null",
    )
    done = render(program, *tokens, chart="prepare")
    assert done.returncode == 0, done.stderr
    assert "--seq" not in done.stdout and "--train-samples=512" in done.stdout
