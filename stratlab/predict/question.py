"""What a run asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """One run.

    Attributes:
        name: of the run, as the user knows it.
        settings: setting -> text, as its pods have them.
        per_node: ranks that share a node; 0 = nobody has said.
        layers: 0 = the model's own.
        global_batch: rows of a step; 0 = not said, several micro-batches.
        whole: what `settings` leaves out has its default; else it is as the file has it.
        typed: of a question that is not whole: the settings that the user has given.
    """

    name: str
    settings: Mapping[str, str]
    ranks: int
    per_node: int
    rows: int
    global_batch: int
    layers: int = 0
    whole: bool = True
    typed: frozenset[str] = frozenset()

    def accumulates(self, share: int) -> bool:
        """Whether a step has several micro-batches. `share`: ranks that see different rows."""
        return not self.global_batch or self.global_batch // (self.rows * share) != 1

    def find_refusal(self, share: int) -> str:
        """Why no run can start with this batch; "" = it can."""
        step = self.rows * share
        if self.global_batch % step == 0:
            return ""
        return (
            f"global_batch_size={self.global_batch}: must be a multiple of micro_batch_size={self.rows} x {share} = "
            f"{step}, for example {max(1, self.global_batch // step) * step}"
        )

    def find_smaller(self, largest: int, share: int) -> int:
        """The most rows, up to `largest` and below those of the run, of which the same step can be made."""
        step = self.global_batch // share if self.global_batch else self.rows
        return next(rows for rows in range(min(largest, self.rows - 1), 0, -1) if step % rows == 0)
