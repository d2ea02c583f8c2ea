from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare import compare, load_runs
from stratlab.compare.attribution import build_pair
from stratlab.compare.difference import split_exposed
from stratlab.compare.traced_step import TracedStep, build_traced_step
from tests.stratlab.example_run import build_run_dir


def build_analysis(
    own: dict[str, float],
    exposed: dict[tuple[str, str], float],
    total: dict[tuple[str, str], float] | None = None,
    source: str = "gpu",
    sent: int | None = 1000,
    ranks: list[dict[str, float]] | None = None,
) -> dict[str, Any]:
    """An analysis/report.json of two equal ranks and one step; `total` communication is what is exposed if left out."""
    parts = [{"part": part, "collective": None, "axis": None, "ms": ms} for part, ms in own.items()]
    parts += [
        {"part": "comm", "collective": c, "axis": a or None, "ms": ms} for (c, a), ms in exposed.items()
    ]
    return {
        "source": source,
        "mean": {"ranks": 2, "steps": 1, "step_ms": sum(part["ms"] for part in parts), "slowest_rank": 1},
        "parts": parts,
        "ranks": [{"rank": i, "steps": 1, **row} for i, row in enumerate(ranks or [{}, {}])],
        "collectives": [
            {"collective": c, "axis": a or None, "total_ms": ms + 1.0, "wait_ms": 1.0, "bytes": sent}
            for (c, a), ms in (exposed if total is None else total).items()
            for _ in range(2)
        ],
    }


def build_step(*arguments: Any, **options: Any) -> TracedStep:
    step = build_traced_step(build_analysis(*arguments, **options))
    assert isinstance(step, TracedStep)
    return step


def explain(run: TracedStep, base: TracedStep, **measured: float) -> dict[str, Any]:
    run_ms, base_ms = measured.get("run_ms", run.step_ms), measured.get("base_ms", base.step_ms)
    return build_pair(("run", run, run_ms), ("base", base, base_ms))


def take(pair: dict[str, Any]) -> dict[tuple[str, str | None], float]:
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


def test_every_part_has_its_row() -> None:
    base = build_step(DDP, {ALL_REDUCE: 10.0})
    run = build_step(
        {**DDP, "host": 9.0, "other_idle": 1.5, "compute": 58.0}, {ALL_GATHER: 24.0, ALL_REDUCE: 4.0}
    )
    pair = explain(run, base, run_ms=run.step_ms + 2.0)
    assert take(pair) == pytest.approx(
        {
            ("more_communication", "all_gather"): 24.0,
            ("more_communication", "all_reduce"): -6.0,
            ("compute", None): -2.0,
            ("straggler", None): 0.0,
            ("copies", None): 0.0,
            ("data", None): 0.0,
            ("host", None): 5.0,
            ("idle", None): 1.0,
            ("not_traced", None): 2.0,
        }
    )
    assert pair["difference_ms"] == pytest.approx(24.0)
    assert pair["traced_difference_ms"] == pytest.approx(22.0)
    assert pair["main_cause"] == "more_communication"


@pytest.mark.parametrize(
    ("total", "exposed", "split"),
    [
        ((30.0, 10.0), (22.0, 2.0), (20.0, 0.0)),  # a slower link; as much is hidden as before
        ((10.0, 10.0), (9.0, 2.0), (0.0, 7.0)),  # as much in total, less of it hidden
        ((14.0, 10.0), (12.0, 2.0), (4.0, 6.0)),  # both
        ((20.0, 10.0), (8.0, 2.0), (6.0, 0.0)),  # twice as much, and some of that is hidden
        ((24.0, 0.0), (20.0, 0.0), (20.0, 0.0)),  # the other one does not have it
        ((0.0, 24.0), (0.0, 20.0), (-20.0, 0.0)),
        ((12.0, 10.0), (1.0, 5.0), (0.0, -4.0)),  # more of it, but far better hidden
    ],
)
def test_exposed_communication_is_split(
    total: tuple[float, float], exposed: tuple[float, float], split: tuple[float, float]
) -> None:
    assert split_exposed(total, exposed) == pytest.approx(split)
    assert split_exposed(total[::-1], exposed[::-1]) == pytest.approx([-ms for ms in split])


def test_the_split_always_sums_and_never_jumps() -> None:
    draw = random.Random(1)
    for _ in range(1000):
        total = draw.uniform(0, 50), draw.uniform(0, 50)
        exposed = draw.uniform(0, total[0]), draw.uniform(0, total[1])
        more, less = split_exposed(total, exposed)
        assert more + less == pytest.approx(exposed[0] - exposed[1], abs=1e-12) and more * less >= 0
        near = split_exposed((total[0] + 1e-6, total[1]), exposed)
        assert near == pytest.approx((more, less), abs=1e-5)


def test_waiting_is_no_part_of_the_total() -> None:
    """`total_ms` of the analysis holds 1 ms of waiting in every call: it must not look like a slower link."""
    step = build_step(DDP, {ALL_REDUCE: 10.0})
    assert step.total == {ALL_REDUCE: 10.0} and step.sent_bytes == {ALL_REDUCE: 1000.0}


def test_axes_count_where_a_collective_has_several() -> None:
    one = build_step(DDP, {("all_reduce", "dp_shard"): 10.0})
    other = build_step(DDP, {("all_reduce", "dp_replicate"): 30.0})
    two = build_step(DDP, {("all_reduce", "dp_replicate"): 9.0, ("all_reduce", "tp"): 30.0})
    rows = [row for row in explain(other, one)["parts"] if row["collective"]]
    assert [(row["axis"], row["ms"]) for row in rows] == [("", pytest.approx(20.0))]
    rows = [row for row in explain(two, other)["parts"] if row["collective"]]
    assert {row["axis"]: row["ms"] for row in rows} == pytest.approx({"dp_replicate": -21.0, "tp": 30.0})


def test_without_totals_the_exposed_is_not_divided() -> None:
    analysis = build_analysis(DDP, {ALL_REDUCE: 40.0})
    analysis["collectives"] = []
    run = build_traced_step(analysis)
    assert isinstance(run, TracedStep)
    pair = explain(run, build_step(DDP, {ALL_REDUCE: 10.0}))
    assert take(pair)["more_communication", "all_reduce"] == pytest.approx(30.0)
    assert next(row for row in pair["parts"] if row["collective"])["why"] == "exposed"


@pytest.mark.parametrize(("sent", "why"), [(1000, "link"), (2000, "bytes"), (None, "")])
def test_bytes_tell_a_slower_link_from_more_to_send(sent: int | None, why: str) -> None:
    pair = explain(build_step(DDP, {ALL_REDUCE: 40.0}, sent=sent), build_step(DDP, {ALL_REDUCE: 10.0}))
    assert pair["parts"][0]["why"] == why


def build_rank(step_ms: float, compute_ms: float, wait_ms: float) -> dict[str, float]:
    return {
        "step_ms": step_ms,
        "compute_pct": 100 * compute_ms / step_ms,
        "straggler_pct": 100 * wait_ms / step_ms,
        **dict.fromkeys(("copy_exposed_pct", "data_wait_pct", "host_wait_pct"), 0.0),
    }


def test_the_slow_rank_s_own_time_belongs_to_the_straggler() -> None:
    """Rank 1 computes 20 ms longer, rank 0 waits for it: in the mean 10 and 10, and all of it is one cause."""
    ranks = [build_rank(120.0, 80.0, 20.0), build_rank(120.0, 100.0, 0.0)]
    base = build_step(
        {"compute": 80.0, "straggler": 0.0}, {ALL_REDUCE: 20.0}, ranks=[build_rank(100.0, 80.0, 0.0)] * 2
    )
    run = build_step({"compute": 90.0, "straggler": 10.0}, {ALL_REDUCE: 20.0}, ranks=ranks)
    assert run.parts == pytest.approx({"compute": 80.0, "straggler": 20.0})
    pair = explain(run, base)
    assert pair["main_cause"] == "straggler" and take(pair)["straggler", None] == pytest.approx(20.0)
    assert pair["late_rank"] == 1 and "20 ms waiting for a slow rank (rank 1)" in pair["sentence"]
    staged = build_step({"compute": 90.0, "straggler": 5.0, "bubble": 5.0}, {ALL_REDUCE: 20.0}, ranks=ranks)
    assert staged.parts["compute"] == 90.0, "stages of a pipeline differ by design"
    unknown = build_step({"compute": 90.0, "straggler": 10.0}, {ALL_REDUCE: 20.0})
    assert unknown.parts == {"compute": 90.0, "straggler": 10.0}


def test_a_transfer_that_came_too_late_to_hide_belongs_to_the_straggler() -> None:
    """Rank 0 waits 12 of the 20 ms; the other 8 are transfer that rank 1 hides and rank 0 cannot any more."""
    analysis = build_analysis(
        {"compute": 90.0, "straggler": 6.0},
        {ALL_REDUCE: 24.0},
        ranks=[build_rank(120.0, 80.0, 12.0), build_rank(120.0, 100.0, 0.0)],
    )
    for rank, (exposed_ms, wait_ms) in enumerate([(40.0, 12.0), (20.0, 0.0)]):
        analysis["collectives"][rank] |= {"rank": rank, "exposed_ms": exposed_ms, "exposed_wait_ms": wait_ms}
    step = build_traced_step(analysis)
    assert isinstance(step, TracedStep)
    assert step.parts == pytest.approx({"compute": 80.0, "straggler": 20.0})
    assert step.exposed == pytest.approx({ALL_REDUCE: 20.0})


def test_the_main_cause_counts_all_collectives() -> None:
    base = build_step(DDP, {})
    run = build_step({**DDP, "compute": 72.0}, {ALL_GATHER: 8.0, ALL_REDUCE: 8.0})
    assert explain(run, base)["main_cause"] == "more_communication"  # 16 against 12, though 8 is less


def test_overlap_that_is_lost_to_a_late_host_is_the_host_s() -> None:
    total = {ALL_GATHER: 20.0, ALL_REDUCE: 20.0}
    base = build_step(DDP, {ALL_GATHER: 5.0, ALL_REDUCE: 5.0}, total)
    late = build_step({**DDP, "host": 24.0}, {ALL_GATHER: 17.0, ALL_REDUCE: 17.0}, total)
    assert explain(late, base)["main_cause"] == "host"  # 20, and 24 of lost overlap
    assert take(explain(late, base))["less_overlap", "all_gather"] == pytest.approx(12.0), "the rows stay"
    early = build_step({**DDP, "host": 9.0}, {ALL_GATHER: 17.0, ALL_REDUCE: 17.0}, total)
    assert explain(early, base)["main_cause"] == "less_overlap"  # 5 of the 24


def test_a_remainder_larger_than_what_is_explained_names_no_cause() -> None:
    base, run = build_step(DDP, {ALL_REDUCE: 10.0}), build_step({**DDP, "host": 14.0}, {ALL_REDUCE: 10.0})
    assert explain(run, base, run_ms=base.step_ms + 19.0)["main_cause"] == "host"
    for difference_ms in (
        21.0,
        4.0,
        -10.0,
    ):  # 10 explained: less than half, another difference, another direction
        pair = explain(run, base, run_ms=base.step_ms + difference_ms)
        assert pair["main_cause"] is None and pair["remedy"] == ""
        assert "no cause can be named: the traced steps differ by 10 ms" in pair["sentence"]
    assert "the other way round" in pair["sentence"]


def test_runs_too_close_for_one_repeat_have_no_cause() -> None:
    base, run = build_step(DDP, {ALL_REDUCE: 10.0}), build_step({**DDP, "host": 5.0}, {ALL_REDUCE: 10.0})
    pair = explain(run, base)
    assert pair["no_cause"] == "less than 2 % apart, too close for one repeat" and pair["main_cause"] is None
    assert sum(row["ms"] for row in pair["parts"]) == pytest.approx(1.0), "the parts are shown all the same"


def change_analysis(run: Path, **changes: Any) -> None:
    file = run / "analysis" / "report.json"
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def build_report(root: Path, *runs: str, device: str = "cuda", **options: Any) -> dict[str, Any]:
    for name in runs:
        build_run_dir(root, name, name.partition("-")[0], device=device, hosts=["n"])
    return compare(load_runs(root), **options)


def test_the_fastest_is_the_baseline_and_the_parts_sum_to_the_measured_difference(tmp_path: Path) -> None:
    report = build_report(tmp_path, "ddp", "fsdp", "zero2")
    found, rows = report["attribution"], {row["run"]: row for row in report["runs"]}
    assert [(pair["run"], pair["baseline"]) for pair in found["pairs"]] == [("fsdp", "ddp"), ("zero2", "ddp")]
    for pair in found["pairs"]:
        measured = rows[pair["run"]]["step_time_ms_p50"] - rows["ddp"]["step_time_ms_p50"]
        assert pair["difference_ms"] == measured and pair["comparable"] is True
        assert sum(row["ms"] for row in pair["parts"]) == pytest.approx(measured, abs=1e-9)
        assert pair["main_cause"] == "more_communication" == rows[pair["run"]]["main_cause"]
    assert rows["fsdp"]["speedup_vs_baseline"] == pytest.approx(11.31 / 13.81, rel=1e-3)
    assert "no band" not in found["pairs"][0]["origin"] and "GPU events" in found["pairs"][0]["origin"]


def test_a_baseline_can_be_asked_for(tmp_path: Path) -> None:
    report = build_report(tmp_path, "ddp", "fsdp", "zero2", baseline="fsdp")
    pairs = report["attribution"]["pairs"]
    assert [(pair["run"], pair["baseline"]) for pair in pairs] == [("ddp", "fsdp"), ("zero2", "fsdp")]
    assert pairs[0]["sentence"].startswith(
        "ddp is 2.5 ms (18 %) faster per step than fsdp: 2.6 ms less exposed"
    )
    assert pairs[0]["remedy"] == "" and pairs[0]["main_cause"] == "more_communication"
    with pytest.raises(
        ValueError, match="--baseline zero3: expected a finished run of this comparison: ddp, fsdp"
    ):
        build_report(tmp_path, baseline="zero3")


def test_runs_that_are_not_comparable_are_explained_with_a_warning_only(tmp_path: Path) -> None:
    report = build_report(tmp_path, "ddp", "fsdp", "single")
    pairs = {pair["run"]: pair for pair in report["attribution"]["pairs"]}
    assert pairs["fsdp"]["comparable"] and not pairs["single"]["comparable"]
    assert pairs["single"]["sentence"].startswith(
        "Not comparable, no finding: they differ in grad_accum_steps, "
    )
    assert pairs["single"]["main_cause"] is None and pairs["single"]["remedy"] == ""
    assert {row["run"]: row["main_cause"] for row in report["runs"]}["single"] is None


def test_a_run_with_an_unknown_fact_is_not_compared_with_anybody(tmp_path: Path) -> None:
    build_run_dir(tmp_path, "zero2", "zero2", device="cuda", hosts=["n"], data_sha256=None)
    pairs = {pair["run"]: pair for pair in build_report(tmp_path, "ddp", "fsdp")["attribution"]["pairs"]}
    assert pairs["zero2"]["differing"] == ["data_sha256"]


def test_an_old_analysis_is_not_attributed_and_says_so(tmp_path: Path) -> None:
    build_report(tmp_path, "ddp", "fsdp", "zero2")
    change_analysis(tmp_path / "fsdp", parts=None)
    (tmp_path / "zero2" / "analysis" / "report.json").unlink()
    found = compare(load_runs(tmp_path))["attribution"]
    assert found["pairs"] == []
    why = {entry["run"]: entry["why"] for entry in found["not_attributed"]}
    assert why["fsdp"] == "fsdp was analysed by an older version, without parts; analyze it again"
    assert why["zero2"] == "zero2 has no analysed traces"


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([{"part": "compute", "ms": None}], "cannot be read"),
        ([7], "cannot be read"),
        ([{"part": "compute", "ms": 3.0}], "do not sum to its step"),
    ],
)
def test_parts_that_are_wrong_are_not_subtracted(tmp_path: Path, parts: list[Any], why: str) -> None:
    build_report(tmp_path, "ddp", "fsdp")
    change_analysis(tmp_path / "fsdp", parts=parts)
    found = compare(load_runs(tmp_path))["attribution"]
    assert found["pairs"] == [] and why in found["not_attributed"][0]["why"]


def test_traces_of_another_source_are_not_subtracted(tmp_path: Path) -> None:
    build_report(tmp_path, "ddp", "fsdp")
    change_analysis(tmp_path / "fsdp", source="cpu")
    found = compare(load_runs(tmp_path))["attribution"]
    assert (
        found["pairs"] == []
        and found["not_attributed"][0]["why"] == "fsdp has cpu traces, ddp has gpu traces"
    )


def test_on_a_cpu_the_sentence_says_so_first_and_advises_nothing(tmp_path: Path) -> None:
    pair = build_report(tmp_path, "ddp", "fsdp", device="cpu")["attribution"]["pairs"][0]
    assert pair["sentence"].startswith(
        "On a CPU (host operator time on gloo; says nothing about GPUs): fsdp is "
    )
    assert "says nothing about GPUs" in pair["origin"] and "remedy" not in pair["sentence"]


def test_of_repeats_the_one_in_the_middle_speaks(tmp_path: Path) -> None:
    for i, speed in enumerate((1000.0, 1010.0, 990.0)):
        for strategy, factor in (("ddp", 1.0), ("fsdp", 0.8)):
            run = f"{strategy}-{i}"
            build_run_dir(tmp_path, run, strategy, device="cuda", hosts=["n"], samples_per_s=factor * speed)
    pairs = compare(load_runs(tmp_path))["attribution"]["pairs"]
    assert [(pair["run"], pair["baseline"]) for pair in pairs] == [("fsdp-0", "ddp-0")]
    assert pairs[0]["noise_ms"] == pytest.approx(2.776 * 0.01 * (64**2 + 80**2) ** 0.5, rel=1e-3)


def test_a_repeat_with_another_seed_does_not_hide_what_is_comparable(tmp_path: Path) -> None:
    """`again` repeats ddp with another seed, and is faster: fsdp is explained against the run that it may be."""
    build_run_dir(tmp_path, "again", "ddp", device="cuda", hosts=["n"], seed=1, samples_per_s=9000.0)
    pairs = build_report(tmp_path, "ddp", "fsdp")["attribution"]["pairs"]
    assert [(pair["run"], pair["baseline"], pair["comparable"]) for pair in pairs] == [("fsdp", "ddp", True)]
    pairs = build_report(tmp_path, baseline="again")["attribution"]["pairs"]
    assert [(pair["run"], pair["baseline"], pair["comparable"]) for pair in pairs] == [
        ("fsdp", "again", False)
    ]
