"""One Python for the images and for development: what it pickles, and how, differs from patch to patch."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

from tests.images.test_dockerfiles import DOCKERFILES

DEBIANS = Path("/usr/bin/python3.11")


def make(*arguments: str) -> str:
    command = ["make", "--silent", "--eval", "show-python: ; @echo $(PYTHON)", "show-python", *arguments]
    left_out = ("MAKEFLAGS", "MAKELEVEL", "PYTHON")
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.strip()


def test_set_up_takes_the_images_python_where_the_machine_has_it() -> None:
    (wanted,) = {re.findall(r"^ARG PYTHON=(3\.11\.\d+)$", each.read_text(), re.M)[0] for each in DOCKERFILES}
    for dockerfile in DOCKERFILES:
        assert "platform.python_version(); assert found == '$PYTHON'" in dockerfile.read_text()
    code = "import ensurepip, platform; print(platform.python_version())"
    found = (
        subprocess.run([DEBIANS, "-c", code], capture_output=True, text=True) if DEBIANS.exists() else None
    )
    if found and found.stdout.strip() == wanted:
        assert make() == str(DEBIANS)
        assert platform.python_version() == wanted, "`make setup` makes .venv anew"
    else:
        assert make() in ("python3.11", "python3")
    assert make("PYTHON=/opt/python3.12") == "/opt/python3.12"
