"""The needs of DeepSpeed and torch.compile, checked without torch, and the knobs as these libraries take them.

DeepSpeed would accept a wrong setting silently, or report it only after minutes and on one rank. Each function yields
sentences; comments quote the DeepSpeed errors that they replace (deepspeed 0.19.8).

qwz and qgz of ZeRO++ cut each rank's shard of a parameter into blocks, the last one filled up with zeros. A block is
sent as whole numbers and one fp32 scale:

    qwz   gathered weights      8 bits   512 + 4 bytes per block, half of bf16
    qgz   reduced gradients     4 bits   256 + 4 bytes per block, an eighth of fp32

A shard of less than two blocks (biases, norms, small models) would be more filling than numbers: it is sent
unchanged, without qwz and qgz. DeepSpeed's own grouping requires that 8 divides every shard, and otherwise ends a
run.

torch.compile would fail at the first step. On a CPU it writes C++ and calls CXX, else g++ (torch 2.13,
torch/_inductor/config.py `cpp.cxx`). On a GPU Triton builds a starter for its kernels with CC, else gcc or clang
(triton 3.7, triton/runtime/build.py). Both include Python.h.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shlex
import shutil
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stratlab_spec.settings.config import Config
from stratlab_spec.settings.fields import Settings
from stratlab_spec.strategies import STRATEGIES

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
COMPILERS = ("c++", "nvcc", "ninja")
PREBUILT_QUANTIZER = "deepspeed.ops.quantizer.quantizer_op"
"""DeepSpeed's own name for it (op_builder/quantizer.py); images/trainer/quantizer.py builds it."""


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Return whether an NVIDIA device is visible here, without torch.

    /proc/driver/nvidia does not answer this: a pod without a GPU sees its node's.
    """
    return any(devices.glob("nvidia[0-9]*"))


def broken_deepspeed_rules(
    config: Config, world_size: int, processes_per_node: int, *, env: Mapping[str, str], gpu: bool
) -> list[str]:
    """Return one sentence per broken rule; none for strategies that are not DeepSpeed's.

    Args:
        gpu: of `has_gpu`.
    """
    if not STRATEGIES[config.strategy].deepspeed_stage:
        return []
    problems = placement_problems(config, world_size, processes_per_node)
    problems += cache_problems(env) if gpu else []
    if config.strategy == "zeropp":
        problems += _quantized(config, world_size, processes_per_node, gpu)
        if gpu and BITS.keys() & set(config.zeropp.split(",")) and find_quantizer() is None:
            problems += toolchain_problems(env)
    return problems


def placement_problems(config: Config, world_size: int, processes_per_node: int) -> list[str]:
    """Check the rules that depend only on settings and number of processes, not on data, device or image."""
    if not STRATEGIES[config.strategy].deepspeed_stage:
        return []
    partition = _partition(config, world_size, processes_per_node) if config.strategy == "zeropp" else ()
    return [*_compiled(config), *partition]


def _compiled(config: Config) -> Iterator[str]:
    # First gradients are equal (LAB.md, 2026-11-24), but four small layers become 15 graphs in 50 s instead of one in
    # 6 s, and recomputed ones stay as they were.
    if config.compile and STRATEGIES[config.strategy].deepspeed_stage == 3:
        yield (
            f"TRAINER_COMPILE=true: not with strategy {config.strategy}: its hooks at every module cut blocks into "
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
            f"TRAINER_ZEROPP={config.zeropp!r}: hpz has no effect on one node, because its gathers never leave the "
            "node. This would be zero3 with a second copy of the parameters; use strategy zero3, or more nodes "
            "[SL-hpz-one-node]"
        )


def _quantized(config: Config, world_size: int, processes_per_node: int, gpu: bool) -> Iterator[str]:
    parts = config.zeropp.split(",")
    for part in BITS:
        if part in parts and not gpu:  # ValueError: This op had not been implemented on CPU backend.
            yield (
                f"TRAINER_ZEROPP={config.zeropp!r}: {part} needs DeepSpeed's CUDA quantizer and there is no GPU "
                "here; use hpz [SL-quantizer-no-gpu]"
            )
    if "qgz" in parts and config.reduce_dtype != "fp32":
        yield (
            f"TRAINER_REDUCE_DTYPE={config.reduce_dtype}: qgz reduces in 4 bits and ignores it; leave it out, or "
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
    """Return the CUDA quantizer that an image has been built with, found without importing DeepSpeed."""
    top, *folders, name = PREBUILT_QUANTIZER.split(".")
    package = importlib.util.find_spec(top)
    if package is None or package.origin is None:
        return None
    return next(Path(package.origin).parent.joinpath(*folders).glob(f"{name}*.so"), None)


def toolchain_problems(env: Mapping[str, str]) -> list[str]:
    """Return why the CUDA quantizer could not be compiled at the first start, which would fail minutes later or
    hang.
    """
    problems = []
    if missing := [name for name in COMPILERS if not shutil.which(name, path=env.get("PATH", ""))]:
        problems.append(
            f"TRAINER_ZEROPP: qwz and qgz are compiled at the first start, and {', '.join(missing)} cannot be found "
            "on PATH; use an image with the CUDA toolkit or with the quantizer built, or leave out qwz and qgz "
            "[SL-quantizer-compiler]"
        )
    for lock in sorted(
        _caches(env)["TORCH_EXTENSIONS_DIR"].glob("**/lock")
    ):  # it would wait silently and never end
        problems.append(
            f"{lock}: left by a killed build, so that the next build would never start; remove it, or "
            "wait if another run is building right now [SL-quantizer-lock]"
        )
    return problems


def cache_problems(env: Mapping[str, str]) -> list[str]:
    """Return folders that DeepSpeed makes on a GPU when it is imported: PermissionError on every rank otherwise."""
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
    """Check the variables of a rank: without one of these DeepSpeed ends in `No module named 'mpi4py'` under any
    starter.
    """
    if missing := [name for name in RANK_VARIABLES if not env.get(name)]:
        return [
            f"{', '.join(missing)}: not set; start the ranks with `python -m trainer`, torchrun or the "
            "training operator [SL-rank-variables]"
        ]
    return []


BLOCK = 512
"""Elements. The kernel gives 16 of them to a thread, and adds up over a warp of 32."""
LEAST_BLOCKS = 2
BITS = {"qwz": 8, "qgz": 4}
SCALE_BYTES = 4


def is_quantized(elements: int, shards: int) -> bool:
    """Return whether a parameter with this number of elements is sent in few bits."""
    return math.ceil(elements / shards) >= LEAST_BLOCKS * BLOCK


def count_blocks(elements: int, shards: int) -> int:
    """Return the number of blocks of each shard."""
    return math.ceil(math.ceil(elements / shards) / BLOCK)


def block_bytes(part: str) -> int:
    """Return the bytes of one block on the wire.

    Args:
        part: qwz or qgz.
    """
    return BLOCK * BITS[part] // 8 + SCALE_BYTES


def describe_quantized(
    parts: Sequence[str], sizes: Sequence[tuple[int, bool]], shards: int, persistent_elements: int
) -> dict[str, dict[str, Any]]:
    """Return `resolved.quantized` of config.json: per part the bits, the block, and the quantized share of the model.

    Args:
        parts: of the setting zeropp.
        sizes: (elements, whether it trains) of each parameter.
        persistent_elements: parameters up to this size are not gathered in a pass, but once after the update, in
            their stored type.
    """
    trained = [elements for elements, trains in sizes if trains]
    whole = {"qwz": [elements for elements, _ in sizes], "qgz": trained}
    sent = {"qwz": [elements for elements in whole["qwz"] if elements > persistent_elements], "qgz": trained}
    few = {part: [elements for elements in sent[part] if is_quantized(elements, shards)] for part in sent}
    return {
        part: {
            "bits": BITS[part],
            "block": BLOCK,
            "parameters": len(few[part]),
            "of_parameters": len(whole[part]),
            "elements_pct": 100.0 * sum(few[part]) / max(1, sum(whole[part])),
        }
        for part in BITS
        if part in parts
    }


NONE, SELECTIVE = "none", "selective"
EVERY = "every_"


def recomputes(setting: str, block: int) -> bool:
    """Return whether block number `block` of the whole model computes its activations again (`selective`: some of
    them).
    """
    if setting.startswith(EVERY):
        return block % int(setting.removeprefix(EVERY)) == 0
    return setting != NONE


# by whether there is a GPU: the variable that names the compiler, and what is looked for without it
HOST_COMPILERS = {False: ("CXX", ("g++",)), True: ("CC", ("gcc", "clang"))}


def refused_compositions(config: Config, *, experts: bool, cp: int = 1, tp: int = 1) -> Iterator[str]:
    """Yield one sentence per reason why compiled blocks would be wrong, fail, or have no effect; empty without
    `compile`.

    Other rules: zero3 and zeropp in `_compiled`, batch norm in stratlab_spec/models/model_specs.py.

    Args:
        experts: the model has some.
        cp, tp: ranks on these axes.
    """
    recomputed = config.activation_checkpointing
    if not config.compile or recomputed == NONE:
        return
    refused = (
        # both: a call that stays outside compiled code breaks the graph inside of torch's checkpoint, which then runs
        # whole as it was, without a word (torch 2.13: no graph at all)
        (
            experts,
            "the experts' dispatch is never compiled, and a recomputed block around it is not compiled at all",
            "[SL-compile-experts]",
        ),
        (
            cp > 1,
            "the exchanges of context parallelism are never compiled, and a recomputed block around them is not "
            "compiled at all",
            "[SL-compile-cp]",
        ),
        # AssertionError: expected all tensors_saved_with_vc_check to be Tensors, got types: [.., DeviceMesh]
        (
            tp > 1 and recomputed != SELECTIVE,
            "a compiled block that is split over tp and recomputed fails at once (torch 2.13); selective does not",
            "[SL-compile-tp]",
        ),
    )
    for holds, reason, code in refused:
        if holds:
            yield (
                f"TRAINER_COMPILE=true, TRAINER_ACTIVATION_CHECKPOINTING={recomputed}: not both here, {reason}; leave "
                f"one of them out {code}"
            )


def compile_problems(
    config: Config, env: Mapping[str, str], *, gpu: bool, headers: Path | None = None
) -> list[str]:
    """Return one sentence per missing program or file; empty without `compile`.

    Args:
        gpu: of `deepspeed_rules.has_gpu`.
        headers: folder of Python.h; None = the running Python's.
    """
    if not config.compile or config.mode == "evaluate":
        return []
    variable, names = HOST_COMPILERS[gpu]
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


MIB = 2**20
NO_EFFECT = "no effect: nothing is sharded"


def accumulates_sharded(config: Settings, stages: int = 1) -> bool:
    """Return whether fully_shard reduces the gradients of each micro-batch, instead of once per step.

    Args:
        stages: of a pipeline.
    """
    return config.accumulate == "sharded" or (config.accumulate == "auto" and stages == 1)


def reshards_after_forward(config: Settings, stages: int = 1) -> bool:
    """Return whether parameters are freed between forward and backward pass, and gathered again."""
    setting = config.reshard_after_forward
    return setting == "on" or (setting == "auto" and stages == 1)


def reduce_bucket_bytes(config: Settings) -> int:
    """Return the bytes of gradients that ddp and DeepSpeed reduce together."""
    return (config.reduce_bucket_mib or STRATEGIES[config.strategy].reduce_bucket_mib) * MIB


def resolve_knobs(config: Settings, stages: int = 1, *, shards: bool = True) -> dict[str, Any]:
    """Return every knob of the run's strategy with its resolved value.

    Args:
        shards: whether fully_shard has more than one rank to shard over; otherwise it does not gather.
    """
    decided: dict[str, Any] = {
        "accumulate": "sharded" if accumulates_sharded(config, stages) else "whole",
        "reshard_after_forward": "on" if reshards_after_forward(config, stages) else "off",
        "reduce_bucket_mib": reduce_bucket_bytes(config) // MIB,
    }
    own = STRATEGIES[config.strategy].knobs
    if not shards and "accumulate" in own:  # one of fully_shard's strategies
        decided |= dict.fromkeys(("reshard_after_forward", "prefetch_blocks"), NO_EFFECT)
    return {name: decided.get(name, getattr(config, name)) for name in own}
