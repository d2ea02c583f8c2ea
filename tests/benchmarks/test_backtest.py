"""The back-test: descriptions by hand arithmetic, the rules of the two sources, and what the command writes."""

import csv
import json
from dataclasses import replace

import pytest

from benchmarks.backtest import __main__ as command
from benchmarks.backtest import matrices, nanotron, simumax
from benchmarks.backtest.__main__ import SHIPPED, main
from benchmarks.backtest.counts import (
    Engine,
    Held,
    Layout,
    Shape,
    build_operations,
    layers_of,
    read_engine,
    read_table,
)
from stratlab_spec.settings.config import Config
from tests.codes import find_codes
from trainer.memory_estimation.timeline import CAUSES

SMALL = Shape(layers=4, hidden=8, heads=4, kv_heads=2, intermediate=16, vocabulary=32)
PLAIN = Layout(dp=1, tp=1, pp=1, cp=1, zero_stage=1, micro_batches=4, tokens_per_row=2)
WIDE, PIPED = replace(PLAIN, dp=8, tp=2), replace(PLAIN, pp=2)
LAYER, HEAD = 2 * 8 * (8 + 4) + 3 * 8 * 16, 8 * 32
"""Weights by hand."""
WEIGHTS, HIDDEN = 4 * LAYER + 2 * HEAD, 2 * 3 * 2 * 8
USUAL = {"what": "it", "cause": "activations", "bytes": 2, "of": ["tokens", "hidden"], "split": []}


def held(**given):
    return Held(**{**USUAL, "source": "here", "each_layer": False, "only": {}, "windows": (), **given})


def total(*items, shape=SMALL, layout=PLAIN):
    return build_operations(Engine("small", "even", (), items), shape, layout).peak(3, layout.ranks).total


def test_items_are_products_of_their_dimensions_and_depend_on_the_layout():
    weights = held(of=["parameters"])
    assert total(held()) == HIDDEN and total(held(each_layer=True)) == 4 * HIDDEN
    assert total(weights) == 2 * WEIGHTS
    assert total(weights, shape=replace(SMALL, tied=True)) == 2 * (WEIGHTS - HEAD)
    sharers = held(of=["parameters"], split=["tp", "sharers"])
    assert total(sharers, layout=WIDE) == pytest.approx(2 * WEIGHTS / 16, rel=1e-3)
    assert total(sharers, layout=replace(WIDE, zero_stage=0)) == WEIGHTS
    several = held(only={"tp": "several"})
    assert total(several) == 0 and total(several, layout=WIDE) == HIDDEN


def test_the_first_stage_holds_most_micro_batches_and_the_last_the_logits():
    layers = held(each_layer=True)
    logits = held(of=["tokens", "vocabulary"], bytes=100, only={"stage": "last"}, windows=["forward"])
    assert total(layers, layout=PIPED) == 2 * 2 * HIDDEN
    assert total(layers, layout=replace(PIPED, micro_batches=1)) == 2 * HIDDEN
    assert total(layers, logits, layout=PIPED) == 2 * HIDDEN + 100 * 3 * 2 * 32
    # Llama 3 8B on 8 stages: the embedding and five layers on the first, by nanotron's own page on it
    llama = Shape(layers=32, hidden=4096, heads=32, kv_heads=32, intermediate=14336, vocabulary=128256)
    found = layers_of(llama, 8, "by cost")
    assert found[0] == 5 and sum(found) == 32
    assert layers_of(SMALL, 3, "full first") == [2, 2, 0]
    assert layers_of(SMALL, 3, "ends as layers") == [1, 2, 1]


def test_a_description_without_one_item_misses_the_dense_rows(monkeypatch):
    """The stand-in gradients: 2 of 100 and more."""
    whole = read_engine("megatron")
    less = replace(whole, held=[one for one in whole.held if one.of != ["layer_weights"]])
    monkeypatch.setattr(simumax, "read_engine", lambda name: less)
    (bar,) = simumax.judge(list(simumax.read_rows(SHIPPED / simumax.FILE)))
    assert not bar.met


def run(rows, gib, dp=4, **given):
    return nanotron.Run("3B", SMALL, replace(PLAIN, dp=dp, **given), rows, gib, gib > 0)


def test_a_failed_run_is_out_of_memory_only_between_a_smaller_that_ran_and_none_larger():
    known = _, failed, larger = run(1, 10.0), run(4, 0.0), run(8, 0.0)
    assert nanotron.sort_failures(known, known).out_of_memory == [failed, larger]
    assert nanotron.sort_failures([failed], [*known, run(8, 40.0)]).others == [failed]
    assert nanotron.sort_failures([failed], [failed]).others == [failed]


def test_runs_alike_differ_in_replicas_alone():
    runs = [run(1, 9.0, zero_stage=0), run(1, 11.0, dp=8, zero_stage=0), run(2, 5.0, zero_stage=0)]
    found = [row.error_pct for row in nanotron.alike(runs)]
    assert found == pytest.approx([100 / 9, -100 / 11])


@pytest.fixture
def memory_only(monkeypatch):
    """Step times: test_backtest_times.py."""
    monkeypatch.setattr(command, "judge_sets", lambda shipped, folder: [])


@pytest.mark.usefixtures("memory_only")
def test_rows_that_decide_are_not_judged(tmp_path):
    """A few rows of one file: no others, no SimuMax, and none of the shipped ones that have decided."""
    lines = (SHIPPED / nanotron.FILE).read_text().splitlines()
    head, rows = lines[:4], [line for line in lines[4:] if line.endswith(",ok")][15:30]
    (tmp_path / nanotron.FILE).write_text("\n".join([*head, *rows]) + "\n")
    decided = nanotron.calibration_rows(nanotron.read_runs(SHIPPED / nanotron.FILE))
    assert len(decided) == 12 and len({one.model for one in decided}) == 4
    assert main(["--data", str(tmp_path), "--page", str(tmp_path / "page.md")]) in (0, 1)
    with open(tmp_path / "page.csv") as file:
        table = list(csv.DictReader(file))
    given = {one.case for one in nanotron.read_runs(tmp_path / nanotron.FILE) if one.gib}
    judged = {row["case"] for row in table}
    assert judged == given - {one.case for one in decided} != given
    assert {row["source"] for row in table} == {"nanotron"}


def test_the_smallest_case_writes_its_figures_and_ends_well(tmp_path, capsys):
    """All dense rows within three percent."""
    out, page = tmp_path / "found.json", tmp_path / "page.md"
    assert main(["--smallest", "--output", str(out), "--page", str(page)]) == 0
    found = json.loads(out.read_text())["sources"]["SimuMax"]
    assert len(found["rows"]) == 31 and found["bars"][0]["met"] and found["bars"][0]["found"] < 1.0
    assert "| 31 |" in page.read_text() and main(["--data", str(tmp_path / "nowhere")]) == 2
    assert find_codes(capsys.readouterr().err) == ["SL-backtest-data"]


def test_every_row_of_a_foreign_table_has_a_complete_description():
    """What answers, and every name in it, is known."""
    tables, models, more = matrices.read_descriptions()
    sizes = matrices.list_sizes(Config.from_env({"TRAINER_RUN": "r", "TRAINER_MODEL": "qwen_tiny"}))
    assert {name for one in more.values() for name in one.of} <= sizes.keys()
    assert {name for one in more.values() for name in one.windows} <= {"forward", "backward", "optimizer"}
    for table in tables:
        for row in read_table(SHIPPED / table.file):
            found = next(one for one in table.rows if one.matches(row))
            if found.formulas:
                assert found.formulas["variant"] in read_engine(found.formulas["engine"]).variants
            elif not found.why:
                model = found.model or ", ".join(row[name] for name in table.model)
                given = {"seq_len", "micro_batch_size", *found.settings, *models[model]}
                assert {"strategy", "model"} <= given <= Config.model_fields.keys() and found.ranks
                assert found.held.keys() <= {*CAUSES} and {*found.more} <= more.keys()
            assert bool(found.why) != bool(found.differs), (table.file, found.when)


@pytest.mark.usefixtures("memory_only")
def test_a_matrix_adds_up(tmp_path):
    """One or two rows of each kind, where a run that needs just the whole device fits; and a few rows of a file."""
    (*_, table), _, _ = matrices.read_descriptions()
    ran = {22.2: True, 1.0: True, 30.0: True, 31.0: True, 32.0: False, 22.1: False}
    rows = [*((fits, needs) for needs, fits in ran.items()), (False, None), (True, None)]
    judged = matrices.Judged(table, [matrices.Answer("", fits, needs, 22.2, "") for fits, needs in rows])
    assert [*judged.matrix.values()] == [2, 2, 1, 1, 2] and sum(judged.matrix.values()) == len(rows)
    lines = (SHIPPED / table.file).read_text().splitlines()
    few = [line for line in lines[3:] if ",oom," in line] + lines[3:5]
    (tmp_path / table.file).write_text("\n".join([*lines[:3], *few]) + "\n")
    out, page = tmp_path / "found.json", tmp_path / "page.md"
    assert main(["--data", str(tmp_path), "--output", str(out), "--page", str(page)]) == 0
    matrix = json.loads(out.read_text())["matrices"][table.name]["rows"]
    with open(page.with_suffix(".csv")) as file:
        written = list(csv.DictReader(file))
    assert sum(matrix.values()) == len(few) == len(written)
    assert [int(row["ran"]) for row in written] == [0, 0, 0, 1, 1]
    assert {row["by"] for row in written} == {matrices.FORMULAS} and f"### {table.name}" in page.read_text()
