"""A release of each strategy of both forms renders, and the trainer takes the full one."""

from __future__ import annotations

from experiments.catalogue import Part
from tests.experiments.longer.test_rendered import check_form, plan
from tests.experiments.test_forms import each_part


@each_part
def test_each_strategy(part: Part) -> None:
    check_form(part.full, strategies=True)
    assert plan(part.small, strategies=False)
