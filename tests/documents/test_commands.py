"""Each command of README, docs and examples is one that its program takes, with files that are there."""

import functools
import re
from pathlib import Path

import typer
import typer.core

from stratlab.cli import app
from tests.charts.rendering import discover_charts
from tests.documents.commands import EXAMPLES, ROOT, read_commands, split

COMMANDS = sorted(read_commands())
MAKEFILE = (ROOT / "Makefile").read_text()
FOLDERS = ("charts/", "examples/", "experiments/", "manifests/", "benchmarks/")
"""What a command names below these must be there."""
KNOWN = {
    "helm": "install template upgrade uninstall test pull registry dependency",
    "kubectl": "apply delete get describe logs cp create exec label port-forward rollout wait",
    "kind": "load",
    "pip": "install",
    "apt-get": "install",
}
"""Of programs that are not ours: the verbs that the suites on a cluster use, or that a system has."""
OURS = ("images/build", "tests/cluster/run", "./start")


def find_problems(command):
    words = split(command.replace("<name>", "name"))
    program, rest = Path(words[0]).name, words[1:]
    if program == "stratlab":
        yield from _parse(rest)
    elif program == "make":
        for word in rest:
            name, is_variable, _ = word.partition("=")
            known = rf"\$\({name}\)" if is_variable else rf"^{re.escape(name)}:"
            if not re.search(known, MAKEFILE, re.MULTILINE):
                yield f"make has no {name}"
    elif program == "python":
        named = rest[1].replace(".", "/") if rest[0] == "-m" else rest[0].removesuffix(".py")
        if not (ROOT / f"{named}.py").is_file() and not (ROOT / named / "__main__.py").is_file():
            yield f"there is no program {named}"
    elif words[0] not in OURS:
        verb = next((word for word in rest if word in KNOWN.get(program, "").split()), "")
        if not verb:
            yield f"{program} has none of these verbs"
        chart = re.search(r"oci://\S+/([a-z0-9-]+)", command)
        if chart and verb in ("install", "pull") and chart[1] not in discover_charts(ROOT / "charts"):
            yield f"there is no chart {chart[1]}"
    for word in words:
        if word.startswith(FOLDERS) and "measured" not in word and not (ROOT / word).exists():
            yield f"there is no {word}"


@functools.cache
def get_group():
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return group


def _parse(words):
    group = get_group()
    if words[0] not in group.commands:
        yield f"stratlab has no {words[0]}"
        return
    try:
        group.commands[words[0]].make_context(words[0], words[1:])
    except Exception as failure:
        yield f"{type(failure).__name__}: {failure}"


def test_each_command_is_one_that_its_program_takes():
    assert len(COMMANDS) > 200
    wrong = {command: [*find_problems(command)] for command in COMMANDS}
    assert {command: problems for command, problems in wrong.items() if problems} == {}


def test_each_example_is_told_of():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "experiments").rglob("*.yaml")]
    texts = "".join(page.read_text() for page in pages)
    assert [name for name in EXAMPLES if f"examples/{name}" not in texts] == []
