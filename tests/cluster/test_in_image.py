"""What is brought into an image to be tested there."""

from __future__ import annotations

import ast
import re

from tests.cluster.e2e.test_image import CHOSEN
from tests.cluster.in_image import ROOT, list_files


def test_what_is_chosen_exists() -> None:
    for path, _, name in (chosen.partition("::") for chosen in CHOSEN):
        tree = ast.walk(ast.parse((ROOT / path).read_text()))
        assert not name or name in {f.name for f in tree if isinstance(f, ast.FunctionDef)}, (path, name)


def test_the_tools_are_brought_along_and_not_the_trainer() -> None:
    names = {name for _, name in list_files()}
    tools = {f"packages/{name}/__init__.py" for name in ("pytest", "pluggy", "iniconfig")}
    assert tools | {"tests/ranks.py", "pyproject.toml", "images/trainer/Dockerfile"} <= names
    assert not [name for name in names if name.startswith("trainer")]
    there = re.compile(
        r"packages/(numpy|torch|packaging|pygments)/|.*\.so$"
    )  # of the image; of this machine alone
    assert not [name for name in names if there.match(name)]
