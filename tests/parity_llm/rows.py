"""Rows of random tokens, drawn so that a wrong mean, position or mask shows.

Padded: one document per row, as long as it likes, and a question of its own length that is not learnt. So every rank
has another number of labels. Packed: documents of any length one after the other; the row's rest is padding.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from tests.parity_llm.models import VOCAB

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.data.batches import Batch

ROWS, SEQ_LEN = 8, 32
SHORTEST = 5  # tokens of a document


def draw_rows(step: int, packed: bool) -> tuple[Tensor, Tensor]:
    """(inputs [ROWS, 2, SEQ_LEN], labels [ROWS, SEQ_LEN]) of the global batch; the same in every process."""
    import torch

    from trainer.data.text.token_rows import IGNORED

    draw = torch.Generator().manual_seed(1000 * packed + step)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=draw))

    ids = torch.randint(0, VOCAB, (ROWS, SEQ_LEN), generator=draw)
    for place in range(1, SEQ_LEN):  # seven of ten tokens follow from the one before: something to learn
        follows = torch.rand(ROWS, generator=draw) < 0.7
        ids[:, place] = torch.where(follows, (ids[:, place - 1] * 3 + 1) % VOCAB, ids[:, place])
    positions = torch.arange(SEQ_LEN).repeat(ROWS, 1)
    labels = torch.full_like(ids, IGNORED)
    for row in range(ROWS):
        start = 0
        while start + SHORTEST <= SEQ_LEN:
            end = number(SEQ_LEN // 2, SEQ_LEN) if not packed else number(start + SHORTEST, SEQ_LEN)
            answer = start + number(1, (end - start) // 2)
            labels[row, answer - 1 : end - 1] = ids[row, answer:end]
            if not packed:
                break
            positions[row, start:] = torch.arange(SEQ_LEN - start)
            start = end
        if packed and start < SEQ_LEN:
            positions[row, start:] = torch.arange(SEQ_LEN - start)
    return torch.stack([ids, positions], 1), labels


def build_share(step: int, packed: bool, rank: int, ranks: int, micro_size: int) -> Batch:
    """What one of `ranks` that see different rows gets of it."""
    from trainer.data.batches import Batch
    from trainer.data.text.token_rows import IGNORED

    inputs, labels = draw_rows(step, packed)
    mine = slice(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
    micro = list(zip(inputs[mine].split(micro_size), labels[mine].split(micro_size), strict=True))
    count = int((labels != IGNORED).sum())
    return Batch(micro, ROWS, count, tokens=labels.numel(), useful_tokens=labels.numel())


def split_documents(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(ids, labels) with every document in a row of its own, filled up on the right: no packing any more."""
    import torch

    from trainer.data.text.token_rows import IGNORED

    ids, found = [], []
    for (row, positions), wanted in zip(inputs, labels, strict=True):
        starts = [*torch.nonzero(positions == 0).flatten().tolist(), SEQ_LEN]
        for start, end in itertools.pairwise(starts):
            rest = SEQ_LEN - (end - start)
            ids.append(torch.nn.functional.pad(row[start:end], (0, rest)))
            found.append(torch.nn.functional.pad(wanted[start:end], (0, rest), value=IGNORED))
    return torch.stack(ids), torch.stack(found)
