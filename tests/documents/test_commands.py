"""No command stands in README, docs or examples that nobody tries."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import typer.core

from stratlab.cli import app
from stratlab.rendering.helm import find_helm
from tests.documents.commands import EXAMPLES, ROOT, read_commands, split
from tests.documents.table import FILES, TABLE

COMMANDS = sorted(read_commands())
PACKED = ("oci://", ".tgz")  # tests/charts/helms/test_packages.py and tests/distributions have them
FROM_FOLDERS = [command for command in COMMANDS if not any(word in command for word in PACKED)]
RENDERED = [command for command in FROM_FOLDERS if command.startswith("helm install")]
REHEARSED = [command for command in COMMANDS if "stratlab rehearse" in command]
WITHOUT_TORCH = [command for command in COMMANDS if re.search(r"-m trainer\.(layout|settings) --", command)]


def test_the_table_holds_every_command_and_no_other() -> None:
    assert sorted(TABLE) == COMMANDS


def test_the_table_holds_every_example() -> None:
    assert sorted(FILES) == EXAMPLES


def test_every_test_of_the_table_exists() -> None:
    for command, row in [*TABLE.items()]:
        assert row.by or row.instead, command
    for name in {name for row in TABLE.values() for name in row.by} | {
        n for by in FILES.values() for n in by
    }:
        path, _, function = name.partition("::")
        assert (ROOT / path).is_file(), name
        assert function == "*" or f"def {function}(" in (ROOT / path).read_text(), name


def test_make_alone_lists_the_targets() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(f"  make {target} " in listed for target in ("demo", "test", "e2e", "nightly"))


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_make_has_the_target(command: str) -> None:
    text = (ROOT / "Makefile").read_text()
    for word in split(command.replace("<name>", "name"))[1:]:
        name, is_variable, _ = word.partition("=")
        assert re.search(rf"\$\({name}\)" if is_variable else rf"^{re.escape(name)}:", text, re.MULTILINE), (
            word
        )


@pytest.mark.parametrize("command", [c for c in COMMANDS if split(c)[0].endswith("stratlab")])
def test_stratlab_knows_every_option(command: str) -> None:
    _, verb, *arguments = split(command)
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    group.commands[verb].make_context(verb, arguments)


@pytest.mark.parametrize(
    "command", [c for c in FROM_FOLDERS if c.startswith("stratlab predict") and "--count" not in c]
)
def test_stratlab_predicts_as_told(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From shipped files alone: there is no cache, and nothing is counted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = [sys.executable, "-m", "stratlab", *split(command)[1:]]
    program = [str(tmp_path / word) if word.endswith(".html") else word for word in program]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    unknown = [line.split() for line in done.stdout.splitlines() if "not known" in line]
    assert {line[0] for line in unknown} <= {"hsdp", "zeropp"}, "whose files answer for 8 ranks alone"
    assert "fsdp" in done.stdout and not done.stderr


@pytest.mark.parametrize("command", [*RENDERED, *REHEARSED])
def test_charts_render_as_told(command: str) -> None:
    words = [word for word in split(command) if word != "my-values.yaml"]
    charts = [word for word in words if word.startswith("charts/")]
    first = words.index(charts[-1]) + 1
    options = [word for word in words[first:] if word != "--results" and "results/runs" not in word]
    if options[-1] == "--values":
        options.pop()
    for chart in charts:
        release = Path(chart).name if "rehearse" in words else words[2]
        arguments = [find_helm(), "template", release, chart, *options]
        done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", WITHOUT_TORCH)
def test_programs_without_torch_do_as_told(command: str) -> None:
    arguments = split(command)[1:]
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if "--schema" in arguments:
        assert "global_batch_size" in json.loads(done.stdout)["properties"]
    else:
        assert "pp2.dp2.tp2" in done.stdout
