"""`layout: auto` on a device: the first of the candidates that is not known to exceed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.forecast.memory import GIB
from trainer.layout.candidates import list_candidates
from trainer.layout.need import STATE, Need, measure_need
from trainer.layout.resolve import Layout, resolve_layout
from trainer.settings.config import Config
from trainer.settings.memory_remedies import describe_remedies, find_remedies

if TYPE_CHECKING:
    from trainer.shapes.decoder_shapes import DecoderShape

MOST_TOLD = 3


@dataclass(frozen=True)
class Choice:
    """What `auto` came to."""

    layout: Layout
    """The one that fits, with the reason; where none does, the one that needs least."""
    need: Need
    left_out: Sequence[Need]
    """Known to exceed the device."""
    fits: bool

    def tell_left_out(self, device_gib: float) -> str:
        """One sentence; "" where nothing was."""
        if not self.left_out:
            return ""
        told = "; ".join(need.describe() for need in self.left_out[:MOST_TOLD])
        more = len(self.left_out) - MOST_TOLD
        return f"left out, for a device has {device_gib:.2f} GiB: {told}" + (
            f"; and {more} more" if more > 0 else ""
        )

    def tell_least(self) -> str:
        """Where none fits: what the one that needs least needs it for."""
        return f"the least is {self.need.gib:.2f} GiB of {self.layout.name}, most of it {self.need.largest}"

    def advise(self, config: Config) -> str:
        """What to try first, as a user types it."""
        rest = find_remedies(config, self.layout.axes.world_size)
        if self.need.source == STATE:  # smaller batches and recomputation leave the state as it is
            rest = [each for each in rest if "offload" in each or "strategy" in each]
        weights = ", run.config.init=pretrained" if config.init == "scratch" else ""
        return describe_remedies(rest[:1]) or (
            f"more processes, or adapters alone (run.config.lora_rank=16{weights})"
        )


def choose_layout(
    config: Config, world_size: int, shape: DecoderShape, device_bytes: int, folders: Sequence[Path] = ()
) -> Choice:
    """Of the strategy nd.

    Raises:
        ConfigError: naming every broken rule.
    """
    device_gib = device_bytes / GIB
    left_out: list[Need] = []
    for layout in list_candidates(config, world_size, shape):
        need = measure_need(config, world_size, shape, layout, folders)
        if not need.exceeds(device_gib):
            choice = Choice(layout, need, left_out, fits=True)
            told = choice.tell_left_out(device_gib)
            if told and need.source == STATE:
                told += f"; of {layout.name} no operations file tells more than its state, {need.gib:.2f} GiB"
            return (
                replace(choice, layout=replace(layout, reason=f"{layout.reason}; {told}")) if told else choice
            )
        left_out.append(need)
    least = min(left_out, key=lambda need: need.gib)
    return Choice(least.layout, least, left_out, fits=False)


def resolve_on_device(
    config: Config, world_size: int, shape: DecoderShape, device_bytes: int | None
) -> Layout:
    """The layout of a run of strategy nd on devices of this memory; None = not known, it makes no difference.

    Raises:
        ConfigError: naming every broken rule.
    """
    if device_bytes is None or not depends_on_device(config):
        return resolve_layout(config, world_size, shape)
    return choose_layout(config, world_size, shape, device_bytes).layout


def depends_on_device(config: Config) -> bool:
    """Whether there is something to choose by memory."""
    return config.strategy == "nd" and config.layout == "auto" and config.dimensions > 1
