"""How the user's shell finds this program, for commands that are printed to be typed."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def name_program() -> str:
    """`stratlab`, or its path where the shell would find none or another one: `.venv/bin/stratlab`."""
    own = Path(sys.executable).with_name("stratlab")
    found = shutil.which("stratlab")
    if not own.is_file() or (found and Path(found).resolve() == own.resolve()):
        return "stratlab"
    return shlex.quote(str(shorten(own)))


def shorten(path: Path) -> Path:
    """As seen from here, where it lies below."""
    absolute = path.absolute()
    return absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute
