"""Who is best in what, beyond the noise of repeats, for which goal, and on which front.
What weakens step times is one flag each, with its runs; on a CPU a busy machine forbids to compare times.
May the answer be believed: one of three outcomes, the same on every surface."""

import random
import re
from types import SimpleNamespace

import pytest

from stratlab.compare.causes import BUSY_MACHINE, FEW_TIMED_STEPS, UNEQUAL_WARM_UP, build_flags
from stratlab.compare.comparison import compare
from stratlab.compare.report_files import render_page
from stratlab.compare.run_sources import load_runs
from stratlab.compare.trust import APART, FAIR, TIMES_APART, WITH_DOUBTS, judge_trust
from stratlab.compare.winners import build_band, build_goals, build_pareto, name_winners
from stratlab_spec.schedule import FEW_STEPS
from tests.stratlab.compare.building import build, build_bare_row, judge


def test_a_band_by_hand():
    """Values 99 and 101: relative deviations 0.01, one degree of freedom, t = 12.706."""
    band = build_band([[99.0, 101.0], [50.0]])
    assert band and (band.degrees, band.repeats) == (1, 2)
    assert band.relative == pytest.approx(12.706 * (2 * 0.01**2) ** 0.5)
    assert band.of_difference(3.0, 4.0) == pytest.approx(5 * band.relative)
    assert band.of_difference(3.0, 4.0, 4, 4) == pytest.approx(2.5 * band.relative)
    assert band.of_difference(3.0, 4.0, 9, 1) == pytest.approx(17**0.5 * band.relative)
    assert build_band([[1.0], [2.0]]) is None and build_band([]) is None


@pytest.mark.parametrize("repeats", [2, 5])
def test_a_difference_by_chance_is_inside_the_band_95_times_in_100(repeats):
    draw, inside = random.Random(repeats), 0
    for _ in range(2000):
        groups = [[draw.gauss(100.0, 2.0) for _ in range(repeats)] for _ in range(2)]
        a, b = (sum(group) / repeats for group in groups)
        band = build_band(groups)
        inside += abs(a - b) <= (band.of_difference(a, b, repeats, repeats) if band else 0)
    assert 0.935 < inside / 2000 < 0.965


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ({"a": (1.0, 10.0), "b": (2.0, 10.0)}, ["a"]),  # as fast with more memory
        ({"a": (1.0, 10.0), "b": (1.0, 10.0)}, ["a", "b"]),  # equals do not beat each other
        ({"a": (3.0, 10.0), "b": (1.0, 5.0), "c": (2.0, 4.0), "d": (2.5, 7.0)}, ["b", "d", "a"]),
    ],
)
def test_fronts_by_hand(points, front):
    rows = [
        build_bare_row(run, peak_memory_gib=memory, samples_per_s=speed, device_type="cuda")
        for run, (memory, speed) in points.items()
    ]
    (entry,) = build_pareto(rows, [list(points)])
    assert (entry["front"], entry["note"]) == (front, "")


@pytest.mark.parametrize(("slower", "named"), [(98.0, "a"), (98.5, None)])
def test_of_single_runs_two_percent_is_a_lead(slower, named):
    speeds = {"a": 100.0, "b": slower}.items()
    rows = [build_bare_row(n, strategy=n, samples_per_s=speed, device_type="cuda") for n, speed in speeds]
    assert name_winners(rows)[0].run == named


def test_the_state_shows_only_that_a_run_does_not_fit():
    sizes = [(4.0, None), (4.1, 1.0), (None, 4.1), (None, 4.0), (None, None)]
    rows = [build_bare_row(peak_memory_gib=peak, state_memory_gib=state) for peak, state in sizes]
    found = build_goals(rows, SimpleNamespace(groups=[]), 4.0)["fits"]
    assert [each["fits"] for each in found] == [True, False, False, None, None]


def flag(**facts):
    runs = zip(*facts.values(), strict=True)
    rows = [
        build_bare_row(f"run{i}", **dict(zip(facts, values, strict=True))) for i, values in enumerate(runs)
    ]
    return {found["flag"]: found for found in build_flags(rows)}


@pytest.mark.parametrize(
    ("cuts", "flagged"), [((6, 76), True), ((6, 15), False), ((40, 60), False), ((6, None), False)]
)
def test_unequal_warm_up(cuts, flagged):
    found = flag(warmup=[None if steps is None else {"steps": steps} for steps in cuts])
    assert (UNEQUAL_WARM_UP in found) is flagged
    assert not flagged or found[UNEQUAL_WARM_UP]["values"] == {"run0": 6.0, "run1": 76.0}


def test_few_timed_steps():
    found = flag(measured_steps=[FEW_STEPS, FEW_STEPS - 1, None, 0])
    assert found.keys() == {FEW_TIMED_STEPS}
    assert found[FEW_TIMED_STEPS]["values"] == {"run1": FEW_STEPS - 1, "run3": 0.0}


@pytest.mark.parametrize(
    ("pressure", "others", "measure"),
    [
        (10.1, 0.0, "cpu_pressure_pct"),
        (None, 10.1, "other_cpu_pct"),
        (9.9, 90.0, ""),
        (None, 9.9, ""),
        (None, None, ""),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_busy_machine(pressure, others, measure, device):
    found = flag(device_type=[device], cpu_pressure_pct=[pressure], other_cpu_pct=[others])
    assert (found[BUSY_MACHINE]["measure"] if BUSY_MACHINE in found else "") == measure
    if measure:
        assert found[BUSY_MACHINE]["times_comparable"] is (device == "cuda")


REPEATS = {
    f"{name}-{i}": {"seed": i, "samples_per_s": 1000.0 + i} for name in ("ddp", "fsdp") for i in (0, 1)
}


@pytest.mark.parametrize(
    ("runs", "outcome", "doubts"),
    [
        (REPEATS, FAIR, 0),
        ({"ddp": {}, "fsdp": {}}, WITH_DOUBTS, 1),  # one repeat
        ({"ddp": {"device": "cpu"}, "fsdp": {"device": "cpu"}}, FAIR, 0),  # no time is ranked
        (
            {name: given | {"world_size": 1} for name, given in REPEATS.items()},
            WITH_DOUBTS,
            1,
        ),  # nothing is shared
        (REPEATS | {"zero2": {"lr": 0.5}}, WITH_DOUBTS, 1),  # a run is apart
        ({"ddp-2": {"world_size": 2}, "ddp-4": {"world_size": 4}}, WITH_DOUBTS, 1),  # scaling
        ({"ddp": {}, "fsdp": {"lr": 0.5}}, APART, 0),
    ],
)
def test_three_outcomes(tmp_path, runs, outcome, doubts):
    trust = judge_trust(judge(tmp_path, runs))
    assert (trust.outcome, len(trust.doubts)) == (outcome, doubts)
    assert all(doubt.remedy for doubt in trust.doubts)


def test_a_busy_cpu_ranks_no_run_by_time(tmp_path):
    busy = {"device": "cpu", "hosts": ["n"], "cpu_pressure_pct": 60.0}
    found = load_runs(build(tmp_path, ["ddp", "fsdp"], **busy))
    report = compare(found)
    trust, (pair,) = judge_trust(report), report["attribution"]["pairs"]
    assert trust.outcome == WITH_DOUBTS and not trust.times and not pair["times_comparable"]
    assert TIMES_APART in trust.answer and not re.search(r"\d", pair["sentence"])
    page = render_page(report, found)
    why = page.partition("<h2>Why")[2].partition("</section>")[0]
    assert "<details>" in why and "<svg" not in why
