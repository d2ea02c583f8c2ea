"""What takes less memory than these settings and trains the same, the cheapest first."""

from __future__ import annotations

from trainer.settings.config import Config
from trainer.settings.strategy_table import STRATEGIES

Settings = dict[str, str | int]


def find_remedies(config: Config, world_size: int) -> list[Settings]:
    """Settings to change, each entry on top of those before it. The samples of a step stay what they are.

    In this order: fewer samples at once, activations computed again, a strategy that holds less, host memory.
    """
    found: list[Settings] = []
    micro = config.micro_batch_size
    if micro > 1:
        found.append({"micro_batch_size": micro // _smallest_factor(micro)})
    if config.activation_checkpointing != "blocks":
        found.append({"activation_checkpointing": "blocks"})
    strategy = str(config.strategy)
    row = STRATEGIES[strategy]
    if world_size > 1 and row.holds_less:
        strategy = row.holds_less
        found.append({"strategy": strategy})
    places = ("none", *STRATEGIES[strategy].offload)
    known = places.index(config.offload) if config.offload in places else 0
    found += [{"offload": place} for place in places[known + 1 :]]
    return found


def describe_remedies(remedies: list[Settings]) -> str:
    """As a user types them: `run.config.micro_batch_size=16, then run.config.activation_checkpointing=blocks`."""
    return ", then ".join(f"run.config.{name}={value}" for each in remedies for name, value in each.items())


def _smallest_factor(number: int) -> int:
    return next(factor for factor in range(2, number + 1) if number % factor == 0)
