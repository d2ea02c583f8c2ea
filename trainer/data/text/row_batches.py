"""From row indices to this rank's micro-batches of text on its device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from trainer.data.batches import IGNORED, Batch, Share
from trainer.data.order import SampleOrder
from trainer.data.residence import to_device
from trainer.data.text.rows import TokenRows


def build_text_batch(
    rows: TokenRows,
    order: SampleOrder,
    step: int,
    global_size: int,
    micro_size: int,
    share: Share,
    device: str,
) -> Batch:
    """The micro-batches of `step` (from 1) for one rank: a contiguous share of the `global_size` rows of the step.

    Labels and tokens of the whole step come from stored counts: no rank looks at another's rows, and none asks.
    """
    indices = order.batch(step, global_size)
    local = global_size // share.ranks
    mine = indices[share.rank * local : (share.rank + 1) * local]
    micro = []
    for start in range(0, local, micro_size):
        inputs, labels = rows.rows(mine[start : start + micro_size])
        micro.append((to_device(inputs, device), to_device(labels, device)))
    return Batch(
        micro,
        global_samples=global_size,
        global_labels=rows.label_counts(indices),
        tokens=global_size * rows.seq_len,
        useful_tokens=rows.token_counts(indices),
        token_pairs=rows.pair_counts(indices),
    )


def text_evaluation_batches(
    rows: TokenRows, micro_size: int, share: Share, device: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """(inputs, labels) of every row once over all ranks, equally many batches on each, all of one shape.

    Beyond the last row comes the last row again, with no label.
    """
    for start in range(0, len(rows), micro_size * share.ranks):
        wanted = start + share.rank * micro_size + np.arange(micro_size)
        inputs, labels = rows.rows(np.minimum(wanted, len(rows) - 1))
        labels[wanted >= len(rows)] = IGNORED
        yield to_device(inputs, device), to_device(labels, device)
