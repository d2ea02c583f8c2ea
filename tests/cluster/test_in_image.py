"""What is called a success of tests that ran in an image, and what is brought there."""

from __future__ import annotations

import ast
import re

import pytest

from tests.cluster.e2e.test_image import CHOSEN
from tests.cluster.in_image import ROOT, judge, list_files

STATE = "tests/trainer/strategies/ranks/test_state.py"
WANTED = (f"{STATE}::test_bitwise", "tests/trainer/settings/test_config.py")
FINE = [
    f'<testcase classname="tests.trainer.{place}" name="{name}" time="1.5" />'
    for place, name in (
        ("strategies.ranks.test_state", "test_bitwise[zero2]"),
        ("settings.test_config", "test_it"),
    )
]


def junit(cases: list[str]) -> str:
    return f'<testsuites><testsuite name="pytest">{"".join(cases)}</testsuite></testsuites>'


def test_all_passed() -> None:
    assert judge(junit(FINE), WANTED) == "2 tests passed in 3 s"


BAD = [FINE[1].replace("/", f"><{how} /></testcase") for how in ("failure", "skipped")]


@pytest.mark.parametrize("cases", [[], FINE[:1], FINE[1:], *([FINE[0], bad] for bad in BAD)])
def test_what_did_not_run_or_pass_is_no_success(cases: list[str]) -> None:
    with pytest.raises(AssertionError):
        judge(junit(cases), WANTED)


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
