"""Every optimizer, one row each: what it can be told besides rate and decay, and what it keeps."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.settings.fields import Settings


@dataclass(frozen=True, kw_only=True)
class OptimizerRow:
    """One optimizer."""

    arguments: Mapping[str, tuple[str, ...]]
    """Its argument in torch.optim -> the settings it is made of."""
    moments: int
    """Tensors of the size of the trained parameters, in fp32, that it keeps in any case."""
    moments_with: Mapping[str, int]
    """Setting -> how many more it keeps where that is not zero or false."""


OPTIMIZERS: dict[str, OptimizerRow] = {
    "sgd": OptimizerRow(
        arguments={"momentum": ("momentum",), "nesterov": ("nesterov",)},
        moments=0,
        moments_with={"momentum": 1},
    ),
    "adamw": OptimizerRow(
        arguments={"betas": ("beta1", "beta2"), "eps": ("eps",)},
        moments=2,
        moments_with={},
    ),
}
SHARED = ("lr", "weight_decay")
ARGUMENTS = (*SHARED, *(name for row in OPTIMIZERS.values() for name in row.arguments))
"""Of all of them."""


def list_own_settings(optimizer: str) -> tuple[str, ...]:
    """Settings that this optimizer has and the other ones have not."""
    return tuple(setting for settings in OPTIMIZERS[optimizer].arguments.values() for setting in settings)


def count_moments(config: Settings) -> int:
    """Tensors of the size of the trained parameters that the run's optimizer keeps."""
    row = OPTIMIZERS[config.optimizer]
    return row.moments + sum(more for name, more in row.moments_with.items() if getattr(config, name))


def describe_for_tools() -> str:
    """JSON of the columns that stratlab reads, which may not import the trainer."""
    rows = {name: asdict(row) for name, row in OPTIMIZERS.items()}
    return (
        json.dumps(
            {name: {key: row[key] for key in ("moments", "moments_with")} for name, row in rows.items()},
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":  # make schema
    Path(sys.argv[1]).write_text(describe_for_tools())
