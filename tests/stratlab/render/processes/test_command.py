"""The verb as it is typed in docs/local.md."""

import inspect
import subprocess

import pytest
from typer.testing import CliRunner

from stratlab import UserError
from stratlab.cli import app
from stratlab.commands.local import render
from tests.codes import find_codes
from tests.documents.commands import ROOT, read_commands, split

EXAMPLE = (inspect.getdoc(render) or "").partition("Example: ")[2]
COMMANDS = sorted(command for command in read_commands() if command.startswith("stratlab render "))


@pytest.mark.parametrize("command", [*COMMANDS, EXAMPLE])
def test_the_documents_commands_write_their_script(command, tmp_path, monkeypatch):
    for name in ("charts", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "hostfile.txt").write_text("gpu-node-01 slots=8\ngpu-node-02 slots=8\n")
    monkeypatch.chdir(tmp_path)
    words = split(command)[1:]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.output) == (0, "")
    script = tmp_path / words[-1]
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    assert str(tmp_path / "results/runs/demo") in script.read_text()


def test_there_is_one_command_for_each_starter():
    starters = sorted(words[words.index("--for") + 1] for words in map(split, COMMANDS))
    assert starters == ["docker", "hostfile", "slurm", "torchrun"]


def test_an_output_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    given = ["render", str(ROOT / "charts/ddp"), "--for", "torchrun", "--set", "run.accelerator="]
    values = ["--values", str(ROOT / "examples/digits.yaml")]
    done = CliRunner().invoke(app, [*given, *values, "--output", "folder"])
    assert isinstance(done.exception, UserError)
    assert find_codes(done.exception) == ["SL-output-not-written"] and "folder" in str(done.exception)
    assert CliRunner().invoke(app, [*given, *values]).output.startswith("#!/bin/bash\n")
    wrong = [*given, "--set", "run.config.micro_batch_size=8,run.config.global_batch_size=20"]
    done = CliRunner().invoke(app, [*wrong, "--output", "ddp.sh"])
    assert done.exit_code == 2 and "run.config.global_batch_size=20" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["folder"], "a refusal writes nothing"
