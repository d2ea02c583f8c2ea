"""Requirements on the figures, in one table. If a gate fails, its stage fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Facts = Mapping[str, Any]

LARGEST_ERROR = 2e-2
"""Relative, bf16 against fp32 by the formula, outputs and gradients."""
LARGEST_GLOO_ERROR = 1e-3
"""Relative, losses of two ranks against one process, fp32."""
LARGEST_RESUMED_ERROR = 1e-3
"""Relative, losses of a run that was stopped, killed, or has climbed the ladder, against an undisturbed run."""
LARGEST_MEMORY_ERROR_PCT = 3.0
"""Of counted memory, against the peak of the device's allocator."""
LARGEST_SHARE = 1e-3
"""Of numbers that the quantizer's kernel and its formula round to different sides."""
OLDEST_CUDNN = 91501
"""Before 9.15.1 its attention is wrong for lengths that are not a multiple of 128 (pytorch#169849)."""
MFU_FLOORS_PCT = {"vit_base": 35.0, "vit_huge": 42.0, "qwen2.5-3b": 42.0}
"""Estimates from published figures of trainers with compiled blocks, one H100 or H200 in bf16. Ours on an H200:
compiled 38.1, 42.6, 45.5; without 30.5, 37.5, 35.9."""


@dataclass(frozen=True)
class Gate:
    """One rule on the lines of a stage.

    Attributes:
        stages: names of the stages that it checks, separated by spaces.
        text: the requirement.
        value: name of a fact of the line, or a function of the line; None: the gate does not apply.
        holds: for such a value.
        cuda_only: it has no meaning on a CPU.
    """

    stages: str
    text: str
    value: str | Callable[[Facts], Any]
    holds: Callable[[Any], bool]
    cuda_only: bool = False


@dataclass(frozen=True)
class Verdict:
    """One gate on one line."""

    stage: str
    item: str
    gate: str
    value: Any
    passed: bool


def _errors(line: Facts) -> list[float] | None:
    """Return every relative error of a line, without paths that are not available here."""
    found: list[float] = []
    for entry in (line.get("errors") or {}).values():
        if isinstance(entry, Mapping):
            found += [float(value) for value in entry.values()]
    return found or None


def _mfu(line: Facts) -> tuple[float, float] | None:
    floor = MFU_FLOORS_PCT.get(line.get("model", ""))
    if floor is None or line.get("strategy") != "single" or not line.get("settings", {}).get("COMPILE"):
        return None
    return (float(line.get("mfu_pct") or 0.0), floor)


def _lost_by_a_stop(line: Facts) -> Any:
    return line.get("steps_lost") if "stopped" in line["item"] else None


OWN_RUNS = "project strategies memory"
LONG_RUNS = "project strategies"
"""With steps enough to see a loss fall."""
GATES = (
    Gate("environment", f"cuDNN from {OLDEST_CUDNN}", "cudnn", lambda v: v >= OLDEST_CUDNN, True),
    Gate(
        "environment",
        "the attention of every model runs on a cuDNN or flash kernel",
        "not_fused",
        lambda v: v == [],
        True,
    ),
    Gate(
        "numerics",
        f"relative errors below {LARGEST_ERROR}",
        _errors,
        lambda v: all(error < LARGEST_ERROR for error in v),  # nan is not
    ),
    Gate(LONG_RUNS, "the loss falls", "falls", bool),
    Gate(OWN_RUNS, "every loss is finite", "finite", bool),
    Gate(OWN_RUNS, "no retries of the allocator", "alloc_retries", lambda v: v == 0, True),
    Gate(
        OWN_RUNS,
        "MFU of a single model, its blocks compiled, at its floor",
        _mfu,
        lambda v: v[0] >= v[1],
        True,
    ),
    Gate(
        OWN_RUNS,
        f"counted memory within {LARGEST_MEMORY_ERROR_PCT:.0f} % of the device's",
        "forecast_memory_error_pct",
        lambda v: abs(v) <= LARGEST_MEMORY_ERROR_PCT,
        True,
    ),
    Gate(
        "quantizer",
        f"the kernel rounds at most {LARGEST_SHARE} of the numbers otherwise than its formula",
        "numbers_differ",
        lambda v: v <= LARGEST_SHARE,
    ),
    Gate("quantizer", "a mean that 4 bits hold is exact", "exact", bool),
    Gate(
        "gloo",
        f"losses within {LARGEST_GLOO_ERROR} of one process",
        "loss_error",
        lambda v: v < LARGEST_GLOO_ERROR,
    ),
    Gate(
        "stops",
        f"losses within {LARGEST_RESUMED_ERROR} of an undisturbed run",
        "loss_error",
        lambda v: v < LARGEST_RESUMED_ERROR,
    ),
    Gate("stops", "a stopped run does not lose a step", _lost_by_a_stop, lambda v: v == 0),
)


def judge_lines(lines: Iterable[Facts], device: str) -> list[Verdict]:
    """Apply every gate to every finished measurement that it applies to."""
    found = []
    for line in lines:
        for gate in GATES:
            if line.get("stage") not in gate.stages.split() or line.get("status") != "done":
                continue
            if gate.cuda_only and device != "cuda":
                continue
            value = line.get(gate.value) if isinstance(gate.value, str) else gate.value(line)
            if value is not None:  # `nan` and `inf` come back from the file as text
                passed = bool(gate.holds(float(value) if isinstance(value, str) else value))
                found.append(Verdict(line["stage"], line["item"], gate.text, value, passed))
    return found
