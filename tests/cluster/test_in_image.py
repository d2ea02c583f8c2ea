"""What is called a success of tests that ran in an image, and what is brought there."""

from __future__ import annotations

import ast
import io
import re
import tarfile
from pathlib import Path

import pytest

from tests.cluster.e2e.test_image import CHOSEN
from tests.cluster.in_image import ROOT, build_pod, judge, pack

STATE = "tests/trainer/strategies/ranks/test_state.py"
PASSED = '<testcase classname="{}" name="{}" time="1.5" />'


def junit(*cases: str) -> str:
    return f'<testsuites><testsuite name="pytest">{"".join(cases)}</testsuite></testsuites>'


FINE = [
    PASSED.format("tests.trainer.strategies.ranks.test_state", "test_bitwise[zero2]"),
    PASSED.format("tests.trainer.settings.test_config", "test_it"),
]
WANTED = (f"{STATE}::test_bitwise", "tests/trainer/settings/test_config.py")


def test_all_passed() -> None:
    assert judge(junit(*FINE), WANTED) == "2 tests passed in 3 s"


@pytest.mark.parametrize(
    ("cases", "sentence"),
    [
        ([], "no test ran in the image"),
        (FINE[:1], "tests/trainer/settings/test_config.py: no test of it ran"),
        (FINE[1:], "test_state.py::test_bitwise: no test of it ran"),
        ([FINE[0], FINE[1].replace(" />", "><failure /></testcase>")], r"did not pass in the image: \['test_it'\]"),
        ([FINE[0], FINE[1].replace(" />", "><skipped /></testcase>")], r"did not pass in the image: \['test_it'\]"),
        ([FINE[0].replace(" />", "><error /></testcase>"), FINE[1]], "did not pass"),
    ],
)  # fmt: skip
def test_what_did_not_run_or_pass_is_named(cases: list[str], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        judge(junit(*cases), WANTED)


@pytest.mark.parametrize("chosen", CHOSEN)
def test_what_is_chosen_exists(chosen: str) -> None:
    path, _, name = chosen.partition("::")
    functions = {
        f.name for f in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(f, ast.FunctionDef)
    }
    assert not name or name in functions


def test_every_subject_has_tests_that_run_in_the_image() -> None:
    text = " ".join(CHOSEN)
    for subject in (
        "strategies",
        "checkpoint",
        "test_worker",
        "test_launcher",
        "mpi_launcher",
        "deepspeed",
        "resume",
    ):
        assert subject in text


def test_the_trainer_itself_is_not_brought_along() -> None:
    with tarfile.open(fileobj=io.BytesIO(pack())) as archive:
        names = archive.getnames()
    assert not [name for name in names if name.startswith("trainer") or "/trainer/__main__" in name]
    for needed in ("tests/ranks.py", "tests/trainer/kept_runs.py", "pyproject.toml", "images/trainer/Dockerfile",
                   "stratlab/machine/processes.py", "packages/pytest/__init__.py", "packages/_pytest/main.py",
                   "packages/pluggy/__init__.py", "packages/iniconfig/__init__.py",
                   ):  # fmt: skip
        assert needed in names, needed
    assert not [name for name in names if re.match(r"packages/(numpy|torch|packaging|pygments)/", name)]
    compiled = [name for name in names if Path(name).suffix == ".so"]
    assert not compiled, "what is copied must fit any machine"


def test_the_pod_is_held_to_what_a_training_pod_is() -> None:
    spec = build_pod()["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
