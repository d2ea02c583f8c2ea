"""A device whose memory did not suffice: at which step and phase, what held it, and what to try next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainer.failures import OutOfMemory
from trainer.measuring.deepspeed_shards import list_shards
from trainer.measuring.memory_counters import GIB, Counters
from trainer.measuring.observation import Observed
from trainer.record.run_directory import write_json
from trainer.run import Run
from trainer.settings.memory_remedies import describe_remedies, find_remedies

log = logging.getLogger("trainer")

REST = "activations and all else"
"""`rest` of the file, in words."""


@dataclass(frozen=True)
class Holders:
    """Who holds memory, and how much there is; asked when it was not enough."""

    counters: Counters
    observed: Observed
    module: nn.Module
    """The engine's: asked where the first step has not come to its end, behind which `observed` knows more."""
    data_set: Callable[[], int]
    """Its bytes on the device."""
    phase: Callable[[], str]
    step: Callable[[], int]


@contextmanager
def explain_out_of_memory(run: Run, holders: Holders) -> Iterator[None]:
    """Makes of torch's error one that says what held the memory and what to try, and leaves it in the run directory.

    Raises:
        OutOfMemory: instead of torch.OutOfMemoryError.
    """
    phase, before = "", (0, 0)
    try:
        yield
    except torch.OutOfMemoryError as failure:
        with suppress(Exception):  # what cannot be told must not hide the failure
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
        _observe(holders)
    parts = {"data_set": holders.data_set(), **holders.observed.bytes_held} if held else {}
    if holders.counters.on_device:
        parts = {name: size - holders.observed.on_host.get(name, 0) for name, size in parts.items()}
    parts["rest"] = max(0, peak - sum(parts.values()))
    remedies = find_remedies(run.config, run.world.size)
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
        "try": remedies,
    }


def _observe(holders: Holders) -> None:
    """What there is of weights and gradients in the first step; what ZeRO keeps beside them counts as the rest."""
    parameters = list(holders.module.parameters())
    holders.observed.add("parameters", [*parameters, *list_shards(parameters)])
    holders.observed.add("gradients", [p.grad for p in parameters if p.grad is not None])


def _shorten(said: str) -> str:
    """`CUDA out of memory. Tried to allocate 2.00 GiB`: the first two sentences; the file has all of it."""
    return ". ".join(said.split(". ")[:2])


def _sentence(content: dict[str, Any]) -> str:
    where = f"rank {content['rank']}" + (f" (node {content['node']})" if content["node"] else "")
    when = f"at step {content['step']}" if content["step"] else "before the first step"
    when += f" ({content['phase']})" if content["phase"] else ""
    parts = sorted(content["parts_gib"].items(), key=lambda part: -part[1])
    held = ", ".join(f"{REST if name == 'rest' else name} {size:.2f}" for name, size in parts)
    sentence = f"{where} {when}: {_shorten(content['said'])}; at most {content['peak_gib']:.2f} GiB were held: {held}"
    remedies = describe_remedies(content["try"])
    help = f"try {remedies}" if remedies else "it needs more or larger devices"
    return f"{sentence}; {help} [SL-device-memory]"
