#!/usr/bin/env python3
"""Start the stages from the kit on a bare machine: ./start --part 1 --out RESULTS

It makes an interpreter in the system's temporary folder that finds the kit's packages and code before the machine's
own, also in processes without PYTHONPATH. The machine itself stays unchanged.
"""

from __future__ import annotations

import os
import site
import sys
import tempfile
import venv
from pathlib import Path

KIT = Path(__file__).resolve().parent
WANTED = (3, 12)


def build_interpreter(folder: Path, further: list[str]) -> Path:
    """Return a virtual environment whose path is: the kit's packages and code, the packages of this Python,
    `further`.
    """
    venv.EnvBuilder(clear=True, symlinks=True, with_pip=False).create(folder)
    packages = folder / "lib" / f"python{WANTED[0]}.{WANTED[1]}" / "site-packages"
    first = [str(KIT / "site"), str(KIT)]
    theirs = [path for path in [*sys.path, *site.getsitepackages()] if path.endswith("-packages")]
    if site.ENABLE_USER_SITE:
        theirs.append(site.getusersitepackages())
    (packages / "kit.pth").write_text("\n".join(dict.fromkeys([*first, *theirs, *further])) + "\n")
    return folder / "bin" / "python"


def main(arguments: list[str]) -> int:
    """Become `python -m benchmarks.gpu` with these arguments; with `--read FOLDER` its reader."""
    if sys.version_info[:2] != WANTED:
        found = ".".join(map(str, sys.version_info[:2]))
        print(
            f"the kit is for Python 3.12, this is {found} [SL-kit-started-by]: /path/to/python3.12 start ...",
            file=sys.stderr,
        )
        return 2
    further = []
    while arguments[:1] == ["--also"]:  # more packages, for tests
        further, arguments = [*further, arguments[1]], arguments[2:]
    python = build_interpreter(Path(tempfile.mkdtemp(prefix="stratlab-gpu-python-")), further)
    if arguments[:1] == ["--read"]:
        command = ["-m", "benchmarks.gpu.read", *arguments[1:]]
    elif arguments[:1] == ["--python"]:  # for other programs on the kit's path
        command = arguments[1:]
    else:
        command = ["-m", "benchmarks.gpu", *arguments]
    os.execv(python, [str(python), *command])  # in place of this process, so that signals arrive


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
