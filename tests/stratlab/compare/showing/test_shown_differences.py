"""Where nobody wins in time the page says, in one place, what the times that it shows can and cannot say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.report_files import write_report
from stratlab.compare.showing.shown_differences import OF_ALL, SHOWN, say_differences
from tests.stratlab.example_run import build_run_dir
from tests.stratlab.example_text import LAYOUTS, TextLayout, build_text_run


def say(folder: Path, *runs: tuple[str, str, dict[str, Any]], **asked: Any) -> str:
    for run, strategy, changes in runs:
        build_run_dir(folder, run, strategy, hosts=["n"], **changes)
    return say_differences(compare(load_runs(folder), **asked))


def gpu(samples_per_s: float | None = None, **changes: Any) -> dict[str, Any]:
    speed = {} if samples_per_s is None else {"samples_per_s": samples_per_s}
    return {"device": "cuda", **speed, **changes}


@pytest.mark.parametrize("strategies", [("ddp", "fsdp"), ("ddp", "fsdp", "zero2")])
def test_times_of_cpus_are_said_to_be_of_cpus_in_the_tile_and_once(
    tmp_path: Path, strategies: tuple[str, ...]
) -> None:
    said = say(tmp_path / "demo", *((name, name, {}) for name in strategies))
    assert said == (
        f"{SHOWN}: they say where the time of a step went on these CPUs. They do not say which strategy is faster on "
        "GPUs, or by how much."
    )
    runs = load_runs(tmp_path / "demo")
    page = write_report(compare(runs), runs, tmp_path / "out").read_text()
    assert page.count(SHOWN) == 1
    tile = page.partition('<div class="tile open">')[2].partition("</div></div>")[0]
    assert "no winner" in tile and tile.endswith(said)
    assert said in (tmp_path / "out" / "summary.md").read_text()


def test_where_somebody_wins_nothing_is_said(tmp_path: Path) -> None:
    assert say(tmp_path, ("ddp", "ddp", gpu()), ("fsdp", "fsdp", gpu())) == ""


def test_one_repeat_says_from_where_on_it_tells_a_difference(tmp_path: Path) -> None:
    said = say(tmp_path, ("ddp", "ddp", gpu(1000.0)), ("fsdp", "fsdp", gpu(1005.0)))
    assert said.startswith(f"{SHOWN}: below 2 % of a step they may be chance") and "seen once" in said


def test_repeats_say_how_much_is_chance(tmp_path: Path) -> None:
    """Runs that repeat within 1 % of each other: Student's t of two degrees of freedom, of a difference."""
    speeds = {"ddp": (1000.0, 1010.0), "fsdp": (1004.0, 1008.0)}
    runs = [
        (f"{name}-{i}", name, gpu(speed)) for name, both in speeds.items() for i, speed in enumerate(both)
    ]
    said = say(tmp_path, *runs)
    share = compare(load_runs(tmp_path))["noise"]["relative_pct"] * 2**0.5
    assert said.startswith(f"{SHOWN}: up to {share:.2g} % of a step they may be chance")
    assert said.endswith("Any other is more than chance.")


def test_runs_of_other_work_are_told_apart_from_those_of_other_strategies(tmp_path: Path) -> None:
    said = say(tmp_path / "demo", ("ddp", "ddp", gpu()), ("fsdp", "fsdp", gpu(seed=1)))
    assert said == (
        f"{SHOWN}: between runs that are not comparable they hold all that differs, so that none is the strategy's "
        "alone."
    )
    runs = load_runs(tmp_path / "demo")
    page = write_report(compare(runs), runs, tmp_path / "out").read_text()
    verdict = page.partition("<h2>Verdict</h2>")[2].partition("</section>")[0]
    assert f"No run is named as the best in anything.</p><p>{SHOWN}" in verdict and page.count(SHOWN) == 1


def test_where_each_group_has_its_winner_the_rest_is_shown_beside_it(tmp_path: Path) -> None:
    runs = [(f"{name}-{seed}", name, gpu(seed=seed)) for name in ("ddp", "fsdp") for seed in (0, 1)]
    assert say(tmp_path, *runs).startswith(
        f"{OF_ALL}: between runs that are not comparable they hold all that"
    )


def test_what_is_varied_is_said_to_change_times_too(tmp_path: Path) -> None:
    runs = [
        (name, "ddp", gpu(lr=lr, loss_shift=lr, validation_accuracy_pct=90.0))
        for name, lr in (("a", 1e-3), ("b", 1e-2))
    ]
    assert say(tmp_path, *runs, varied=("lr",)) == (
        f"{SHOWN}: what was varied changes them, too, so that none is the strategy's alone."
    )


def test_a_degenerate_run_is_named(tmp_path: Path) -> None:
    lacking = TextLayout("pp8", 3, {"pp": 8}, missing=("data", "tensor"), sent={"pp": 1e6}, bubble_pct=60.0)
    build_text_run(tmp_path, "llm-1d", LAYOUTS["llm-1d"], device="cuda", samples_per_s=100.0)
    build_text_run(tmp_path, "llm-3d", lacking, device="cuda", samples_per_s=900.0)
    assert say_differences(compare(load_runs(tmp_path))) == (
        f"{SHOWN}: a difference from a degenerate run (llm-3d) says nothing of what its name promises."
    )


def test_one_run_differs_from_nothing(tmp_path: Path) -> None:
    assert say(tmp_path, ("ddp", "ddp", {})) == ""
    assert say(tmp_path, ("fsdp", "fsdp", {"status": "failed"})) == "", "nor from one that has failed"
