"""Step times of foreign engines: a description by hand arithmetic, the fit, the scores, the rules of the tables."""

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.backtest.__main__ import SHIPPED, main
from benchmarks.backtest.times import tables
from benchmarks.backtest.times.engine import (
    Case,
    Engine,
    Host,
    Machine,
    Scalar,
    Transfer,
    Work,
    prepare,
    read_engine,
)
from benchmarks.backtest.times.fitting import fit_scalars, least_squares
from benchmarks.backtest.times.scores import Predicted, find_outliers, list_regrets, score
from stratlab_spec.step_time.collectives import ALL_REDUCE, EFA_P5, RankGroup, collective_seconds, links_of
from stratlab_spec.step_time.kernels import CARDS, ELEMENTWISE, PRODUCT, Kernel, kernel_seconds

CARD = CARDS["h100"]
MACHINE = Machine(CARD, links_of("h100", EFA_P5))
SIZES = {"tokens": 4096, "hidden": 1024, "tp": 1, "dp": 1, "pp": 1, "micro_batch": 1, "units": 4096}
CASE = Case("one", MACHINE, SIZES, [3], 0, 0, 2, 1.0, "family")
LAYER = Work("linear", "layer", PRODUCT, product=["tokens", "hidden", "hidden"], scalar="products")
PRODUCT_S = kernel_seconds(Kernel(PRODUCT, 2 * 4096 * 1024**2, 2 * (2 * 4096 * 1024 + 1024**2)), CARD)
PRODUCTS = Scalar("products", "", 1.0)


def seconds(*items, case=CASE, products=1.0, **more):
    kinds = {Work: [], Transfer: [], Host: []}
    for item in items:
        kinds[type(item)].append(item)
    engine = Engine("small", [PRODUCTS], kinds[Work], kinds[Transfer], kinds[Host], **more)
    return prepare(engine, case).seconds({"products": products, "host_ms": 30.0, "share": 0.25})


def test_layers_take_their_work_or_the_host_whichever_is_longer():
    assert seconds(LAYER) == pytest.approx(2 * 3 * 3 * PRODUCT_S)
    assert seconds(LAYER, recompute="1") == pytest.approx(2 * 3 * 4 * PRODUCT_S)
    slower = kernel_seconds(Kernel(PRODUCT, 4 * 4096 * 1024**2), CARD)
    assert seconds(LAYER, products=2.0) == pytest.approx(2 * 3 * 3 * slower)
    assert seconds(LAYER, Host("host_ms")) == pytest.approx(2 * 3 * 0.03)
    assert seconds(LAYER, Host("host_ms", "tp > 1")) == pytest.approx(2 * 3 * 3 * PRODUCT_S)
    assert seconds(LAYER, Host("host_ms", of="step")) == pytest.approx(18 * PRODUCT_S + 0.03)


def test_collectives_are_added_or_beside_the_work_or_hidden_by_the_last_backward_pass():
    case = replace(CASE, sizes={**SIZES, "tp": 8})
    moved = collective_seconds(ALL_REDUCE, 1e9, RankGroup(8, 8), MACHINE.links)
    added = Transfer("t", "layer", ALL_REDUCE, "1e9", "tp", forward=1)
    work = 18 * PRODUCT_S
    assert seconds(LAYER, added, case=case) == pytest.approx(work + 6 * moved)
    beside = seconds(LAYER, replace(added, beside=True), case=case, overlap="share")
    assert beside == pytest.approx(6 * (moved + 0.25 * PRODUCT_S) + 12 * PRODUCT_S)
    once = replace(added, of="step", hidden=True)
    assert seconds(LAYER, once, case=case) == pytest.approx(work + moved - 6 * PRODUCT_S)
    assert seconds(LAYER, replace(once, bytes="1e5"), case=case) == pytest.approx(work)


def test_a_stage_has_its_layers_and_the_ends():
    """Two stages of two and one layers, with the head on the second; the step's own work is that of the fuller one."""
    case = replace(CASE, sizes={**SIZES, "pp": 2}, stages=[2, 1], head_stage=1, loss_stage=1)
    head = replace(LAYER, of="head")
    even = seconds(LAYER, head, case=case)
    assert even == pytest.approx((2 + 1) * 3 * 2 * PRODUCT_S)
    update = Work("u", "step", ELEMENTWISE, bytes="1e9 * stage_layers + 1e9 * last")
    once = kernel_seconds(Kernel(ELEMENTWISE, 0, 2e9), CARD)
    assert seconds(LAYER, head, update, case=case) == pytest.approx(even + once)


def test_a_fit_finds_the_scalar_that_made_its_rows_and_how_sure_it_is():
    engine = Engine("small", [PRODUCTS], [LAYER], [], [])
    rows = [prepare(engine, replace(CASE, stages=[layers])) for layers in (1, 2, 4, 8)]
    exact = [replace(row, case=replace(row.case, measured_s=row.seconds({"products": 1.7}))) for row in rows]
    fit = fit_scalars(exact, engine.scalars)
    assert fit.values["products"] == pytest.approx(1.7, rel=0.01)
    assert fit.half_width_pct() < 1 and fit.half_width_pct(elsewhere=True) == pytest.approx(14.8, abs=0.1)
    noise = [1.1, 0.9, 1.1, 0.9]
    noisy = [
        replace(row, case=replace(row.case, measured_s=row.case.measured_s * by))
        for row, by in zip(exact, noise, strict=True)
    ]
    found = fit_scalars(noisy, engine.scalars)
    assert found.uncertainty_pct["products"] > 2 and 20 < found.half_width_pct() < 45


def test_least_squares_let_one_far_row_count_less():
    points = np.array([1.0, 1.01, 0.99, 1.0, 5.0])
    at, _ = least_squares(lambda at: np.array([*(at[0] - points), 0.0 * at[0]]), np.array([0.0]), 5)
    assert at[0] == pytest.approx(1.04, abs=0.03)


def predicted(name, seconds, measured, memory=0.0, family="f", width=1.1, **sizes):
    case = replace(CASE, name=name, measured_s=measured, family=family, sizes={**SIZES, **sizes})
    return Predicted(case, seconds, seconds / width, seconds * width, memory_share=memory)


def test_pairs_that_are_apart_are_judged_and_what_fills_the_memory_is_not_recommended():
    """Of six pairs b and c are a tie; d is last in all of its three, and a is wrong in the other two."""
    rows = [predicted("a", 1.0, 1.2), predicted("b", 1.05, 1.0), predicted("c", 2.0, 1.02)]
    found = score([*rows, predicted("d", 2.5, 3.0)])
    assert found["pairs"] == 5 and found["pairs_in_order"] == pytest.approx(60)
    assert found["inside"] == 25 and found["half_width"] == pytest.approx(10)
    for memory, recommended, pct in ((0.84, "d", 200), (0.86, "a", 20)):
        (regret,) = list_regrets([*rows, predicted("d", 0.5, 3.0, memory)])
        assert regret.recommended == recommended and regret.pct == pytest.approx(pct)


def test_an_outlier_is_slower_than_both_neighbours():
    rows = [
        predicted(str(size), 1.0, time, micro_batch=size).case
        for size, time in ((1, 1.0), (2, 1.2), (4, 0.9))
    ]
    assert find_outliers(rows) == {"2"} and find_outliers(rows[:2]) == set()


def test_every_description_has_the_names_of_its_tables():
    """Each formula of each set has a value, and each scalar is used."""
    found, machines = tables.read_tables()
    for table in found:
        engine = read_engine(table.engine)
        named = {one.scalar for one in (*engine.work, *engine.collectives, *engine.host)} | {engine.overlap}
        assert named - {""} == engine.starts.keys() and len(engine.scalars) <= 11
        for rows in table.sets:
            assert rows.calibration or rows.scalars_of
            assert rows.bars.keys() <= tables.LABELS.keys()
            cases = tables.read_cases(table, rows, machines[rows.machine], SHIPPED)
            for case, _ in cases[:: len(cases) // 2]:
                assert math.isfinite(prepare(engine, case).seconds(engine.starts)) and sum(case.stages)


def test_the_loss_has_a_stage_of_its_own_where_the_head_fills_one():
    """nanotron's 1B on eight stages: three layers at most, then the head, then the loss."""
    found, machines = tables.read_tables()
    cases = [case for case, _ in tables.read_cases(found[0], found[0].sets[0], machines["nanotron"], SHIPPED)]
    (whole,) = [case for case in cases if len(case.stages) == 8 and case.sizes["layers"] == 16]
    assert (whole.stages, whole.head_stage, whole.loss_stage) == ([3, 3, 2, 3, 2, 3, 0, 0], 6, 7)


def test_rows_of_a_folder_are_judged_by_the_shipped_calibration_rows(tmp_path):
    """A few rows of MPT, one of which calibrates."""
    found, machines = tables.read_tables()
    table = next(one for one in found if one.name == "MPT")
    cases = tables.read_cases(table, table.sets[0], machines["mpt-h100"], SHIPPED)
    lines = (SHIPPED / table.file).read_text().splitlines()
    head = [line for line in lines if line.startswith(("#", "table"))]
    few = [line for line in lines if line.startswith("H100 80GB BF16")][:12]
    (tmp_path / table.file).write_text("\n".join([*head, *few]) + "\n")
    out, page = tmp_path / "found.json", tmp_path / "page.md"
    assert main(["--data", str(tmp_path), "--output", str(out), "--page", str(page)]) in (0, 1)
    times = json.loads(out.read_text())["times"]
    own = times["MPT, H100"]
    calibration = {case.name for case in tables.choose_evenly([case for case, _ in cases], 12)}
    assert set(own["calibration"]) == calibration and own["figures"]["mean"] < 8
    with open(tmp_path / "page_times.csv") as file:
        written = [row for row in csv.DictReader(file) if row["set"] == "MPT, H100"]
    assert not {row["case"] for row in written} & calibration
    assert 0 < len(written) == own["figures"]["rows"] < len(few) and "### MPT, H100" in page.read_text()
