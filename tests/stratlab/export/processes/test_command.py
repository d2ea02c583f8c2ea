import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.commands import read_commands, split
from tests.trainer.launch.test_tensorboard import expected, make_run, read

COMMANDS = sorted(
    command for command in read_commands() if command.startswith("stratlab export tensorboard ")
)


@pytest.mark.parametrize("command", COMMANDS or [None])
def test_the_documents_command_writes_what_tensorboard_reads(command, tmp_path):
    folder = make_run(tmp_path / "results/runs")
    words = [Path(sys.executable).parent / "stratlab", *split(command)[1:]]
    done = subprocess.run(words, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.rglob("events.out.tfevents.*")
    assert str(file.relative_to(tmp_path)) in done.stdout and file.parent.name in ("ddp", "tensorboard")
    assert read(file.parent) == expected(folder)


def test_where_no_run_is_it_ends_with_3(tmp_path):
    words = [Path(sys.executable).parent / "stratlab", "export", "tensorboard", tmp_path / "x"]
    assert subprocess.run(words, capture_output=True).returncode == 3
