"""What torch.compile needs of the machine, checked without torch: its first step would fail minutes later.

On a CPU it writes C++ and calls CXX, else g++ (torch 2.13, torch/_inductor/config.py `cpp.cxx`). On a GPU Triton builds
a starter for its kernels with CC, else gcc or clang (triton 3.7, triton/runtime/build.py). Both include Python.h.
"""

from __future__ import annotations

import shlex
import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from trainer.settings.config import Config

# by whether there is a GPU: the variable that names the compiler, and what is looked for without it
COMPILERS = {False: ("CXX", ("g++",)), True: ("CC", ("gcc", "clang"))}


def compile_problems(
    config: Config, env: Mapping[str, str], *, gpu: bool, headers: Path | None = None
) -> list[str]:
    """One sentence per thing that is missing; none without `compile`.

    Args:
        gpu: of `deepspeed_rules.has_gpu`.
        headers: folder of Python.h; None = that of the running Python.
    """
    if not config.compile or config.mode == "evaluate":
        return []
    variable, names = COMPILERS[gpu]
    wanted = tuple(shlex.split(env[variable])[:1]) if env.get(variable) else names
    missing = []
    if not any(shutil.which(name, path=env.get("PATH", "")) for name in wanted):
        missing.append(f"{' or '.join(wanted)} ({variable} names another) is not on PATH")
    folder = headers or Path(sysconfig.get_paths()["include"])
    if not (folder / "Python.h").is_file():
        missing.append(f"{folder / 'Python.h'} is not there")
    if not missing:
        return []
    return [
        f"TRAINER_COMPILE=true: torch.compile compiles at the first step, and {'; '.join(missing)}. Use an image with "
        "a compiler and Python's headers (on Debian: gcc, g++, python3-dev), or leave it out"
    ]
