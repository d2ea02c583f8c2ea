"""Failures that end a run from inside: a loss or gradient that is not finite, and a device out of memory.

not finite       in which step, of which rank, and how the run handles it. The sum over the ranks shows it to every rank
                 at the same write of the metrics. Only then the ranks ask each other whose share it was; a run whose
                 losses are finite has no extra work.
out of memory    at which step and phase, the holders of memory, and settings to try next.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stratlab_spec.exit_codes import NotFinite, OutOfMemory
from stratlab_spec.memory.prediction import describe_remedies, find_remedies
from stratlab_spec.run_directory import write_json
from trainer.distributed.world import gather_objects
from trainer.measuring.held_tensors import GIB, Observed, list_shards
from trainer.measuring.memory import Counters
from trainer.run import Run

LONGEST_SKIP = 20
"""Steps in a row: by then the weights themselves are not finite, or no batch is of use."""
HELP = "lower TRAINER_LR or set TRAINER_CLIP_NORM"


class Step(NamedTuple):
    """Facts of one step that all ranks know."""

    number: int
    loss: float
    """Over all ranks."""
    norm: float
    skipped: bool
    """The engine has left its update out."""


class Guard:
    """Decide about values that are not finite, on every rank alike.

    Args:
        policy: the setting on_not_finite.
        scales_loss: a loss scale is in use, which finds its value by gradients that are not finite: they are not a
            fault.
        node: the node of this rank.
    """

    def __init__(self, policy: str, scales_loss: bool, node: str) -> None:
        self._policy, self._scales_loss, self._node = policy, scales_loss, node
        self._in_a_row = 0
        self.found = 0
        """Steps of this attempt whose loss or gradient was not finite."""

    def counts_as_skipped(self, step: Step) -> bool:
        """Return whether its update was left out, by the engine or by this policy."""
        return step.skipped or (self._policy == "skip" and not math.isfinite(step.norm))

    def forget(self) -> None:
        """Note that all steps since the last call were finite, and that none was left out."""
        self._in_a_row = 0

    def check(self, steps: Sequence[Step], shares: Sequence[Tensor]) -> list[tuple[int, str]]:
        """Return (step, sentence) for every step to record, and count it; collective if a value is not finite.

        Args:
            shares: this rank's losses of these steps.

        Raises:
            NotFinite: on every rank, if the policy is to stop, or skipping does not help.
        """
        bad = [step for step in steps if self._is_bad(step)]
        for step in steps:
            self._in_a_row = self._in_a_row + 1 if self.counts_as_skipped(step) and self._is_bad(step) else 0
            if self._in_a_row > LONGEST_SKIP:
                left_out = f"{LONGEST_SKIP} steps in a row were left out, the last one {step.number}"
                raise NotFinite(f"{left_out}; {HELP} [SL-skips-in-a-row]")
        if not bad:
            return []
        self.found += len(bad)
        sentence = self._describe(bad[0], self._find_owners(steps, shares))
        if self._policy == "stop":
            raise NotFinite(f"{sentence}; {HELP}")
        skipped = sum(self.counts_as_skipped(step) for step in bad)
        counts = f"of these {len(steps)} steps {len(bad)} are so, {skipped} left out"
        return [(bad[0].number, f"{sentence}; {counts}")]

    def _is_bad(self, step: Step) -> bool:
        if not math.isfinite(step.loss):
            return True
        return not self._scales_loss and (step.skipped or not math.isfinite(step.norm))

    def _find_owners(self, steps: Sequence[Step], shares: Sequence[Tensor]) -> list[tuple[int, int, str]]:
        """Return (step, rank, node) of the earliest share of a loss that was not finite; of several ranks if at
        once.
        """
        finite = torch.stack(list(shares)).isfinite().tolist()
        first = next((step.number for step, good in zip(steps, finite, strict=True) if not good), None)
        answers = enumerate(gather_objects((first, self._node)))
        found = [(step, rank, node) for rank, (step, node) in answers if step is not None]
        return [owner for owner in found if owner[0] == min(found)[0]]

    def _describe(self, step: Step, owners: Sequence[tuple[int, int, str]]) -> str:
        if math.isfinite(step.loss):
            return f"the gradient of step {step.number} is not finite, on all ranks together [SL-gradient-not-finite]"
        text = f"the loss of step {step.number} is not finite"
        if not owners:
            return f"{text}: it overflows as a sum, of each rank it is finite [SL-loss-sum-overflows]"
        if len(owners) == dist.get_world_size() > 1:
            text += ", on all ranks at once: so are the weights, or the learning rate is too high"
            return f"{text} [SL-loss-not-finite-anywhere]"
        named = [name_rank(rank, node) for _, rank, node in owners[:4]]
        return f"{text}, first on {', '.join(named)} [SL-loss-not-finite]"


def name_rank(rank: int, node: str) -> str:
    return f"rank {rank}" + (f" (node {node})" if node else "")


log = logging.getLogger("trainer")

REST = "activations and all else"
"""`rest` of the file, in words."""


@dataclass(frozen=True)
class Holders:
    """The holders of memory and its size; read after a device ran out of memory."""

    counters: Counters
    observed: Observed
    module: nn.Module
    """The engine's; used if the first step did not end, after which `observed` knows more."""
    data_set: Callable[[], int]
    """Its bytes on the device."""
    phase: Callable[[], str]
    step: Callable[[], int]


@contextmanager
def explain_out_of_memory(run: Run, holders: Holders) -> Iterator[None]:
    """Replace torch's error by one that names the holders of memory and settings to try; leave it in the run directory.

    Raises:
        OutOfMemory: instead of torch.OutOfMemoryError.
    """
    phase, before = "", (0, 0)
    try:
        yield
    except torch.OutOfMemoryError as failure:
        with suppress(Exception):  # an error of the description must not hide the failure
            phase = holders.phase()
            reading = holders.counters.read()
            before = (reading.held, reading.peak)
        content = _describe(run, holders, phase, before, str(failure))
        with suppress(OSError):
            write_json(run.folder.out_of_memory(run.world.rank), content)
        raise OutOfMemory(_sentence(content)) from failure


def _describe(
    run: Run, holders: Holders, phase: str, bytes_held: tuple[int, int], said: str
) -> dict[str, Any]:
    held, peak = bytes_held
    if held and "parameters" not in holders.observed.bytes_held:
        # weights and gradients of the first step; further memory of ZeRO counts as the rest
        parameters = list(holders.module.parameters())
        holders.observed.add("parameters", [*parameters, *list_shards(parameters)])
        holders.observed.add("gradients", [p.grad for p in parameters if p.grad is not None])
    parts = {"data_set": holders.data_set(), **holders.observed.bytes_held} if held else {}
    if holders.counters.on_device:
        parts = {name: size - holders.observed.on_host.get(name, 0) for name, size in parts.items()}
    parts["rest"] = max(0, peak - sum(parts.values()))
    return {
        "rank": run.world.rank,
        "node": run.world.node,
        "step": holders.step(),
        "phase": phase,
        "said": said.splitlines()[0][:500] if said else "",
        "source": holders.counters.source,
        "held_gib": held / GIB,
        "peak_gib": peak / GIB,
        "parts_gib": {name: size / GIB for name, size in parts.items()},
        "try": find_remedies(run.config, run.world.size),
    }


def _sentence(content: dict[str, Any]) -> str:
    where = name_rank(content["rank"], content["node"])
    when = f"at step {content['step']}" if content["step"] else "before the first step"
    when += f" ({content['phase']})" if content["phase"] else ""
    parts = sorted(content["parts_gib"].items(), key=lambda part: -part[1])
    held = ", ".join(f"{REST if name == 'rest' else name} {size:.2f}" for name, size in parts)
    # `CUDA out of memory. Tried to allocate 2.00 GiB`: the file has all of it
    failure = ". ".join(content["said"].split(". ")[:2])
    sentence = f"{where} {when}: {failure}; at most {content['peak_gib']:.2f} GiB were held: {held}"
    remedies = describe_remedies(content["try"])
    help = f"try {remedies}" if remedies else "it needs more or larger devices"
    return f"{sentence}; {help} [SL-device-memory]"
