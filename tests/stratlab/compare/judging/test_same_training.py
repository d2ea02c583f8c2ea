"""Runs whose losses disagree are not compared, whatever else is equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.compare.fairness import FIELD, loss_agreement
from stratlab.run_directory.record import RunRecord
from tests.stratlab.compare.building import Report, difference, judge

MEAN = 1.6
"""Of the first 20 losses of an example run, nearly."""


def judge_losses(root: Path, percents: dict[str, float], **changes: object) -> Report:
    """Runs whose losses are so many percent of the mean loss apart."""
    runs = {name: {"loss_shift": MEAN * percent / 100} for name, percent in percents.items()}
    return judge(root, runs, **changes)


def record(
    name: str, losses: dict[int, float], first_norm: float | None, status: str = "finished"
) -> RunRecord:
    lines = [{"kind": "train", "step": step, "loss": loss} for step, loss in losses.items()]
    lines[0] |= {} if first_norm is None else {"grad_norm": first_norm}
    return RunRecord(name, Path(name), status, metrics=lines)  # type: ignore[arg-type]


def test_the_differences_are_exact() -> None:
    first = {step: 2.0 for step in range(1, 41)}
    second = first | {3: 2.25, 20: 1.5, 21: 9.0}  # step 21 is behind the first 20
    third = {step: 2.0 for step in range(2, 11)}
    late = {step: 2.0 for step in (30, 31)}
    runs = [
        record("a", first, 1.0),
        record("b", second, 1.125),
        record("c", third, None),
        record("d", late, None),
    ]
    found = loss_agreement([*runs, record("e", first, 1.0, "failed")])
    assert (found["max_abs_loss_difference"], found["max_grad_norm_difference"]) == (0.5, 0.125)
    pairs = {"".join(pair["runs"]): list(pair.values())[1:] for pair in found["pairs"]}
    # steps that both have, largest difference, relative to its loss, to the mean in %, of the first norms
    assert pairs["ab"] == [20, 0.5, 0.25, pytest.approx(100 * 0.5 / ((20 * 2.0 + 39.75) / 40)), 0.125]
    assert pairs["ac"] == [9, 0.0, 0.0, 0.0, None]
    assert pairs["bc"] == [
        9,
        0.25,
        pytest.approx(1 / 9),
        pytest.approx(100 * 0.25 / ((9 * 2.0 + 18.25) / 18)),
        None,
    ]
    assert pairs["ad"] == [0, None, None, None, None] and len(pairs) == 6


def test_a_winner_is_not_named_over_losses_that_disagree(tmp_path: Path) -> None:
    report = judge_losses(tmp_path, {"ddp": 0.0, "fsdp": 3.0, "zero2": 0.0})
    assert report["fairness"]["verdict"] == "not comparable" and FIELD in report["fairness"]["reason"]
    assert set(report["winners"].values()) == {None}
    entry = difference(report, FIELD)
    assert entry["values"] == {"ddp": "as ddp", "fsdp": "as fsdp", "zero2": "as ddp"} and entry["matters"]
    assert "0.01 %" in entry["why"] and "ddp and fsdp" in entry["why"]
    assert report["fairness"]["groups"] == [["ddp", "zero2"], ["fsdp"]]
    assert [group["runs"] for group in report["group_winners"]] == [["ddp", "zero2"]]
    assert {pair["run"]: pair["comparable"] for pair in report["attribution"]["pairs"]} == {
        "fsdp": False,
        "zero2": True,
    }


@pytest.mark.parametrize(
    ("precision", "within", "outside"),
    [("fp32", 0.008, 0.013), ("bf16", 0.8, 1.3), ("fp16", 0.8, 1.3), ("bf16_native", 1.8, 2.4)],
)
def test_the_gate_is_that_of_the_precision(
    tmp_path: Path, precision: str, within: float, outside: float
) -> None:
    for percent, verdict in ((within, "comparable"), (outside, "not comparable")):
        report = judge_losses(tmp_path, {"ddp": 0.0, "fsdp": percent}, precision=precision)
        assert report["fairness"]["verdict"] == verdict


@pytest.mark.parametrize(
    ("repeat", "other", "verdict"),
    [
        (0.03, 0.05, "comparable"),  # twice what the repeats differ by is 0.06
        (0.03, 0.10, "not comparable"),
        (1.0, 0.05, "not comparable"),  # that far apart, repeats are no noise but a fault
    ],
)
def test_repeats_say_what_chance_does(tmp_path: Path, repeat: float, other: float, verdict: str) -> None:
    report = judge_losses(tmp_path, {"ddp-1": 0.0, "ddp-2": repeat, "fsdp": other})
    assert report["fairness"]["verdict"] == verdict
    (allowed,) = {pair["allowed_pct"] for pair in report["loss_agreement"]["pairs"]}
    assert allowed == (0.01 if repeat == 1.0 else pytest.approx(0.06, rel=0.1))


def test_another_seed_is_not_asked_for_the_same_losses(tmp_path: Path) -> None:
    runs = {
        f"{name}-{seed}": {"seed": seed, "loss_shift": seed} for seed in (0, 1) for name in ("ddp", "fsdp")
    }
    report = judge(tmp_path, runs)
    assert [e["field"] for e in report["fairness"]["differences"] if e["matters"]] == ["seed"]
    assert report["fairness"]["groups"] == [["ddp-0", "fsdp-0"], ["ddp-1", "fsdp-1"]]
    agrees = {tuple(pair["runs"]): pair["agrees"] for pair in report["loss_agreement"]["pairs"]}
    assert agrees["ddp-0", "fsdp-0"] is True and agrees["ddp-0", "fsdp-1"] is None


def test_nobody_is_let_in_by_a_chain_of_neighbours(tmp_path: Path) -> None:
    chain = {"ddp": 0.0, "fsdp": 0.007, "zero2": 0.014}
    groups = judge_losses(tmp_path, chain)["fairness"]["groups"]
    assert groups == [["ddp", "fsdp", "zero2"]], "both agree with fsdp, the one in the middle"
    groups = judge_losses(tmp_path, chain | {"hsdp": 0.021})["fairness"]["groups"]
    assert [len(group) for group in groups] == [3, 1]
    for path in tmp_path.glob("*/metrics.jsonl"):
        path.unlink()
    assert difference(judge(tmp_path), FIELD)["matters"], "what nobody recorded is not equal"
