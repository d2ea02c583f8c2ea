"""Planted causes are found: 100 simulated comparisons, from the traces of all ranks to the name of the main cause."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.explaining.attribution import build_pair
from stratlab.compare.explaining.traced_step import TracedStep, build_traced_step
from stratlab.compare.judging.winners import LEAST_LEAD_PCT
from tests.stratlab.compare.explaining.planted import Scene, build_analysis
from tests.stratlab.simulated.scene import FORWARD_KERNELS

TEAMS = 20  # of each cause

# cause -> what is changed in the scene, between two sizes
PLANTS: dict[str, dict[str, tuple[float, float]]] = {
    "more_communication": {"link": (3.0, 6.0)},
    "straggler": {"slow": (1.3, 1.9)},
    "less_overlap": {"overlap": (0.0, 0.2)},
    "host": {"launch_ns": (240_000, 500_000)},
    "bubble": {"micro_batches": (2, 3)},
}


@dataclass(frozen=True)
class Case:
    cause: str
    baseline: Scene
    run: Scene


def build_cases(seed: int = 6) -> Iterator[Case]:
    """100 comparisons that differ in strategy, number of ranks, layers, kernels, and in the seed of both runs."""
    teams = [_build_team(number, random.Random(100 * seed + number)) for number in range(TEAMS)]
    draw = random.Random(seed)
    for cause, team in itertools.product(PLANTS, teams):
        changes = {name: draw.uniform(low, high) for name, (low, high) in PLANTS[cause].items()}
        if cause == "bubble":
            yield Case(cause, *_plant_bubble(team, round(changes["micro_batches"])))
        else:
            whole = {name: round(v) if name.endswith("_ns") else v for name, v in changes.items()}
            yield Case(cause, team, replace(team, seed=100 + team.seed, **whole))  # type: ignore[arg-type]


def _build_team(number: int, draw: random.Random) -> Scene:
    return Scene(
        ranks=draw.choice((2, 3, 4)),
        steps=2,
        layers=draw.choice((4, 6)),
        seed=number,
        strategy=("ddp", "fsdp")[number % 2],  # type: ignore[arg-type]
        kernels=FORWARD_KERNELS[:2],  # half of them, and longer ones: the same step with fewer events
        kernel_ns=draw.randrange(100_000, 180_000),
        jitter=0.15,  # every kernel is drawn anew; chance must stay smaller than what is planted
        comm_ns=draw.randrange(100_000, 180_000),
        memory=False,
        gpu_labels=False,
        arrows=False,
    )


def _plant_bubble(team: Scene, micro_batches: int) -> tuple[Scene, Scene]:
    """The same work in a quarter of the micro-batches: each takes four times as long, and the stages wait longer."""
    stages = 2 if team.ranks < 4 else 4
    scene = replace(
        team,
        strategy="ddp",
        ranks=stages,
        axes=(("pp", stages),),
        layers=stages,
        micro_batches=4 * micro_batches,
        jitter=0.1,  # few and long kernels: chance does not even out
        comm_ns=5_000,
        data_ns=10_000,
        optimizer_kernels=4,
    )
    times = ("kernel_ns", "data_ns", "copy_ns", "launch_ns", "comm_ns")
    longer = {name: 4 * getattr(scene, name) for name in times}
    return scene, replace(
        scene, seed=scene.seed + 100, micro_batches=micro_batches, optimizer_kernels=1, **longer
    )


CASES = list(build_cases())


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Case, dict[str, Any]]]:
    """Every case attributed. Of the measured step a tenth is missing in the traces, as if recording cost it."""
    root, found = tmp_path_factory.mktemp("scenes"), []
    steps: dict[Scene, TracedStep] = {}
    for case in CASES:
        for scene in (case.run, case.baseline):
            if scene not in steps:
                steps[scene] = _trace(root / str(len(steps)), scene)
        run, base = steps[case.run], steps[case.baseline]
        pair = build_pair(("run", run, 0.9 * run.step_ms), ("base", base, 0.9 * base.step_ms))
        found.append((case, pair | {"steps": (run, base)}))
    return found


def _trace(folder: Path, scene: Scene) -> TracedStep:
    step = build_traced_step(build_analysis(folder, scene))
    assert isinstance(step, TracedStep), step
    return step


def test_there_are_100_cases_of_5_causes() -> None:
    assert len(CASES) == 100 and {case.cause for case in CASES} == set(PLANTS)
    assert len({case.run for case in CASES}) == 100


def test_the_main_cause_is_the_planted_one_in_every_case(pairs: list[tuple[Case, dict[str, Any]]]) -> None:
    wrong = [
        f"{case.cause}: {pair['sentence']} {case.run}"
        for case, pair in pairs
        if pair["main_cause"] != case.cause
    ]
    assert len(pairs) == 100 and not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong)


def test_the_parts_sum_to_the_difference(pairs: list[tuple[Case, dict[str, Any]]]) -> None:
    for case, pair in pairs:
        total = sum(row["ms"] for row in pair["parts"])
        assert abs(total - pair["difference_ms"]) <= 1e-9 * abs(pair["difference_ms"]), case
        traced = sum(row["ms"] for row in pair["parts"] if row["cause"] != "not_traced")
        run, base = pair["steps"]
        assert traced == pytest.approx(run.step_ms - base.step_ms, rel=1e-3), case  # asked for: within 0.1 %
        assert traced == pytest.approx(run.step_ms - base.step_ms, abs=1e-9), case  # and it is exact
        assert pair["parts"][-1]["ms"] == pytest.approx(-0.1 * traced, abs=1e-9)


def test_every_plant_is_large_enough_to_be_seen(pairs: list[tuple[Case, dict[str, Any]]]) -> None:
    assert min(pair["difference_pct"] for _, pair in pairs) > LEAST_LEAD_PCT
