"""One Python for the images and for development: what it pickles, and how, differs from patch to patch."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

import pytest

from tests.images.scanners import DOCKERFILES

DEBIANS = Path("/usr/bin/python3.11")


def promised(dockerfile: Path) -> str:
    """The version that a build of the image insists on."""
    (found,) = re.findall(r"^ARG PYTHON=(\S+)$", dockerfile.read_text(), re.M)
    assert "platform.python_version(); assert found == '$PYTHON'" in dockerfile.read_text()
    return str(found)


def image_python() -> str:
    (version,) = {promised(dockerfile) for dockerfile in DOCKERFILES}
    return version


def has_images_python() -> bool:
    code = "import ensurepip, platform; print(platform.python_version())"
    if not DEBIANS.exists():
        return False
    return (
        subprocess.run([DEBIANS, "-c", code], capture_output=True, text=True).stdout.strip() == image_python()
    )


def make(*arguments: str) -> str:
    command = ["make", "--silent", "--eval", "show-python: ; @echo $(PYTHON)", "show-python", *arguments]
    env = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "PYTHON")
    }
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.strip()


def test_both_images_insist_on_the_same_patch() -> None:
    assert re.fullmatch(r"3\.11\.\d+", image_python())


def test_set_up_takes_the_images_python_where_the_machine_has_it() -> None:
    assert make() == str(DEBIANS) if has_images_python() else make() in ("python3.11", "python3")
    assert make("PYTHON=/opt/python3.12") == "/opt/python3.12"


@pytest.mark.skipif(
    not has_images_python(), reason="this machine has not the images' Python: what differs shows in make e2e"
)
def test_these_tests_run_in_the_images_python() -> None:
    assert platform.python_version() == image_python(), "`make setup` makes .venv anew"
