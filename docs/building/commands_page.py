"""Every command with its arguments and options: the output of `stratlab VERB --help`."""

from __future__ import annotations

from pathlib import Path

from typer.main import get_command
from typer.testing import CliRunner

from stratlab.cli import app

SCREEN = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}


def write_commands(repository: Path) -> str:
    """Markdown: one section per command, with its words, arguments and options."""
    parts = [
        "# Commands\n",
        "The output of `stratlab VERB --help` for each command. Exit codes: 0 done, 1 failed, 2 wrong option or value, "
        "3 not found (folder, run, traces, data), 13 volume full; `watch` ends with the code of the run. "
        "[All codes](../stops.md#exit-codes-of-stratlab).\n",
    ]
    parts += [f"## stratlab {verb}\n\n```text\n{_ask_help(verb)}\n```\n" for verb in _list_verbs()]
    return "\n".join(parts)


def _list_verbs() -> list[str]:
    found = []
    for name, command in getattr(get_command(app), "commands").items():  # noqa: B009 - of the click that typer carries
        inner = getattr(command, "commands", None)
        found += [f"{name} {each}" for each in inner] if inner else [name]
    return found


def _ask_help(verb: str) -> str:
    said = CliRunner().invoke(app, [*verb.split(), "--help"], env=SCREEN, prog_name="stratlab")
    assert said.exit_code == 0, said.output
    return "\n".join(line.rstrip() for line in said.output.strip("\n").splitlines())
