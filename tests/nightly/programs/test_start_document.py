"""The commands of docs/start.md that start the trainer, as they stand there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.commands import ROOT, read_commands, split

COMMANDS = sorted(
    command
    for command, files in read_commands().items()
    if command.startswith("python -m trainer --config")
    and not files & {"docs/stops.md", "examples/faults.yaml", "docs/python-api.md"}
)


assert len(COMMANDS) >= 3


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_trains(command: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    arguments = split(command)[1:]
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    env |= {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, *arguments]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    (summary,) = (tmp_path / "results/runs").glob("*/*/summary.json")
    strategy = next((word[9:] for word in arguments if word.startswith("strategy=")), "ddp")
    assert json.loads(summary.read_text())["strategy"] == strategy
    assert str(summary.parent.relative_to(tmp_path)) in done.stderr
