"""The verb as it is typed in docs/start.md."""

from __future__ import annotations

import inspect
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratlab.cli import app
from stratlab.render.command import render
from stratlab.user_error import UserError
from tests.documents.commands import ROOT, read_commands, split

HELP = inspect.getdoc(render) or ""
EXAMPLE = HELP.partition("Example: ")[2]
COMMANDS = sorted(command for command in read_commands() if command.startswith("stratlab render "))


@pytest.mark.parametrize("command", [*COMMANDS, EXAMPLE])
def test_the_documents_commands_write_their_script(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert CliRunner().invoke(app, words[:-2]).output == script.read_text()


@pytest.mark.parametrize(
    ("name", "why"),
    [("none/ddp.sh", "No such file"), ("folder", "Is a directory"), ("f/x.sh", "Not a directory")],
)
def test_an_output_that_cannot_be_written_is_named(
    name: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("f").touch()
    options = [
        "--for",
        "torchrun",
        "--values",
        str(ROOT / "examples/digits.yaml"),
        "--set",
        "run.accelerator=",
    ]
    done = CliRunner().invoke(app, ["render", str(ROOT / "charts/ddp"), *options, "--output", name])
    assert isinstance(done.exception, UserError) and f"--output {name}: {why}" in str(done.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "folder"]


def test_there_is_one_command_for_each_starter() -> None:
    starters = sorted(words[words.index("--for") + 1] for words in map(split, COMMANDS))
    assert starters == ["docker", "hostfile", "slurm", "torchrun"]


def test_a_refusal_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chart = str(ROOT / "charts/ddp")
    options = ["--for", "slurm", "--set", "run.config.tp=3", "--output", "ddp.sbatch"]
    done = CliRunner().invoke(app, ["render", chart, *options])
    assert done.exit_code == 2 and "run.config.tp" in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert "Example: stratlab render" in " ".join(
        CliRunner().invoke(app, ["render", "--help"]).output.split()
    )
