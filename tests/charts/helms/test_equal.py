"""Every version of helm renders the same objects: what the other tests say of one helm's holds for all."""

from __future__ import annotations

import pytest

from tests.charts.rendering import CHARTS, HELMS, find_program, render
from tests.charts.test_valid_objects import EVERYTHING
from tests.charts.unwrapping import WORKLOADS, workload_values

FIRST, *OTHERS = HELMS


@pytest.mark.parametrize("other", OTHERS)
def test_as_shipped(chart: str, other: str) -> None:
    first, second = (render(find_program(name), CHARTS / chart) for name in (FIRST, other))
    assert first == second


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(("api", "topology"), WORKLOADS)
def test_with_every_value(api: str, topology: str, other: str) -> None:
    values, arguments = {"run": EVERYTHING}, workload_values(api, topology)
    first, second = (
        render(find_program(name), CHARTS / "ddp", arguments, values=values) for name in (FIRST, other)
    )
    assert first == second


@pytest.mark.parametrize("other", OTHERS)
def test_a_preparation(other: str) -> None:
    settings = ["--set", "prepare.dataset=cifar100"]
    first, second = (render(find_program(name), CHARTS / "prepare", settings) for name in (FIRST, other))
    assert first == second
