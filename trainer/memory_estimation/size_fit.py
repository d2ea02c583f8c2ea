"""Find sizes as products of a model's sizes: one recording then serves every size of a family.

    a size in several draws, the model's sizes of each ─▶ SizeFit ─▶ coefficient x symbols, such as `4 R T H`

Operations, allocations and shapes of weights are explained by it (step_recording.py, record_operations.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement, product
from math import prod

from stratlab_spec.memory.recording import BLOCK_BYTES


class UnexplainedSize(ValueError):
    """No product of symbols gives a size in every draw."""


class SizeFit:
    """Find the product of symbols that gives a size in every draw.

    Args:
        draws: the sizes of each.
        alone: symbols of which a product has at most one (numbers of tokens).
    """

    MOST = 5

    def __init__(self, draws: Sequence[Mapping[str, int]], alone: Sequence[str]) -> None:
        self._draws = draws
        self._known: dict[tuple[Fraction, ...], tuple[int, tuple[str, ...]]] = {}
        self._answers: dict[tuple[int, ...], str] = {}
        others = [name for name in draws[0] if name not in alone]
        for symbols in self._products(others, alone):
            values = [prod(draw[name] for name in symbols) for draw in draws]
            if min(values) > 0:
                self._known.setdefault(_ratios(values), (values[0], symbols))

    def _products(self, others: Sequence[str], alone: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yield products, the shortest first, and those with a symbol of `alone` last: one chunk has all R T tokens."""
        for length in range(self.MOST + 1):
            for symbols in combinations_with_replacement(others, length):
                if all(symbols.count(name) <= 2 for name in symbols):
                    yield symbols
        for length in range(3):
            for name, symbols in product(alone, combinations_with_replacement(others, length)):
                yield (name, *symbols)

    def explain_bytes(self, values: Sequence[int]) -> str:
        """Return the same for bytes; one block of the allocator if they never need more (8 bytes for two rows).

        Raises:
            UnexplainedSize: as `explain`.
        """
        try:
            return self.explain(values)
        except UnexplainedSize:
            if max(values) > BLOCK_BYTES:
                raise
            return str(BLOCK_BYTES)

    def explain(self, values: Sequence[int]) -> str:
        """Return it as `recording.parse_size` reads it.

        Raises:
            UnexplainedSize: there is none.
        """
        asked = tuple(values)
        if asked not in self._answers:
            if not any(asked):
                return "0"
            found = self._known.get(_ratios(asked)) if all(asked) else None
            if found is None:
                raise UnexplainedSize(
                    f"{list(asked)} bytes with sizes {[dict(draw) for draw in self._draws]}"
                )
            first, symbols = found
            self._answers[asked] = " ".join((str(Fraction(asked[0], first)), *symbols))
        return self._answers[asked]


def _ratios(values: Sequence[int]) -> tuple[Fraction, ...]:
    return tuple(Fraction(value, values[0]) for value in values)


class UnequalSteps(ValueError):
    """The draws did not allocate in the same order."""
