"""What DeepSpeed would accept silently, or report only after minutes and on one rank; checked without torch.

Each function gives sentences; the texts of DeepSpeed that they spare the user are quoted in the comments
(deepspeed 0.19.8).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainer.settings.config import Config
from trainer.settings.strategy_table import STRATEGIES

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
COMPILERS = ("c++", "nvcc", "ninja")
PREBUILT_QUANTIZER = "deepspeed.ops.quantizer.quantizer_op"
"""DeepSpeed's own name for it (op_builder/quantizer.py); images/trainer/quantizer.py builds it."""


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether an NVIDIA device is visible here, without asking torch.

    /proc/driver/nvidia says nothing: a pod without a GPU sees its node's.
    """
    return any(devices.glob("nvidia[0-9]*"))


def broken_deepspeed_rules(
    config: Config,
    world_size: int,
    processes_per_node: int,
    *,
    env: Mapping[str, str],
    gpu: bool,
) -> list[str]:
    """One sentence per broken rule; none for strategies that are not DeepSpeed's.

    Args:
        gpu: of `has_gpu`.
    """
    if not STRATEGIES[config.strategy].deepspeed_stage:
        return []
    problems = [*_compiled(config)]
    if gpu:
        problems += cache_problems(env)
    if config.strategy == "zeropp":
        problems += _partition(config, world_size, processes_per_node)
        problems += _quantized(config, world_size, processes_per_node, gpu)
        if gpu and _quantizes(config) and find_quantizer() is None:
            problems += toolchain_problems(env)
    return problems


def placement_problems(config: Config, world_size: int, processes_per_node: int) -> list[str]:
    """The rules that depend on settings and number of processes alone, not on data, device or image."""
    if not STRATEGIES[config.strategy].deepspeed_stage:
        return []
    partition = _partition(config, world_size, processes_per_node) if config.strategy == "zeropp" else ()
    return [*_compiled(config), *partition]


def _quantizes(config: Config) -> bool:
    return bool({"qwz", "qgz"} & set(config.zeropp.split(",")))


def _compiled(config: Config) -> Iterator[str]:
    # First gradients are equal (LAB.md, 2026-11-24), but four small layers become 15 graphs in 50 s instead of one in
    # 6 s, and recomputed ones stay as they were.
    if config.compile and STRATEGIES[config.strategy].deepspeed_stage == 3:
        yield (
            f"TRAINER_COMPILE=true: not with strategy {config.strategy}, whose hooks at every module cut blocks into "
            "pieces of a few operators, which take long to compile; use zero1, zero2, fsdp or hsdp, or leave it out "
            "[SL-deepspeed-compile]"
        )


def _partition(config: Config, world_size: int, processes_per_node: int) -> Iterator[str]:
    if "hpz" not in config.zeropp.split(","):
        return
    if world_size % processes_per_node:  # AssertionError: 4 is not divisible by 3
        yield (
            f"TRAINER_ZEROPP={config.zeropp!r}: hpz keeps one copy per node, but {processes_per_node} processes per "
            f"node do not divide {world_size} processes [SL-hpz-indivisible]"
        )
    elif processes_per_node == 1 and world_size > 1:  # size 1 switches it off, silently
        yield (
            f"TRAINER_ZEROPP={config.zeropp!r}: hpz has no effect with 1 process per node, this would be zero3; "
            "use strategy zero3, or more than one process per node [SL-hpz-one-process]"
        )
    elif processes_per_node == world_size > 1:
        # the copy is the shards once more: it costs memory and saves nothing
        yield (
            f"TRAINER_ZEROPP={config.zeropp!r}: hpz has no effect on one node, whose gathers never leave it, this "
            "would be zero3 with a second copy of the parameters; use strategy zero3, or more nodes [SL-hpz-one-node]"
        )


def _quantized(config: Config, world_size: int, processes_per_node: int, gpu: bool) -> Iterator[str]:
    parts = config.zeropp.split(",")
    for part in ("qwz", "qgz"):
        if part in parts and not gpu:  # ValueError: This op had not been implemented on CPU backend.
            yield (
                f"TRAINER_ZEROPP={config.zeropp!r}: {part} needs DeepSpeed's CUDA quantizer and there is no GPU "
                "here; use hpz [SL-quantizer-no-gpu]"
            )
    if "qgz" in parts and config.reduce_dtype != "fp32":
        yield (
            f"TRAINER_REDUCE_DTYPE={config.reduce_dtype}: qgz reduces in 4 bits whatever this says; leave it out, or "
            f"qgz out of TRAINER_ZEROPP={config.zeropp!r} [SL-qgz-reduce-dtype]"
        )
    if "qgz" in parts and world_size % processes_per_node:
        yield (
            f"TRAINER_ZEROPP={config.zeropp!r}: qgz reduces inside the nodes first, but {processes_per_node} processes "
            f"per node do not divide {world_size} processes [SL-qgz-indivisible]"
        )
    elif "qgz" in parts and world_size == processes_per_node:
        yield (
            f"TRAINER_ZEROPP={config.zeropp!r}: qgz saves bytes between nodes, and this is one node; leave it out, or "
            "use more nodes [SL-qgz-one-node]"
        )


def find_quantizer() -> Path | None:
    """The CUDA quantizer that an image has been built with, found without importing DeepSpeed."""
    top, *folders, name = PREBUILT_QUANTIZER.split(".")
    package = importlib.util.find_spec(top)
    if package is None or package.origin is None:
        return None
    return next(Path(package.origin).parent.joinpath(*folders).glob(f"{name}*.so"), None)


def toolchain_problems(env: Mapping[str, str]) -> list[str]:
    """Why the CUDA quantizer could not be compiled at the first start, which would fail minutes later or hang."""
    problems = []
    if missing := [name for name in COMPILERS if not shutil.which(name, path=env.get("PATH", ""))]:
        problems.append(
            f"TRAINER_ZEROPP: qwz and qgz are compiled at the first start, and {', '.join(missing)} cannot be found "
            "on PATH; use an image with the CUDA toolkit or with the quantizer built, or leave out qwz and qgz "
            "[SL-quantizer-compiler]"
        )
    for lock in sorted(
        _caches(env)["TORCH_EXTENSIONS_DIR"].glob("**/lock")
    ):  # it waits for it for ever, silently
        problems.append(
            f"{lock}: left by a build that was killed, the next one would wait for ever; remove it, or "
            "wait if another run is building right now [SL-quantizer-lock]"
        )
    return problems


def cache_problems(env: Mapping[str, str]) -> list[str]:
    """Folders that DeepSpeed makes on a GPU when it is imported: PermissionError on every rank otherwise."""
    return [
        f"{name}={str(folder)!r}: not writable for user {os.getuid()}, and the compiled parts of DeepSpeed "
        f"go there; set {name} to a folder that is [SL-deepspeed-cache]"
        for name, folder in _caches(env).items()
        if not _writable(folder)
    ]


def _caches(env: Mapping[str, str]) -> dict[str, Path]:
    home = Path(env.get("HOME", "/nonexistent"))
    return {
        "TORCH_EXTENSIONS_DIR": Path(env.get("TORCH_EXTENSIONS_DIR") or home / ".cache" / "torch_extensions"),
        "TRITON_CACHE_DIR": Path(env.get("TRITON_CACHE_DIR") or home / ".triton"),
    }


def _writable(folder: Path) -> bool:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def missing_rank_variables(env: Mapping[str, str]) -> list[str]:
    """For a rank: without one of these DeepSpeed ends in `No module named 'mpi4py'`, whoever started it."""
    if missing := [name for name in RANK_VARIABLES if not env.get(name)]:
        return [
            f"{', '.join(missing)}: not set; start the ranks with `python -m trainer`, torchrun or the "
            "training operator [SL-rank-variables]"
        ]
    return []
