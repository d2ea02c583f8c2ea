"""Planted causes are found: simulated comparisons, from the traces of all ranks to the name of the main cause."""

import random
from dataclasses import asdict, replace

import pytest

from stratlab.analysis.measure import measure_traces
from stratlab.analysis.report import build_mean_row, build_parts, build_rank_row
from stratlab.compare.attribution import build_pair
from stratlab.compare.step_difference import TracedStep, build_traced_step
from stratlab.compare.winners import LEAST_LEAD_PCT
from tests.stratlab.simulated.scene import FORWARD_KERNELS, Scene
from tests.stratlab.simulated.team import simulate

# cause -> what is changed in the scene, between two sizes
PLANTS = {
    "more_communication": {"link": (3.0, 6.0)},
    "straggler": {"slow": (1.3, 1.9)},
    "less_overlap": {"overlap": (0.0, 0.2)},
    "host": {"launch_ns": (240_000, 500_000)},
    "bubble": {"micro_batches": (2, 3)},
}


def build_team(number):
    """Another strategy, number of ranks, layers and kernels for each number."""
    draw = random.Random(number)
    return Scene(
        ranks=(2, 3, 4)[number % 3],
        steps=2,
        layers=draw.choice((4, 6)),
        seed=number,
        strategy=("ddp", "fsdp")[number % 2],
        kernels=FORWARD_KERNELS[:2],  # half of them, and longer ones: the same step with fewer events
        kernel_ns=draw.randrange(100_000, 180_000),
        jitter=0.15,  # every kernel is drawn anew; chance must stay smaller than what is planted
        comm_ns=draw.randrange(100_000, 180_000),
        memory=False,
        gpu_labels=False,
        arrows=False,
    )


def plant_bubble(team, micro_batches):
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
    longer = {n: 4 * getattr(scene, n) for n in ("kernel_ns", "data_ns", "copy_ns", "launch_ns", "comm_ns")}
    fewer = {"seed": scene.seed + 100, "micro_batches": micro_batches, "optimizer_kernels": 1}
    return scene, replace(scene, **fewer, **longer)


def plant(cause, teams):
    """(baseline, run) of each team; both with seeds of their own."""
    draw = random.Random(6)
    for number in range(teams):
        team = build_team(number)
        sizes = {name: draw.uniform(low, high) for name, (low, high) in PLANTS[cause].items()}
        if cause == "bubble":
            yield plant_bubble(team, round(sizes["micro_batches"]))
        else:
            whole = {n: round(v) if n.endswith("_ns") else v for n, v in sizes.items()}
            yield team, replace(team, seed=100 + team.seed, **whole)


def trace(folder, scene):
    """Traces -> analysis -> what a comparison attributes by; nothing in between is a stand-in."""
    axes = dict(scene.mesh)
    ranks = measure_traces(simulate(folder, scene).files, axes).ranks
    analysis = {
        "source": ranks[0].source,
        "mean": build_mean_row(ranks, axes, scene.micro_batches),
        "parts": build_parts(ranks),
        "ranks": [build_rank_row(rank) for rank in ranks],
        "collectives": [asdict(row) for rank in ranks for row in rank.collectives],
    }
    step = build_traced_step(analysis)
    assert isinstance(step, TracedStep), step
    return step


def check(cause, teams, folder):
    """Of the measured step a tenth is missing in the traces, as if recording cost it."""
    for number, (baseline, changed) in enumerate(plant(cause, teams)):
        base, run = trace(folder / f"{number}a", baseline), trace(folder / f"{number}b", changed)
        pair = build_pair(("run", run, 0.9 * run.step_ms), ("base", base, 0.9 * base.step_ms))
        assert pair["main_cause"] == cause and pair["difference_pct"] > LEAST_LEAD_PCT, changed
        traced = sum(row["ms"] for row in pair["parts"] if row["cause"] != "not_traced")
        assert traced == pytest.approx(run.step_ms - base.step_ms, abs=1e-9)
        assert pair["parts"][-1]["ms"] == pytest.approx(-0.1 * traced, abs=1e-9)
        assert sum(row["ms"] for row in pair["parts"]) == pytest.approx(pair["difference_ms"], rel=1e-9)


@pytest.mark.parametrize("cause", PLANTS)
def test_the_main_cause_is_the_planted_one_and_the_parts_sum_to_the_difference(cause, tmp_path):
    check(cause, 3, tmp_path)
