"""Amounts as Kubernetes writes them, for programs that write them otherwise."""

from __future__ import annotations

import math
import re

UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def read_amount(text: str) -> float:
    """`500m` is 0.5, `2Gi` 2147483648.

    Raises:
        ValueError: it is none.
    """
    found = re.fullmatch(r"([0-9.]+)(m|k|[KMGT]i?|)", text)
    if not found:
        raise ValueError(f"{text!r} is no amount")
    return float(found[1]) / 1000 if found[2] == "m" else float(found[1]) * UNITS[found[2]]


def count_cpus(text: str) -> int:
    """Whole ones, at least one; "" = one."""
    return max(1, math.ceil(read_amount(text))) if text else 1


def count_mib(text: str) -> int:
    """Whole MiB, rounded up."""
    return math.ceil(read_amount(text) / UNITS["Mi"])
