"""Bytes and operations of a step on the runs that are not among the chosen ones of tests/trainer/ranks/test_wire.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.trainer.ranks import test_wire
from tests.trainer.ranks.test_wire import CHOSEN, EVERY, Found, Run, by_file, read_run  # noqa: F401


@pytest.fixture(scope="module")
def runs() -> Sequence[Run]:
    return [run for run in EVERY if run not in CHOSEN]


def others(runs: Sequence[Run]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("run", [run for run in runs if run not in CHOSEN], ids=by_file)


@others(test_wire.DDP)
def test_ddp(run: Run, read_run: Callable[[Run], Found]) -> None:  # noqa: F811
    test_wire.test_ddp(run, read_run)


@others(test_wire.FSDP)
def test_fsdp(run: Run, read_run: Callable[[Run], Found]) -> None:  # noqa: F811
    test_wire.test_fsdp(run, read_run)


@others(test_wire.HSDP)
def test_hsdp(run: Run, read_run: Callable[[Run], Found]) -> None:  # noqa: F811
    test_wire.test_hsdp(run, read_run)


@others(test_wire.IN_16_BITS)
def test_in_16_bits(run: Run, read_run: Callable[[Run], Found]) -> None:  # noqa: F811
    test_wire.test_weights_of_products_are_gathered_in_16_bits_and_gradients_reduced_in_32(run, read_run)


@others(test_wire.FORCED)
def test_forced_gathers(run: Run, read_run: Callable[[Run], Found]) -> None:  # noqa: F811
    test_wire.test_forced_gathers_are_the_formula(run, read_run)


def test_nothing_is_left_out() -> None:
    elsewhere = [
        test_wire.SINGLE,
        *test_wire.KNOBS,
        *test_wire.DDP_KNOBS,
        *test_wire.SHIPPED,
        *test_wire.QUANTIZED,
    ]
    assert set(elsewhere) <= set(CHOSEN)
