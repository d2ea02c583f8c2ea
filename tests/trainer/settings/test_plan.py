from dataclasses import replace

import pytest

from stratlab_spec.plan import VARIABLE, confirm_plans, confirm_samples, read_plan, resolve_plan
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes

GIB = 1 << 30


def config(**settings) -> Config:
    sizes = {"global_batch_size": 64, "micro_batch_size": 4, "strategy": "ddp"}
    return Config(**{"run": "try"} | sizes | settings)


def nd(**settings) -> Config:
    return config(
        strategy="nd", dimensions=2, model="qwen2.5-3b", seq_len=2048, micro_batch_size=1, **settings
    )


def refused(function, *given) -> list[str]:
    with pytest.raises(ConfigError) as failure:
        function(*given)
    return find_codes(failure.value)


@pytest.mark.parametrize("asked", [config(), nd()])
def test_a_rank_reads_what_its_launcher_resolved(asked: Config) -> None:
    plan = resolve_plan(asked, 8, 4, 640)
    assert (plan.steps, plan.micro_batches) == (
        10 * asked.epochs,
        64 // (asked.micro_batch_size * plan.axes.dp),
    )
    assert read_plan(asked, 8, {VARIABLE: plan.as_variable()}) == plan


def test_a_rank_that_would_plan_something_else_stops() -> None:
    env = {VARIABLE: resolve_plan(config(), 8, 4, 640).as_variable()}
    assert refused(read_plan, config(), 8, {}) == ["SL-plan-missing"]
    assert refused(read_plan, config(lr=0.5), 8, env) == ["SL-plan-other-settings"]
    assert refused(read_plan, config(), 4, env) == ["SL-plan-processes"]
    read_plan(config(results="elsewhere"), 8, env)


def test_launchers_that_came_to_different_plans_stop_the_run() -> None:
    plan = resolve_plan(config(), 8, 4, 640)
    assert confirm_plans([plan] * 8) is plan
    for name in ("steps", "evaluate_every", "profile_first", "micro_batches", "train_samples"):
        assert refused(confirm_plans, [plan] * 7 + [replace(plan, **{name: 99})]) == ["SL-plan-differs"]
    confirm_samples(plan, 640)
    assert refused(confirm_samples, plan, 639) == ["SL-plan-samples"]


def test_the_machine_with_the_smallest_devices_decides_the_layout() -> None:
    large, small, unknown = (resolve_plan(nd(), 8, 4, 640, size) for size in (80 * GIB, 25 * GIB, None))
    assert large.axes != small.axes
    assert confirm_plans([large, small, unknown]) == small
    assert refused(confirm_plans, [replace(large, steps=9), small]) == ["SL-plan-differs"]
    assert refused(confirm_plans, [replace(small, axes=large.axes), small]) == ["SL-plan-differs"]
