"""Clock offsets from matched collectives: exact where the clocks differ, nothing where they do not."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from stratlab.traces.clocks import find_offsets

MS = 1_000_000
ORIGIN = 1_790_857_026_000_000_001  # float64 has steps of 256 ns here


def build_ends(count: int, offset_ns: int = 0, noise_ns: int = 0, seed: int = 0) -> NDArray[np.int64]:
    """Ends of collectives that come every 7 ms."""
    noise = np.random.default_rng(seed).integers(-noise_ns, noise_ns + 1, count)
    return ORIGIN + offset_ns + np.arange(count, dtype=np.int64) * 7 * MS + noise


def test_offsets_are_exact_to_the_nanosecond() -> None:
    planted = {0: 0, 1: 1_234_567_891, 2: -5 * MS - 3, 5: 3_600_000 * MS + 1}
    clocks = find_offsets({rank: build_ends(8, offset) for rank, offset in planted.items()})
    assert clocks.offsets_ns == planted
    assert (clocks.aligned, clocks.residual_ns, clocks.matched) == (True, 0, 8)
    assert "+1234.568 ms" in clocks.reason and "-5.000 ms" in clocks.reason


def test_lowest_rank_is_the_reference_whatever_the_order() -> None:
    assert find_offsets({7: build_ends(5, 9 * MS), 3: build_ends(5)}).offsets_ns == {3: 0, 7: 9 * MS}


@pytest.mark.parametrize("offset_ns", [0, 152_000, -999_999])
def test_below_a_millisecond_nothing_is_corrected(offset_ns: int) -> None:
    clocks = find_offsets({0: build_ends(9), 1: build_ends(9, offset_ns)})
    assert clocks.offsets_ns == {0: 0, 1: 0} and not clocks.aligned
    assert f"{abs(offset_ns) / 1e6:.3f} ms" in clocks.reason
    assert find_offsets({0: build_ends(9), 1: build_ends(9, -MS)}).offsets_ns == {0: 0, 1: -MS}


def test_outliers_do_not_move_the_offset() -> None:
    ends = build_ends(9, 40 * MS, noise_ns=5_000)
    ends[[1, 4, 5, 8]] += 18 * MS
    clocks = find_offsets({0: build_ends(9), 1: ends})
    assert abs(clocks.offsets_ns[1] - 40 * MS) <= 5_000
    assert clocks.residual_ns is not None and clocks.residual_ns <= 10_000


def test_collectives_that_disagree_correct_nothing() -> None:
    clocks = find_offsets(
        {0: build_ends(50), 1: build_ends(50, 4 * MS, noise_ns=12 * MS), 2: build_ends(50, 3 * MS)}
    )
    assert clocks.offsets_ns == {0: 0, 1: 0, 2: 3 * MS}
    assert "rank 1 " in clocks.reason and clocks.aligned
    assert clocks.residual_ns is not None and clocks.residual_ns > 3 * MS


@pytest.mark.parametrize("counts", [(), (9,), (2, 2), (0, 0)])
def test_too_little_to_compare(counts: tuple[int, ...]) -> None:
    clocks = find_offsets({rank: build_ends(count, 9 * MS * rank) for rank, count in enumerate(counts)})
    assert clocks.offsets_ns == dict.fromkeys(range(len(counts)), 0)
    assert (clocks.aligned, clocks.residual_ns, clocks.matched) == (False, None, counts[0] if counts else 0)
