"""A calibrated machine: its file, its links, and the band of a step."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from stratlab_spec.step_time.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    IN_NODE,
    REDUCE_SCATTER,
    RankGroup,
    collective_seconds,
)
from stratlab_spec.step_time.kernels import CARDS
from stratlab_spec.step_time.measured_machine import (
    NINETY,
    UNEXPLAINED_PCT,
    BadMachineFile,
    MeasuredMachine,
    read_machine,
)

CONTENT: dict[str, Any] = {
    "schema": 1,
    "card": "cpu",
    "backend": "gloo",
    "ranks_of_node": 2,
    "memory_gib": 8.0,
    "scalars": {
        "product_tflops": {"value": 0.03, "uncertainty_pct": 5.0},
        "copy_tb_per_s": {"value": 0.01, "uncertainty_pct": 5.0},
        "host_scale": {"value": 1.5, "uncertainty_pct": 20.0},
        "hop_us": {"value": 1000.0, "uncertainty_pct": 10.0},
        "between_gb_per_s": {"value": 0.05, "uncertainty_pct": 3.0},
    },
    "correlations": {"host_scale": {"hop_us": -0.5}},
    "origin": {"date": "2026-11-30", "hardware": "AMD EPYC, 2 cores", "nodes": 2, "steps": 32},
}


def write(folder: Path, **changed: Any) -> Path:
    """Write the file with changes, named as the path to them: scalars__hop_us__value; None takes them out."""
    content = copy.deepcopy(CONTENT)
    for name, value in changed.items():
        *path, last = name.split("__")
        place = content
        for step in path:
            place = place[step]
        if value is None:
            del place[last]
        else:
            place[last] = value
    file = folder / "machine.json"
    file.write_text(json.dumps(content))
    return file


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    found = read_machine(write(tmp_path))
    found.write(tmp_path / "again.json")
    assert read_machine(tmp_path / "again.json") == found
    assert json.loads((tmp_path / "again.json").read_text()) == CONTENT


@pytest.mark.parametrize(
    "changed",
    [
        {"schema": 2},
        {"card": "h1000"},
        {"backend": "mpi"},
        {"card": "h100"},
        {"ranks_of_node": 0},
        {"ranks_of_node": True},
        {"memory_gib": -1},
        {"scalars__host_scale": None},
        {"scalars__hop_us__value": 0},
        {"scalars__hop_us__value": "fast"},
        {"scalars__hop_us__value": math.inf},
        {"scalars__hop_us__uncertainty_pct": 301},
        {"scalars__inside_gb_per_s": {"value": 1.0, "uncertainty_pct": 1.0}},
        {"correlations__host_scale": {"hop_us": 1.5}},
        {"correlations__host_scale": {"inside_gb_per_s": 0.5}},
        {"origin__date": None},
        {"origin__place": "here"},
    ],
    ids=str,
)
def test_a_file_that_no_calibration_writes_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(BadMachineFile, match="SL-machine-content"):
        read_machine(write(tmp_path, **changed))


def test_no_file_and_no_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadMachineFile, match="SL-machine-unreadable"):
        read_machine(tmp_path / "none.json")
    file = tmp_path / "half.json"
    for text in ("{", "[]"):
        file.write_text(text)
        with pytest.raises(BadMachineFile, match="SL-machine-no-json|SL-machine-content"):
            read_machine(file)


def gloo(tmp_path: Path, **changed: Any) -> MeasuredMachine:
    return read_machine(write(tmp_path, **changed))


def test_gloo_sends_a_reduce_scatter_as_an_all_reduce(tmp_path: Path) -> None:
    """Four ranks on two nodes: 6 hops of 1 ms, and 1.5 x 4 MB over 50 MB/s; one rank of a node has half of it."""
    links = gloo(tmp_path).links
    whole, across = RankGroup(4, 2), RankGroup(2, 1)
    for kind in (ALL_REDUCE, REDUCE_SCATTER):
        assert collective_seconds(kind, 4e6, whole, links) == pytest.approx(0.006 + 1.5 * 4e6 / 50e6)
    assert collective_seconds(ALL_GATHER, 4e6, whole, links) == pytest.approx(0.003 + 0.75 * 4e6 / 50e6)
    assert collective_seconds(ALL_REDUCE, 4e6, across, links) == pytest.approx(0.002 + 4e6 / 25e6)
    inside = 0.002 + 4e6 / 1e9  # a tenth of the copy bandwidth
    assert collective_seconds(ALL_REDUCE, 4e6, RankGroup(2, 2), links) == pytest.approx(inside)


def test_a_gpu_keeps_the_constants_of_its_type_but_for_what_was_measured(tmp_path: Path) -> None:
    usual = IN_NODE["h100"][ALL_REDUCE][8].gb_per_s
    half = {"value": usual / 2, "uncertainty_pct": 2.0}
    file = write(tmp_path, card="h100", backend="nccl", ranks_of_node=8, correlations={}, scalars__hop_us=None,
                 scalars__between_gb_per_s=None, scalars__inside_gb_per_s=half)  # fmt: skip
    found = read_machine(file)
    assert (found.card.product_tflops, found.card.gap_us) == (0.03, CARDS["h100"].gap_us)
    for kind, rows in IN_NODE["h100"].items():
        for ranks, row in rows.items():
            assert found.links.in_node[kind][ranks] == row._replace(gb_per_s=row.gb_per_s / 2)
    assert found.links.gloo_hop_us == 0 and not found.lacks(64, 8)


def test_a_machine_says_what_it_was_not_calibrated_for(tmp_path: Path) -> None:
    one_node = gloo(tmp_path, scalars__between_gb_per_s=None)
    one_rank = gloo(tmp_path, correlations={}, scalars__between_gb_per_s=None, scalars__hop_us=None)
    assert one_node.lacks(4, 2) and not one_node.lacks(2, 2)
    assert one_rank.lacks(2, 2) and not one_rank.lacks(1, 1)
    assert not gloo(tmp_path).lacks(4, 2)


def test_the_band_adds_the_model_s_own_error_to_that_of_each_scalar(tmp_path: Path) -> None:
    """A step that is as long as the host's scale says: 20 % and 5 % in quadrature, of logarithms."""
    machine = gloo(tmp_path)
    low, high = machine.find_band_pct(lambda moved: moved.host.scale, host_bound=False)
    width = NINETY * math.hypot(math.log(1.2), math.log1p(UNEXPLAINED_PCT / 100))
    assert (low, high) == (round(100 * math.expm1(-width)), round(100 * math.expm1(width)))
    both = machine.find_band_pct(lambda moved: moved.host.scale * moved.links.gloo_hop_us, host_bound=False)
    parts = math.log(1.2), math.log(1.1)
    together = sum(part**2 for part in parts) - parts[0] * parts[1]  # a correlation of -0.5
    width = NINETY * math.sqrt(together + math.log1p(UNEXPLAINED_PCT / 100) ** 2)
    assert both[1] == round(100 * math.expm1(width))
    constant = machine.find_band_pct(lambda _: 1.0, host_bound=False)
    assert constant[1] < machine.find_band_pct(lambda _: 1.0, host_bound=True)[1] < high
