"""What a run asks for.

A setting of an operations file and the text of one that is asked for: whether they are the same, how they read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratlab.run_settings import find_image_size, say_image_size


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


OF_A_MODEL = ("model_layers", "model_hidden", "model_heads", "model_kv_heads", "model_intermediate")
OWN = (*OF_A_MODEL, "model_patch", "model_vocab")
"""Settings that are the model's own where they are 0."""


def as_text(value: Any) -> str:
    """As a pod's variables have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_same(model: str, name: str, value: Any, text: str) -> bool:
    """Whether `value` of a file is what is asked for."""
    if name == "image_size" and text.isdecimal():
        return find_image_size(model, value) == find_image_size(model, text)
    if isinstance(value, bool | str):
        return as_text(value) == (text.lower() if isinstance(value, bool) else text)
    try:
        return float(text) == float(value)
    except ValueError:
        return False


def say_setting(model: str, name: str, value: Any) -> str:
    """For a reader, to whom 0 says nothing.

    >>> say_setting("vit_huge", "image_size", 0), say_setting("x", "packing", True), say_setting("x", "teacher", "")
    ("224 (the model's own)", 'true', 'none')
    """
    text = as_text(value)
    if name == "image_size":
        return say_image_size(model, text)
    if text == "0" and name in OWN:
        return "the model's own"
    return text or "none"
