"""Amounts as Kubernetes writes them, for programs that write them otherwise."""

from __future__ import annotations

import math
import re

UNITS = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1,
    "k": 10**3,
    **{letter: 10 ** (3 * power) for power, letter in enumerate("MGTPE", 2)},
    **{f"{letter}i": 2 ** (10 * power) for power, letter in enumerate("KMGTPE", 1)},
}
AMOUNT = re.compile(rf"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?({'|'.join(UNITS)})")


def read_amount(text: str) -> float:
    """`500m` is 0.5, `2Gi` 2147483648.

    Raises:
        ValueError: it is none.
    """
    found = AMOUNT.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no amount [SL-no-amount]")
    return float(found[1] + (found[2] or "")) * UNITS[found[3]]


def count_cpus(text: str) -> int:
    """Whole ones, at least one; "" = one."""
    return max(1, math.ceil(read_amount(text))) if text else 1


def count_mib(text: str) -> int:
    """Whole MiB, rounded up."""
    return math.ceil(read_amount(text) / UNITS["Mi"])
