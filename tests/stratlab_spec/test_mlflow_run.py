"""What a run's numbers are called in MLflow, in new and older versions, and what its description tells."""

import pytest

from stratlab.compare.winners import METRICS
from stratlab.tracking import COLUMNS, SECTIONS
from stratlab_spec.run_directory import (
    HEADLINES,
    LONGEST_TAG,
    build_note,
    describe_run,
    may_describe,
    name_metric,
)


def test_what_decides_stands_in_front_in_the_charts_and_in_the_columns():
    assert len(HEADLINES) == 20
    charted = {name for charts in SECTIONS.values() for names in charts for name in names}
    deciding = {metric.key for metric in METRICS}
    assert deciding <= set(HEADLINES) <= charted
    assert {f"metrics.`{name}`" for name in deciding} <= set(COLUMNS)


@pytest.mark.parametrize(
    ("name", "kind", "called"),
    [
        ("state_memory_gib", "result", "state_memory_gib"),
        ("grad_norm", "train", "detail/grad_norm"),
        ("wire_bytes_per_axis/tp", "result", "detail/wire_bytes_per_axis/tp"),
        ("rank12_gpu_power_w", "system", "detail/system/rank12/gpu_power_w"),
        ("rank12_gpu_power_w", "train", "detail/rank12_gpu_power_w"),
    ],
)
def test_only_headlines_have_no_prefix(name, kind, called):
    assert name_metric(name, kind) == called


def test_a_description_of_a_user_stays_and_one_that_is_too_long_is_cut():
    note = build_note("x" * 2 * LONGEST_TAG)
    assert len(note) == LONGEST_TAG and may_describe(note)
    assert may_describe(None) and may_describe("") and not may_describe("mine")


@pytest.mark.parametrize(
    ("ended", "summary", "told"),
    [
        ({"exit_code": 0}, {"samples_per_s": 270566.0, "device_type": "cuda"}, ("finished", "270,600")),
        (
            {"exit_code": 0},
            {"state_memory_gib": 0.001, "device_type": "cpu"},
            ("finished", "1.024 MiB", "CPU"),
        ),
        ({"exit_code": 10, "reason": "memory", "text": "rank 1"}, {}, ("10", "memory", "rank 1")),
        ({"exit_code": None, "reason": "lost"}, {"samples_per_s": 10.0}, ("unknown", "lost")),
    ],
)
def test_a_run_is_described_by_how_it_ended(ended, summary, told):
    said = describe_run(ended, summary)
    assert all(each in said for each in told) and ("CPU" in said) is ("CPU" in told)
