"""Where the network decides: the verdict on steps of which the truth is known, its table and its picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.network.__main__ import KEEP, RATES_MBIT, at_rate, keep, predict_ms
from experiments.network.judging import Cell, Foretold, Verdict, find_flip, interpolate, judge, read_cells
from stratlab_spec.step_time.measured_machine import read_machine

RATES = (50.0, 500.0, 5000.0)


def step(name: str, rate: float) -> float:
    """`many` sends 100 Mbit, `few` 40 and needs 60 ms more: equal where 60 Mbit take 60 ms, at 1,000 Mbit/s."""
    sent, own_ms = {"many": (100, 50), "few": (40, 110)}[name]
    return own_ms + 1e3 * sent / rate


def build(band: float, measured_shift: float = 1.0, slower: float = 1.0) -> Verdict:
    """The measured network is `measured_shift` as fast, and `few` takes `slower` times as long."""
    cells = []
    for rate in RATES:
        predicted, measured = {}, {}
        for name in ("many", "few"):
            ms = step(name, rate)
            predicted[name] = Foretold(ms, ms * (1 - band), ms * (1 + band))
            value = step(name, rate * measured_shift) * (slower if name == "few" else 1)
            measured[name] = [0.9 * value, value, 5 * value]
        cells.append(Cell(rate, predicted, measured))
    return judge(cells, step)


def test_an_exact_forecast_names_every_winner_and_the_flip() -> None:
    found = build(0.05)
    assert [cell.foretold for cell in found.cells] == ["few", "few", "many"]
    assert [cell.decided for cell in found.cells] == [True, True, True]
    assert [len(cell.inside) for cell in found.cells] == [2, 2, 2]
    assert found.predicted_flip is not None and found.predicted_flip[:2] == ("few", "many")
    assert found.predicted_flip.rate_mbit == pytest.approx(1000, rel=1e-3)
    assert found.flip_factor is not None and found.flip_factor < 1.5
    assert found.list_misses() == []


def test_wide_bands_decide_no_cell() -> None:
    found = build(0.5)
    assert [cell.decided for cell in found.cells] == [False] * 3
    assert len(found.list_misses()) == 1


@pytest.mark.parametrize(("shift", "slower", "misses"), [(1.0, 3.0, 2), (0.2, 1.0, 1)])
def test_a_wrong_winner_and_a_wrong_flip_are_missed(shift: float, slower: float, misses: int) -> None:
    """Three times slower, `few` wins only at 50 Mbit/s, or not at all; on a slower network the flip comes later."""
    assert len(build(0.02, shift, slower).list_misses()) >= misses


def test_without_two_winners_there_is_no_flip() -> None:
    assert find_flip(lambda name, _: {"a": 1.0, "b": 2.0}[name], ["a", "b"], RATES) is None


def test_between_measured_rates_steps_follow_the_logarithms() -> None:
    assert interpolate({10.0: 1000.0, 1000.0: 10.0}, 100.0) == pytest.approx(100.0)
    assert interpolate({10.0: 1000.0, 1000.0: 10.0}, 1000.0) == 10.0


def test_the_kept_result_is_of_all_rates_and_is_written_again_as_it_is(tmp_path: Path) -> None:
    kept = json.loads((KEEP / "result.json").read_text())
    assert len(kept["commit"]) == 40 and kept["backend"] == "gloo"
    cells = read_cells(KEEP / "result.json")
    assert [cell.rate_mbit for cell in cells] == list(RATES_MBIT)
    machine = read_machine(KEEP / "machine.json")
    keep(judge(cells, lambda name, rate: predict_ms(at_rate(machine, rate), name)), machine, tmp_path)
    again = json.loads((tmp_path / "result.json").read_text())
    assert again["cells"] == kept["cells"]
    lines = (tmp_path / "table.txt").read_text().splitlines()
    assert len(lines) > len(cells) * len(cells[0].predicted)
    assert len([line for line in lines if line.startswith("missed")]) == len(again["misses"])
