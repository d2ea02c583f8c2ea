"""Which blocks are gathered while another one computes, as fully_shard is told."""

from __future__ import annotations

from typing import Any

from trainer.parallel.fully_shard import TORCHS_OWN, apply_prefetch


class Told:
    """What of fully_shard is asked for, under a name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.forward: list[str] | None = None
        self.backward: list[str] | None = None

    def set_modules_to_forward_prefetch(self, modules: list[Any]) -> None:
        self.forward = [module.name for module in modules]

    def set_modules_to_backward_prefetch(self, modules: list[Any]) -> None:
        self.backward = [module.name for module in modules]


def tell(ahead: int) -> list[Told]:
    """Four blocks; the third has experts, sharded on their own before it."""
    blocks: list[list[Any]] = [[Told("0")], [Told("1")], [Told("2 experts"), Told("2")], [Told("3")]]
    apply_prefetch(blocks, ahead)
    return [block[-1] for block in blocks]


def test_those_that_come_next_first() -> None:
    found = tell(2)
    assert [block.forward for block in found] == [["1", "2", "2 experts"], ["2", "2 experts", "3"], ["3"], []]
    assert [block.backward for block in found] == [[], ["0"], ["1", "0"], ["2", "2 experts", "1"]]


def test_torchs_own_way_is_left_alone() -> None:
    assert all(block.forward is None and block.backward is None for block in tell(TORCHS_OWN))
    assert [block.backward for block in tell(0)] == [[], [], [], []], "nothing ahead"
