from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.text.token_cache import pack_lengths


def fill(lengths, seq_len):
    """(useful share of the places, the best that any packing could reach), after checking that it is a packing."""
    order, counts = pack_lengths(lengths, seq_len)
    assert sorted(order) == list(range(len(lengths))), "every document once"
    assert counts.sum() == len(lengths) and counts.min() > 0
    used = np.add.reduceat(lengths[order], np.cumsum(counts) - counts)
    assert used.max() <= seq_len
    fewest = fewest_rows(lengths, seq_len)
    return lengths.sum() / (len(counts) * seq_len), lengths.sum() / (fewest * seq_len)


def fewest_rows(lengths, seq_len):
    """No packing needs fewer: the bound L2 of Martello and Toth (1990).

    For any k: documents longer than seq_len - k share a row with none from k up, those above half a row not with each
    other, and what those leave free is all there is for the documents from k to half a row without further rows.
    """
    bounds = [-(-lengths.sum() // seq_len)]
    for k in range(1, seq_len // 2 + 1):
        alone = lengths > seq_len - k
        large = (2 * lengths > seq_len) & ~alone
        small = (2 * lengths <= seq_len) & (lengths >= k)
        free = large.sum() * seq_len - lengths[large].sum()
        bounds.append(alone.sum() + large.sum() + max(0, -(-(lengths[small].sum() - free) // seq_len)))
    return max(bounds)


@pytest.mark.parametrize(
    ("kind", "seq_len"), [("lognormal", 2048), ("pareto", 1024), ("uniform", 512), ("two humps", 512)]
)
def test_99_percent_of_the_possible_on_long_tails(kind, seq_len):
    random = np.random.default_rng(3)
    drawn = {
        "lognormal": random.lognormal(5.4, 0.6, 3000),  # about MetaMathQA's: median 220, some above 1000
        "pareto": 30 * (1 + random.pareto(1.2, 3000)),
        "uniform": random.uniform(16, 400, 3000),
        "two humps": np.concatenate([random.normal(60, 15, 1500), random.normal(400, 60, 1500)]),
    }[kind]
    useful, possible = fill(np.clip(drawn, 16, seq_len).astype(np.int64), seq_len)
    assert useful >= 0.99 * possible, (useful, possible)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=120))
def test_any_lengths(lengths):
    useful, possible = fill(np.array(lengths), 40)
    assert useful > 0.5 * possible
