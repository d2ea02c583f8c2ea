from __future__ import annotations

from pathlib import Path

from tests.documents.examples import judge, sweep_plan


def test_the_trainer_takes_every_release_of_the_sweep(tmp_path: Path) -> None:
    plan = sweep_plan()
    assert len(plan) == 10
    for planned in plan:
        judge(planned.workload.object, TRAINER_RESULTS=str(tmp_path))
