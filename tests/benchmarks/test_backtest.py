"""The back-test: descriptions by hand arithmetic, the rules of the two sources, and what the command says."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest

from benchmarks.backtest import nanotron, simumax
from benchmarks.backtest.__main__ import SHIPPED, judge_nanotron, main
from benchmarks.backtest.columns import learn_errors
from benchmarks.backtest.counts import build_operations
from benchmarks.backtest.decoder import Layout, Shape, layers_of
from benchmarks.backtest.engine import ENGINES, WINDOWS, Engine, Held, read_engine
from benchmarks.backtest.judging import Bar, spread
from trainer.counting.timeline import CAUSES

SMALL = Shape(layers=4, hidden=8, heads=4, kv_heads=2, intermediate=16, vocabulary=32)
PLAIN = Layout(dp=1, tp=1, pp=1, cp=1, zero_stage=1, micro_batches=4, tokens_per_row=2)
LAYER, HEAD = 2 * 8 * (8 + 4) + 3 * 8 * 16, 8 * 32
"""Weights by hand."""
KEPT = ("gathered inputs are gathered again", "gathered inputs are kept")


def held(**given) -> Held:
    usual = {
        "what": "it",
        "cause": "activations",
        "bytes": 2,
        "of": ["tokens", "hidden"],
        "split": [],
        "source": "here",
    }
    return Held(**{**usual, "each_layer": False, "only": {}, "windows": (), **given})


def total(
    *items: Held, shape: Shape = SMALL, layout: Layout = PLAIN, stages: str = "even", rows: int = 3
) -> int:
    engine = Engine("small", stages, (), items)
    return build_operations(engine, shape, layout).peak(rows, layout.ranks).total


def test_items_are_products_of_their_dimensions():
    assert total(held()) == 2 * 3 * 2 * 8
    assert total(held(each_layer=True)) == 4 * 2 * 3 * 2 * 8
    assert total(held(of=["parameters"])) == 2 * (4 * LAYER + 2 * HEAD)
    assert total(held(of=["parameters"]), shape=replace(SMALL, tied=True)) == 2 * (4 * LAYER + HEAD)


def test_items_are_divided_and_depend_on_the_layout():
    wide = replace(PLAIN, dp=8, tp=2)
    sharers = held(of=["parameters"], split=["tp", "sharers"])
    assert total(sharers, layout=wide) == pytest.approx(2 * (4 * LAYER + 2 * HEAD) / 16, rel=1e-3)
    assert total(sharers, layout=replace(wide, zero_stage=0)) == 4 * LAYER + 2 * HEAD
    several = held(only={"tp": "several"})
    assert total(several) == 0 and total(several, layout=wide) == 2 * 3 * 2 * 8


def test_the_first_stage_holds_most_micro_batches_and_the_last_the_logits():
    piped = replace(PLAIN, pp=2)
    layers = held(each_layer=True)
    logits = held(of=["tokens", "vocabulary"], bytes=100, only={"stage": "last"}, windows=["forward"])
    assert total(layers, layout=piped) == 2 * 2 * (2 * 3 * 2 * 8)
    assert total(layers, layout=replace(piped, micro_batches=1)) == 2 * (2 * 3 * 2 * 8)
    assert total(layers, logits, layout=piped) == 2 * (2 * 3 * 2 * 8) + 100 * 3 * 2 * 32


def test_stages_by_cost_are_those_that_the_source_tells():
    """Llama 3 8B on 8 stages: the embedding and five layers on the first, by nanotron's own page on it."""
    llama = Shape(layers=32, hidden=4096, heads=32, kv_heads=32, intermediate=14336, vocabulary=128256)
    found = layers_of(llama, 8, "by cost")
    assert found[0] == 5 and sum(found) == 32


@pytest.mark.parametrize("name", sorted(path.stem for path in ENGINES.glob("*.toml")))
def test_descriptions_name_causes_windows_and_sources(name):
    engine = read_engine(name)
    variants = {one.only["variant"] for one in engine.held if "variant" in one.only}
    assert variants == set(engine.variants)
    for one in engine.held:
        assert one.cause in CAUSES and set(one.windows) <= set(WINDOWS) and one.source


def test_all_dense_rows_are_within_three_percent():
    rows = list(simumax.read_rows(SHIPPED / simumax.FILE))
    assert len(rows) == 31
    (bar,) = simumax.judge(rows)
    assert bar.met and bar.found < 1.0


def test_a_description_without_one_item_misses_them(monkeypatch):
    """The stand-in gradients: 2 of 100 and more."""
    whole = read_engine("megatron")
    less = replace(whole, held=[one for one in whole.held if one.of != ["layer_weights"]])
    monkeypatch.setattr(simumax, "read_engine", lambda name: less)
    (bar,) = simumax.judge(list(simumax.read_rows(SHIPPED / simumax.FILE)))
    assert not bar.met


def run(rows: int, gib: float, dp: int = 4, **given) -> nanotron.Run:
    return nanotron.Run("3B", SMALL, replace(PLAIN, dp=dp, **given), rows, gib, gib > 0)


def test_a_failed_run_is_out_of_memory_only_between_a_smaller_that_ran_and_none_larger():
    smaller, failed, larger = run(1, 10.0), run(4, 0.0), run(8, 0.0)
    known = [smaller, failed, larger]
    assert nanotron.sort_failures(known, known).out_of_memory == [failed, larger]
    assert nanotron.sort_failures([failed], [*known, run(8, 40.0)]).others == [failed]
    assert nanotron.sort_failures([failed], [failed]).others == [failed]


def test_a_run_fits_only_where_it_fits_as_every_variant(monkeypatch):
    roomy = {"small": True, "large": False}
    monkeypatch.setattr(nanotron, "read_engine", lambda name: Engine("x", "even", list(roomy), ()))
    monkeypatch.setattr(nanotron, "fits", lambda run, variant: roomy[variant])
    assert not nanotron.fits_in_all(run(1, 9.0))
    ran = [run(1, 9.0)]
    found = nanotron.judge_failures(nanotron.Failures([run(4, 0.0)], []), ran, nanotron.fits_in_all)
    assert [(bar.found, bar.met) for bar in found] == [(100.0, True), (100.0, False)]
    roomy["large"] = True
    assert nanotron.fits_in_all(run(1, 9.0))


def test_what_columns_do_not_tell_no_learner_finds():
    columns = [[step % 7, step % 2] for step in range(280)]
    told = [1.0 + column[0] + 4 * column[1] for column in columns]
    assert spread(learn_errors(columns, [1.0] * 280, told)).p95 < 1.0
    untold = [gib * (2.0 if step // 14 % 2 else 1.0) for step, gib in enumerate(told)]
    assert spread(learn_errors(columns, [1.0] * 280, untold)).mean > 20.0


def test_runs_alike_differ_in_replicas_alone():
    found = nanotron.alike(
        [run(1, 9.0, zero_stage=0), run(1, 11.0, dp=8, zero_stage=0), run(2, 5.0, zero_stage=0)]
    )
    assert [row.error_pct for row in found] == [pytest.approx(100 / 9), pytest.approx(-100 / 11)]


def test_twelve_rows_decide_and_are_not_judged():
    runs = nanotron.read_runs(SHIPPED / nanotron.FILE)
    calibration = nanotron.calibration_rows(runs)
    assert len(calibration) == 12 and len({one.model for one in calibration}) == 4
    found = judge_nanotron(SHIPPED)
    assert not {row.case for row in found.rows} & {one.case for one in calibration}
    assert "reserved memory" in found.notes[0] and KEPT[0] in found.notes[0]


def test_other_tables_are_judged_by_what_the_shipped_ones_have_decided(tmp_path, capsys):
    """Ten rows of one file: no others, and no SimuMax."""
    lines = (SHIPPED / nanotron.FILE).read_text().splitlines()
    rows = [line for line in lines[4:] if line.endswith(",ok")][20:30]
    (tmp_path / nanotron.FILE).write_text("\n".join([*lines[:4], *rows]) + "\n")
    assert main(["--data", str(tmp_path), "--page", str(tmp_path / "page.md")]) in (0, 1)
    with open(tmp_path / "page.csv") as file:
        table = list(csv.DictReader(file))
    assert 0 < len(table) <= 10 and {one["source"] for one in table} == {"nanotron"}
    assert main(["--data", str(tmp_path / "nowhere")]) == 2
    assert "holds none of" in capsys.readouterr().err


def test_the_smallest_case_writes_its_figures_and_ends_well(tmp_path, capsys):
    assert (
        main(["--smallest", "--output", str(tmp_path / "found.json"), "--page", str(tmp_path / "page.md")])
        == 0
    )
    found = json.loads((tmp_path / "found.json").read_text())["sources"]["SimuMax"]
    assert len(found["rows"]) == 31 and found["bars"][0]["met"]
    assert "| SimuMax | largest error of a dense row | 31 |" in (tmp_path / "page.md").read_text()
    assert capsys.readouterr().out.endswith(": met\n")


def test_bars_and_spreads():
    assert Bar("x", 3.0, "<=", 3.0, "%", 1).met and not Bar("x", 89.0, ">=", 90.0, "%", 1).met
    found = spread([-1.0, 2.0, *[1.0] * 17, 10.0])
    assert (found.rows, found.p95, found.largest) == (20, 2.0, 10.0) and found.bias == pytest.approx(1.4)
