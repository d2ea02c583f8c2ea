"""The attribution of whole comparisons: who is explained against whom, and when nothing may be said."""

import re
from typing import get_args

import pytest

from stratlab.analysis.step_rows import Kind
from stratlab.compare.attribution import DETERMINED, NOT_DETERMINED, build_pair
from stratlab.compare.causes import CAUSES, HOST_REMEDIES, NOT_TRACED, SLOW_LINK
from stratlab.compare.step_difference import TracedStep, build_traced_step, split_exposed
from stratlab_spec.settings.config import Config


def build_analysis(own, exposed, total=None, source="gpu", sent=1000, ranks=None, **mean):
    """An analysis/report.json of two equal ranks and one step; `total` communication is what is exposed if left out."""
    parts = [{"part": part, "collective": None, "axis": None, "ms": ms} for part, ms in own.items()]
    parts += [
        {"part": "comm", "collective": c, "axis": a or None, "ms": ms} for (c, a), ms in exposed.items()
    ]
    return {
        "source": source,
        "mean": {"ranks": 2, "steps": 1, "step_ms": sum(part["ms"] for part in parts), **mean},
        "parts": parts,
        "steps": [  # rank 1 is late
            {"rank": rank, "step": step, "step_ms": 100.0, "comm_exposed_ms": 20.0 - 10.0 * rank}
            for rank in range(2)
            for step in range(3)
        ],
        "ranks": [{"rank": i, "steps": 1, **row} for i, row in enumerate(ranks or [{}, {}])],
        "collectives": [
            {"collective": c, "axis": a or None, "total_ms": ms + 1.0, "wait_ms": 1.0, "bytes": sent}
            for (c, a), ms in (exposed if total is None else total).items()
            for _ in range(2)
        ],
    }


def build_step(*arguments, **options):
    step = build_traced_step(build_analysis(*arguments, **options))
    assert isinstance(step, TracedStep)
    return step


def explain(run, base, **measured):
    run_ms, base_ms = measured.get("run_ms", run.step_ms), measured.get("base_ms", base.step_ms)
    return build_pair(("run", run, run_ms), ("base", base, base_ms))


def take(pair):
    return {(row["cause"], row["collective"]): row["ms"] for row in pair["parts"]}


ALL_REDUCE, ALL_GATHER = ("all_reduce", ""), ("all_gather", "")
DDP = {
    "compute": 60.0,
    "copy": 1.0,
    "data": 2.0,
    "host": 4.0,
    "kernel_wait": 0.5,
    "other_idle": 0.5,
    "straggler": 1.0,
}


def build_rank(step_ms, compute_ms, wait_ms):
    return {
        "step_ms": step_ms,
        "compute_pct": 100 * compute_ms / step_ms,
        "straggler_pct": 100 * wait_ms / step_ms,
        **dict.fromkeys(("copy_exposed_pct", "data_wait_pct", "host_wait_pct"), 0.0),
    }


BASE = build_step(DDP, {ALL_REDUCE: 10.0})
LATE = [build_rank(120.0, 80.0, 20.0), build_rank(120.0, 100.0, 0.0)]
"""Rank 1 computes 20 ms longer, rank 0 waits for it."""


def test_every_part_has_its_row():
    own = {**DDP, "host": 9.0, "other_idle": 1.5, "compute": 58.0}
    run = build_step(own, {ALL_GATHER: 24.0, ALL_REDUCE: 4.0})
    pair = explain(run, BASE, run_ms=run.step_ms + 2.0)
    zero = dict.fromkeys((("straggler", None), ("copies", None), ("data", None)), 0.0)
    assert take(pair) == pytest.approx(
        zero
        | {
            ("more_communication", "all_gather"): 24.0,
            ("more_communication", "all_reduce"): -6.0,
            ("compute", None): -2.0,
            ("host", None): 5.0,
            ("idle", None): 1.0,
            ("not_traced", None): 2.0,
        }
    )
    assert pair["difference_ms"] == pytest.approx(24.0) and pair["main_cause"] == "more_communication"
    assert pair["traced_difference_ms"] == pytest.approx(22.0)


@pytest.mark.parametrize(
    ("total", "exposed", "split"),
    [
        ((30.0, 10.0), (22.0, 2.0), (20.0, 0.0)),  # a slower link; as much is hidden as before
        ((10.0, 10.0), (9.0, 2.0), (0.0, 7.0)),  # as much in total, less of it hidden
        ((20.0, 10.0), (8.0, 2.0), (6.0, 0.0)),  # twice as much, and some of that is hidden
        ((24.0, 0.0), (20.0, 0.0), (20.0, 0.0)),  # the other one does not have it
        ((12.0, 10.0), (1.0, 5.0), (0.0, -4.0)),  # more of it, but far better hidden
    ],
)
def test_exposed_communication_is_split(total, exposed, split):
    assert split_exposed(total, exposed) == pytest.approx(split)
    assert split_exposed(total[::-1], exposed[::-1]) == pytest.approx([-ms for ms in split])


def test_totals_without_waiting_axes_and_bytes_of_a_collective():
    # `total_ms` of the analysis holds 1 ms of waiting in every call: it must not look like a slower link
    assert BASE.total == {ALL_REDUCE: 10.0} and BASE.sent_bytes == {ALL_REDUCE: 1000.0}
    one, other = (
        build_step(DDP, {("all_reduce", axis): ms})
        for axis, ms in (("dp_shard", 10.0), ("dp_replicate", 30.0))
    )
    two = build_step(DDP, {("all_reduce", "dp_replicate"): 9.0, ("all_reduce", "tp"): 30.0})
    rows = [row for row in explain(other, one)["parts"] if row["collective"]]
    assert [(row["axis"], row["ms"]) for row in rows] == [("", pytest.approx(20.0))]
    rows = [row for row in explain(two, other)["parts"] if row["collective"]]
    assert {row["axis"]: row["ms"] for row in rows} == pytest.approx({"dp_replicate": -21.0, "tp": 30.0})
    for sent, why in ((1000, "link"), (2000, "bytes"), (None, "")):
        assert explain(build_step(DDP, {ALL_REDUCE: 40.0}, sent=sent), BASE)["parts"][0]["why"] == why
    analysis = build_analysis(DDP, {ALL_REDUCE: 40.0}) | {"collectives": []}
    untold = build_traced_step(analysis)
    assert isinstance(untold, TracedStep) and explain(untold, BASE)["parts"][0]["why"] == "exposed"


def test_the_slow_rank_s_own_time_belongs_to_the_straggler():
    """In the mean 10 and 10, and all of it is one cause."""
    even = [build_rank(100.0, 80.0, 0.0)] * 2
    base = build_step({"compute": 80.0, "straggler": 0.0}, {ALL_REDUCE: 20.0}, ranks=even)
    run = build_step({"compute": 90.0, "straggler": 10.0}, {ALL_REDUCE: 20.0}, ranks=LATE)
    pair = explain(run, base)
    assert run.parts == pytest.approx({"compute": 80.0, "straggler": 20.0})
    assert pair["main_cause"] == "straggler" and take(pair)["straggler", None] == pytest.approx(20.0)
    assert pair["late_rank"] == 1
    staged = build_step({"compute": 90.0, "straggler": 5.0, "bubble": 5.0}, {ALL_REDUCE: 20.0}, ranks=LATE)
    assert staged.parts["compute"] == 90.0, "stages of a pipeline differ by design"
    unknown = build_step({"compute": 90.0, "straggler": 10.0}, {ALL_REDUCE: 20.0})
    assert unknown.parts == {"compute": 90.0, "straggler": 10.0}


def test_a_transfer_that_came_too_late_to_hide_belongs_to_the_straggler():
    """Rank 0 waits 12 of the 20 ms; the other 8 are transfer that rank 1 hides and rank 0 cannot any more."""
    ranks = [build_rank(120.0, 80.0, 12.0), build_rank(120.0, 100.0, 0.0)]
    analysis = build_analysis({"compute": 90.0, "straggler": 6.0}, {ALL_REDUCE: 24.0}, ranks=ranks)
    for rank, (exposed_ms, wait_ms) in enumerate([(40.0, 12.0), (20.0, 0.0)]):
        analysis["collectives"][rank] |= {"rank": rank, "exposed_ms": exposed_ms, "exposed_wait_ms": wait_ms}
    step = build_traced_step(analysis)
    assert isinstance(step, TracedStep) and step.exposed == pytest.approx({ALL_REDUCE: 20.0})
    assert step.parts == pytest.approx({"compute": 80.0, "straggler": 20.0})


def test_the_main_cause_counts_all_collectives_and_gives_overlap_lost_to_a_late_host_to_the_host():
    run = build_step({**DDP, "compute": 72.0}, {ALL_GATHER: 8.0, ALL_REDUCE: 8.0})
    assert explain(run, build_step(DDP, {}))["main_cause"] == "more_communication"  # 16 against 12
    total = {ALL_GATHER: 20.0, ALL_REDUCE: 20.0}
    base = build_step(DDP, {ALL_GATHER: 5.0, ALL_REDUCE: 5.0}, total)
    for host, cause in ((24.0, "host"), (9.0, "less_overlap")):  # 20, and 24 of lost overlap; 5 of the 24
        late = build_step({**DDP, "host": host}, {ALL_GATHER: 17.0, ALL_REDUCE: 17.0}, total)
        pair = explain(late, base)
        assert pair["main_cause"] == cause and take(pair)["less_overlap", "all_gather"] == pytest.approx(12.0)


@pytest.mark.parametrize(
    ("difference_ms", "cause"),
    [(19.0, "host"), (7.0, "host"), (20.0, None), (6.6, None), (4.8, None), (-10.0, None)],
)
def test_a_cause_is_named_while_less_than_half_of_the_difference_is_unexplained(difference_ms, cause):
    """10 are recorded: of 20 half is open, of 4.8 they are 209 %, of -10 another direction."""
    run = build_step({**DDP, "host": 14.0}, {ALL_REDUCE: 10.0})
    pair = explain(run, BASE, run_ms=BASE.step_ms + difference_ms)
    assert pair["main_cause"] == cause and bool(pair["remedy"]) is bool(cause)
    assert pair["unexplained_ms"] == pytest.approx(difference_ms - 10.0)
    assert pair["cause_status"] == (DETERMINED if cause else NOT_DETERMINED)


SETTING = re.compile(r"run\.config\.(\w+)(?:=(\w+))?")


def explain_parts(run, base=BASE, **options):
    return build_pair(("zero3", run, run.step_ms), ("ddp", base, base.step_ms), **options)


def test_the_sentence_names_the_size_the_causes_in_order_and_the_remedy():
    base = build_step({**DDP, "compute": 51.0}, {ALL_REDUCE: 10.0})
    run = build_step({**DDP, "compute": 53.0, "host": 10.0, "data": 9.0}, {ALL_GATHER: 34.0, ALL_REDUCE: 2.0})
    said = explain_parts(run, base)["sentence"]
    numbers = re.findall(r"[\d.]+ (?:ms|%)", said.partition("remedy")[0])
    assert numbers == ["41 ms", "59 %", "34 ms", "7.0 ms", "6.0 ms", "8.0 ms"], (
        "compute, 2 ms, is left to the table"
    )
    assert said.startswith("zero3 ") and CAUSES["more_communication"].remedy in said


@pytest.mark.parametrize("kind", [*get_args(Kind), "of a later version"])
def test_what_helps_a_waiting_device_depends_on_its_gaps(kind):
    run = build_step({**DDP, "host": 34.0}, {ALL_REDUCE: 10.0}, gap_kind=kind, gap_label="tokenize {it}")
    pair = explain_parts(run)
    assert pair["main_cause"] == "host" and pair["gap_kind"] == kind
    assert ("compile" in pair["remedy"]) == (kind == "short")
    assert ("tokenize {it}" in pair["remedy"]) == (kind == "label")
    told = {HOST_REMEDIES.get(each, CAUSES["host"].remedy) for each in get_args(Kind)}
    assert len(told) == len(get_args(Kind))


def test_every_cause_has_a_remedy_and_every_setting_in_one_exists():
    texts = [cause.remedy for cause in CAUSES.values()] + [SLOW_LINK, *HOST_REMEDIES.values()]
    found = [match for text in texts for match in SETTING.findall(text)]
    assert len(found) > 10 and all(cause.remedy for name, cause in CAUSES.items() if name != NOT_TRACED)
    for name, value in found:
        field = Config.model_fields[name]
        allowed = {str(choice).lower() for choice in get_args(field.annotation)} or {"true", "false"}
        patterns = [rule.pattern for rule in field.metadata if hasattr(rule, "pattern")]
        fits = any(re.match(pattern, value) for pattern in patterns) if patterns else value in allowed
        assert not value or fits, f"{name}={value}"
