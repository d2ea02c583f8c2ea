"""How far the clocks of the ranks' hosts differ, from when they leave the same collectives.

All ranks leave a collective together, however late one of them entered it: on one node the ends of an NCCL kernel agree
within 1-7 us while the starts differ by milliseconds. gloo's ends agree to about 150 us in the median, with outliers of
18 ms: below 1 ms nothing is corrected.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SMALLEST_NS = 1_000_000
FEWEST_CALLS = 3


@dataclass(frozen=True)
class Clocks:
    """What to take from each rank's times so that all ranks have the clock of the lowest rank."""

    offsets_ns: dict[int, int]  # 0 where nothing is corrected
    aligned: bool  # True if a rank is corrected
    residual_ns: (
        int | None
    )  # largest over ranks: median distance of a collective's end from the rank's offset
    matched: int  # collectives that were compared
    reason: str


def find_offsets(calls: dict[int, NDArray[np.int64]]) -> Clocks:
    """Offset of a rank = median over the collectives of (its end - the lowest rank's end).

    Args:
        calls: per rank the absolute end times, ns, of the same collectives in the same order.
    """
    zero = dict.fromkeys(sorted(calls), 0)
    lengths = {len(ends) for ends in calls.values()}
    assert len(lengths) <= 1, f"collectives are not matched: {lengths}"
    matched = lengths.pop() if lengths else 0
    if len(calls) < 2:
        return Clocks(zero, False, None, matched, "one rank has nothing to be compared with")
    if matched < FEWEST_CALLS:
        found = f"{matched} collectives are in the traces of all ranks"
        return Clocks(zero, False, None, matched, f"{found}, at least {FEWEST_CALLS} are needed")

    reference = calls[min(calls)]
    measured, spread = {}, {}
    for rank in zero:
        distance = calls[rank] - reference
        measured[rank] = _median(distance)
        spread[rank] = _median(np.abs(distance - measured[rank]))
    # an offset that its own collectives do not agree on is none: they were not left together
    clear = {rank: abs(offset) > 2 * spread[rank] for rank, offset in measured.items()}
    offsets = {
        rank: offset if abs(offset) >= SMALLEST_NS and clear[rank] else 0 for rank, offset in measured.items()
    }
    vague = [rank for rank, offset in measured.items() if abs(offset) >= SMALLEST_NS and not clear[rank]]
    return Clocks(
        offsets, any(offsets.values()), max(spread.values()), matched, _explain(measured, offsets, vague)
    )


def _median(values: NDArray[np.int64]) -> int:
    """The lower one of two: a mean in float64 would lose nanoseconds."""
    middle = (len(values) - 1) // 2
    return int(np.partition(values, middle)[middle])


def _explain(measured: dict[int, int], offsets: dict[int, int], vague: list[int]) -> str:
    corrected = [f"rank {rank} by {offset / 1e6:+.3f} ms" for rank, offset in offsets.items() if offset]
    sentences = []
    if corrected:
        sentences.append(f"clocks are ahead of rank {min(offsets)}'s and corrected: {', '.join(corrected)}")
    if vague:
        ranks = ", ".join(map(str, vague))
        sentences.append(f"rank {ranks} is not corrected: its collectives disagree by as much as they differ")
    if not corrected and not vague:
        largest = max(abs(offset) for offset in measured.values())
        sentences.append(f"clocks agree within {largest / 1e6:.3f} ms; below 1 ms nothing is corrected")
    return "; ".join(sentences)
