"""Which option is taken, what it ties with, and what limits the others."""

import pytest

from stratlab import UserError
from stratlab.predict.timing import HOST_BOUND_PCT, TIE_PCT
from stratlab.recommend import COMPILED, RECOMPUTED, ROWS
from stratlab.recommend.choice import Aim, Limit, choose, explain_choice, find_aim
from tests.codes import refuses

NEAR, FAR = 100 * (1 - (TIE_PCT - 1) / 100), 100 * (1 - (TIE_PCT + 1) / 100)


def take(options, aim=Aim.fastest):
    found = choose(options, aim)
    return found and found.taken.run


def test_the_simplest_of_a_tie_is_taken_and_the_tie_is_named(make):
    options = [make("fsdp", 100, **{RECOMPUTED: "blocks"}), make("zero1", NEAR), make("ddp", FAR)]
    found = choose(options, Aim.fastest)
    assert found.taken.run == "zero1" and [one.run for one in found.tied] == ["fsdp", "zero1"]
    assert [one.run for one in found.settling] == ["zero1", "fsdp"]
    assert take([make("fsdp", 100), make("ddp", FAR)]) == "fsdp"


def test_of_equal_settings_the_strategy_that_sends_least_and_then_the_least_memory_is_taken(make):
    assert take([make("fsdp", 100), make("ddp", NEAR, share=0.9)]) == "ddp"
    found = choose([make("ddp", 100, 0.9, **{ROWS: "8"}), make("ddp", NEAR, 0.5, **{ROWS: "4"})], Aim.fastest)
    assert found.taken.chosen[ROWS] == "4"


@pytest.mark.parametrize("aim", Aim)
def test_nothing_above_the_gate_is_taken(make, aim):
    assert choose([make("ddp", 500, share=1.01)], aim) is None
    assert take([make("ddp", 500, share=1.01), make("fsdp", 100, share=0.99)], aim) == "fsdp"


def test_without_a_known_time_an_option_is_only_the_leanest(make):
    options = [make("zero3", 0, share=0.2), make("ddp", 100)]
    assert take(options) == "ddp" and take(options, Aim.leanest) == "zero3"
    assert choose(options[:1], Aim.fastest) is None
    unknown = choose(options, Aim.fastest).runners[0]
    assert unknown.limit is None and unknown.why == "no operations"


def test_the_cheapest_has_the_lowest_price_and_of_equal_ones_is_the_simplest(make):
    assert take([make("ddp", 100, gpus=4), make("fsdp", 150, gpus=8)], Aim.cheapest) == "ddp"
    assert take([make("ddp", 100, gpus=4), make("fsdp", 2 * NEAR, gpus=8)], Aim.cheapest) == "ddp"
    assert take([make("fsdp", 100, gpus=4), make("ddp", 199, gpus=8)], Aim.cheapest) == "ddp"
    assert take([make("fsdp", 100, gpus=4), make("ddp", 194, gpus=8)], Aim.cheapest) == "fsdp"


def test_a_wide_band_counts_with_its_middle_and_is_settled_by_a_run(make):
    wide = make("zero3", 110, band=HOST_BOUND_PCT)
    found = choose([make("ddp", 100), make("fsdp", 80), wide], Aim.fastest)
    assert [one.run for one in found.settling] == ["ddp", "fsdp", "zero3"]
    assert wide.per_s == pytest.approx(110 / (1 + sum(HOST_BOUND_PCT) / 200))


@pytest.mark.parametrize(
    ("others", "limit"),
    [
        ({}, Limit.kernels),
        ({"idle": 20, "exposed": 15}, Limit.host),
        ({"idle": 5, "exposed": 15}, Limit.network),
        ({"share": 1.01}, Limit.memory),
    ],
)
def test_a_runner_up_names_its_limit(make, others, limit):
    found = choose([make("ddp", 100), make("fsdp", 50, **others)], Aim.fastest)
    assert [each.limit for each in found.runners] == [limit]


def test_memory_limits_a_run_that_would_be_faster_with_more(make):
    large = make("fsdp", 80, share=1.2, **{ROWS: "8"})
    found = choose([make("ddp", 100), make("fsdp", 50, idle=50), large], Aim.fastest)
    assert found.runners[0].limit is Limit.memory and "micro-batch 8" in found.runners[0].why


def test_each_setting_has_the_cost_of_its_other_values(make):
    taken = make("ddp", 100, **{ROWS: "4"})
    options = [
        taken,
        make("ddp", 80, **{ROWS: "2"}),
        make("ddp", 40, **{ROWS: "1"}),
        make("ddp", 120, share=1.2, **{ROWS: "8"}),
        make("ddp", 70, **{ROWS: "4", RECOMPUTED: "blocks"}),
        make("ddp", 90, **{ROWS: "2", COMPILED: "true"}),
        make("fsdp", 10, **{ROWS: "4", COMPILED: "true"}),
    ]
    why = explain_choice(taken, options, Aim.fastest, frozenset())
    assert why[ROWS].startswith("2 is 20 % slower; 8 is above the limit") and "1 is" not in why[ROWS]
    assert why[RECOMPUTED] == "blocks is 30 % slower"
    assert why[COMPILED] == f"true (at best with {ROWS}=2) is 10 % slower"
    assert explain_choice(taken, options, Aim.fastest, frozenset({ROWS}))[ROWS] == "as given"


def test_an_unknown_goal_is_refused():
    assert find_aim("cheapest") is Aim.cheapest
    with refuses(UserError, "SL-recommend-goal", "leanest"):
        find_aim("quickest")
