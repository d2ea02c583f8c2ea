"""What torch.compile needs of settings and of the machine, checked without torch: its first step would fail later.

On a CPU it writes C++ and calls CXX, else g++ (torch 2.13, torch/_inductor/config.py `cpp.cxx`). On a GPU Triton builds
a starter for its kernels with CC, else gcc or clang (triton 3.7, triton/runtime/build.py). Both include Python.h.
"""

from __future__ import annotations

import shlex
import shutil
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.settings.config import Config
from trainer.settings.recomputation import NONE, SELECTIVE

# by whether there is a GPU: the variable that names the compiler, and what is looked for without it
COMPILERS = {False: ("CXX", ("g++",)), True: ("CC", ("gcc", "clang"))}


@dataclass(frozen=True)
class Composition:
    """What a block is made of, as far as it matters to a compiler."""

    recomputed: str
    """The setting activation_checkpointing."""
    experts: bool
    cp: int = 1
    tp: int = 1


@dataclass(frozen=True)
class Refusal:
    """Compiled blocks that are wrong, fail, or stay as they were."""

    holds: Callable[[Composition], bool]
    reason: str
    code: str


REFUSALS = (
    # both: a call that stays outside compiled code breaks the graph inside of torch's checkpoint, which then runs whole
    # as it was, without a word (torch 2.13: no graph at all)
    Refusal(
        lambda block: block.experts and block.recomputed != NONE,
        "the experts' dispatch is never compiled, and a recomputed block around it is not compiled at all",
        "[SL-compile-experts]",
    ),
    Refusal(
        lambda block: block.cp > 1 and block.recomputed != NONE,
        "the exchanges of context parallelism are never compiled, and a recomputed block around them is not compiled "
        "at all",
        "[SL-compile-cp]",
    ),
    # AssertionError: expected all tensors_saved_with_vc_check to be Tensors, got types: [.., DeviceMesh]
    Refusal(
        lambda block: block.tp > 1 and block.recomputed not in (NONE, SELECTIVE),
        "a compiled block that is split over tp and recomputed fails at once (torch 2.13); selective does not",
        "[SL-compile-tp]",
    ),
)
"""Others: zero3 and zeropp in deepspeed_rules.py, batch norm in trainer/shapes/model_shapes.py."""


def refused_compositions(config: Config, *, experts: bool, cp: int = 1, tp: int = 1) -> Iterator[str]:
    """One sentence per row of `REFUSALS` that holds; none without `compile`.

    Args:
        experts: the model has some.
        cp, tp: ranks on these axes.
    """
    if not config.compile:
        return
    block = Composition(config.activation_checkpointing, experts, cp, tp)
    for refusal in REFUSALS:
        if refusal.holds(block):
            yield (
                f"TRAINER_COMPILE=true, TRAINER_ACTIVATION_CHECKPOINTING={block.recomputed}: not both here, "
                f"{refusal.reason}; leave one of them out {refusal.code}"
            )


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
        "a compiler and Python's headers (on Debian: gcc, g++, python3-dev), or leave it out [SL-compiler-absent]"
    ]
