"""The rule that names a late rank, on simulated runs: chance is no culprit, a planted sleep is found; and the report of
a run and a comparison say the same."""

import random

import pytest

from stratlab.analysis.advice import build_values
from stratlab.compare.step_difference import TracedStep, build_traced_step
from stratlab.run_directory.late_rank import find_late_rank
from tests.stratlab.analysis.example_report import build_example

NOISES = {
    "even": lambda draw: draw.gauss(0, 2),
    "skewed": lambda draw: draw.expovariate(1 / 3),
    "hiccups": lambda draw: draw.gauss(0, 1) + (40 if draw.random() < 0.05 else 0),
}
TEAMS = ((2, 3), (4, 3), (8, 10), (2, 24))


def simulate(seed, ranks, steps, noise, late=None):
    """Steps of about 100 ms, equally long on all ranks: each waits, exposed, for the last one. `late`: rank -> ms."""
    draw = random.Random(seed)
    own = {rank: [] for rank in range(ranks)}
    for _ in range(steps):
        for rank, times in own.items():
            times.append(100 + noise(draw) + (late or {}).get(rank, 0))
    return build_rows(own)


def build_rows(own):
    longest = [max(column) + 5 for column in zip(*own.values(), strict=True)]
    return [
        {"rank": rank, "step": i, "step_ms": longest[i], "comm_exposed_ms": longest[i] - ms, "bubble_ms": 0.0}
        for rank, times in own.items()
        for i, ms in enumerate(times)
    ]


@pytest.mark.parametrize("noise", NOISES)
def test_chance_names_a_rank_in_less_than_one_of_a_hundred_runs(noise):
    named = [
        find_late_rank(simulate(seed, *team, NOISES[noise]), []) for team in TEAMS for seed in range(150)
    ]
    assert sum(rank is not None for rank in named) < 0.012 * len(named)


# ms by which rank 1 took longer than rank 0, a step each: ddp on 2 cores under a load of 8, nothing planted
ONE_RUN_MS = """67 17 113 60 115 18 63 48 101 62 76 112 16 29 1 -57 40 65 -64 -64 -9 -18 -7 45"""


def test_other_work_that_lasts_for_some_steps_names_no_rank():
    times, named = {0: [100.0] * 24, 1: [100.0 + int(ms) for ms in ONE_RUN_MS.split()]}, 0
    assert find_late_rank(build_rows(times), []) is None
    for seed in range(200):
        draw, own = random.Random(seed), {}
        for rank in range(2):
            times = [draw.gauss(0, 20)]
            for _ in range(23):
                times.append(0.7 * times[-1] + 0.51**0.5 * draw.gauss(0, 20))
            own[rank] = [100 + ms for ms in times]
        named += find_late_rank(build_rows(own), []) is not None
    assert named < 0.07 * 200  # as independent steps, every fourth run


@pytest.mark.parametrize("team", TEAMS)
def test_a_planted_sleep_of_30_ms_is_found(team):
    rows = [simulate(seed, *team, lambda d: d.gauss(0, 1), {1: 30.0}) for seed in range(50)]
    assert [find_late_rank(row, []) for row in rows].count(1) >= 49


def test_less_than_two_percent_of_the_step_is_not_named():
    assert find_late_rank(simulate(0, 4, 9, lambda d: 0.0, {2: 1.5}), []) is None
    assert find_late_rank(simulate(0, 4, 9, lambda d: 0.0, {2: 3.5}), []) == 2


def calls(*last):
    return [{"rank": rank, "arrived_last": count} for rank, count in enumerate(last)]


def test_calls_tell_where_steps_are_too_few():
    cases = {
        (0, 0, 0, 0, 1, 2, 0, 5): 7,
        (1, 1, 1, 1, 1, 2, 0, 1): None,
        (2, 1): None,
        (0, 8): 1,
        (0, 0): None,
    }
    for last, late in cases.items():
        assert find_late_rank(simulate(0, len(last), 2, NOISES["even"]), calls(*last)) == late


def test_who_has_nobody_to_wait_for_is_not_late():
    assert find_late_rank(simulate(0, 1, 9, NOISES["even"]), calls(0)) is None
    assert find_late_rank([], []) is find_late_rank([], calls(0, 50)) is None
    staged = [row | {"bubble_ms": 9.0} for row in simulate(0, 4, 9, NOISES["even"], {2: 30.0})]
    assert find_late_rank(staged, calls(0, 0, 50, 0)) is None


@pytest.mark.parametrize("late", [None, 1])
def test_a_run_s_report_and_a_comparison_name_the_same_rank(late):
    """Whatever the calls say: by them rank 1 of the example came last most often."""
    report = build_example(collectives=True)
    ranks = len(report["ranks"])
    report["steps"] = simulate(1, ranks, 5, NOISES["even"], {} if late is None else {late: 30.0})
    report["mean"]["slowest_rank"] = find_late_rank(report["steps"], report["collectives"])
    step = build_traced_step(report)
    assert isinstance(step, TracedStep)
    assert step.late_rank == build_values(report, {}, {})["late_rank"] == late
