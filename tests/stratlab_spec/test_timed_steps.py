"""Which lines of metrics.jsonl count, and what they add up to, by hand."""

import math
import random

import pytest

from stratlab_spec.schedule import RULE, TOO_FEW, build_step_numbers, find_cut, find_timed_steps, read_step

STEADY_MS = 10.0
SEEDS = range(10)


def build_times(warm_up_ms, seed):
    """200 steady step times with noise, and what warming up adds to the first ones."""
    draw = random.Random(seed)
    added = warm_up_ms + [0.0] * 200
    return [STEADY_MS + added[i] + draw.gauss(0, 0.3) for i in range(200)]


def test_a_step_in_the_times_is_cut_where_it_is():
    cuts = [find_cut(build_times([8.0] * 30, seed)) for seed in SEEDS]
    assert all(30 <= cut.steps <= 75 and cut.settled and cut.method == RULE for cut in cuts)


def test_an_exponential_warm_up_is_cut_where_it_has_sunk_into_the_noise():
    for seed in SEEDS:
        times = build_times([20.0 * math.exp(-step / 10) for step in range(200)], seed)
        cut = find_cut(times)
        assert 20 <= cut.steps <= 70 and cut.settled
        assert sum(times[cut.steps :]) / (200 - cut.steps) == pytest.approx(STEADY_MS, abs=0.2)
        assert sum(times[5:]) / 195 > STEADY_MS + 0.5, "the first 5 steps alone would not have been enough"


def test_without_warm_up_little_is_left_out():
    cuts = sorted(find_cut(build_times([], seed)).steps for seed in range(50))
    assert cuts[0] == 5 and cuts[25] <= 40  # of noise alone the rule cuts something now and then


def test_never_less_than_5_and_never_more_than_half():
    draw = random.Random(0)
    for steps in range(1, 150):
        cut = find_cut([draw.expovariate(0.1) for _ in range(steps)])
        assert min(5, steps) <= cut.steps <= max(steps // 2, min(5, steps))


def test_edges_of_the_rule():
    never = find_cut([100.0 - step / 2 for step in range(100)])
    assert never.steps == 50 and not never.settled and find_cut([STEADY_MS] * 100).settled
    few = find_cut([1.0] * 12)
    assert (few.steps, few.method, few.settled) == (5, TOO_FEW, False)
    assert few == find_cut([9.0] * 5 + [1.0] * 7)


def test_a_batch_is_five_steps():
    """By hand: batch means 9, 9, 1, 2, 1, 2; variance by number of batches 9.2 / 5, 0.25 / 4, 0.2222 / 3."""
    times = [9.0] * 10 + [1.0] * 5 + [2.0] * 5 + [1.0] * 5 + [2.0] * 5
    assert find_cut(times).steps == 10


FACTS = {
    "world_size": 2, "peak_flops_per_device": 1e6, "flops_per_sample": 500.0, "flops_per_token_literature": 50.0,
    "flops_per_useful_token": 40.0,
}  # fmt: skip
PHASES = {"data_ms": 1.0, "forward_ms": 2.0, "backward_ms": 4.0, "optimizer_ms": 8.0}


def line(step, ms, **more):
    counts = {"samples": 4, "tokens": 40, "useful_tokens": 30}
    return {"kind": "train", "attempt": 1, "step": step, "step_time_ms": ms, **counts, **PHASES, **more}


def read(*lines, on_gpu=False):
    """Of a run whose first five steps, a second each, are its warm-up."""
    first = [line(step, 1000.0) for step in range(1, 6)]
    steps = filter(None, map(read_step, (*first, *lines)))
    return build_step_numbers(find_timed_steps(steps, on_gpu), FACTS)


def test_rates_are_those_of_the_median_step():
    found = read(line(6, 10.0), line(7, 20.0, forward_ms=3.0), line(8, 90.0, forward_ms=100.0))
    assert found["warmup"]["first_step"] == 6
    wanted = {
        "measured_steps": 3, "step_time_ms_p50": 20, "step_time_ms_mean": 40, "step_time_ms_p95": 90,
        "samples_per_s": 200, "tokens_per_s": 2000, "useful_tokens_per_s": 1500, "useful_tokens_pct": 75,
        "mfu_pct": 5, "mfu_literature_pct": 5, "mfu_useful_pct": 3,
        "data_ms_p50": 1, "forward_ms_p50": 3, "backward_ms_p50": 4, "optimizer_ms_p50": 8,
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)


AGAIN = [line(step, 700.0 if step < 11 else 30.0, attempt=2) for step in range(6, 13)]
PROFILED = [line(6, 10.0), line(7, 900.0, profiled=True), line(8, 800.0), line(9, 20.0)]


@pytest.mark.parametrize(
    ("lines", "on_gpu", "steps", "median"),
    [
        ([line(6, 10.0), line(7, 90.0), *AGAIN], False, 2, 30),
        (PROFILED, False, 2, 15),
        (PROFILED, True, 1, 10),
        ([*PROFILED, *(line(step, 40.0, attempt=2) for step in range(10, 17))], True, 3, 40),
        ([line(6, 10.0), line(7, 900.0, kind="validation"), line(8, 20.0)], False, 2, 15),
        ([line(6, 10.0), line(7, 900.0) | {"step_time_ms": None}, line(8, 20.0)], False, 2, 15),
        ([line(8, 30.0), line(6, 10.0), line(7, 20.0)], False, 3, 20),
    ],
    ids=[
        "made twice",
        "profiled",
        "on a GPU",
        "in another process",
        "no training",
        "no time",
        "in another order",
    ],
)
def test_which_steps_count(lines, on_gpu, steps, median):
    found = read(*lines, on_gpu=on_gpu)
    assert (found["measured_steps"], found["step_time_ms_p50"]) == (steps, median)
