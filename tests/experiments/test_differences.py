"""What a small form may differ in, on sweeps of a few lines."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from experiments.differences import find_clusters, find_differences
from tests.codes import find_codes

FULL: dict[str, Any] = {
    "comparison": "a",
    "values": "../values.yaml",
    "set": {"run.nodes": 2, "run.config.epochs": 3, "run.config.lr": 0.1},
    "matrix": {
        "strategy": ["ddp", "zeropp"],
        "run.processesPerNode": [1, 8],
        "run.config.micro_batch_size": [16, 32, 64],
        "run.config.zeropp": ["hpz", "hpz,qgz"],
    },
    "exclude": [
        {"strategy": "ddp", "run.processesPerNode": 8},
        {"strategy": "ddp", "run.config.micro_batch_size": 64},
    ],
}


def smaller() -> dict[str, Any]:
    """All that the table allows."""
    small = copy.deepcopy(FULL)
    small["set"] |= {"run.nodes": 1, "run.config.epochs": 1}
    small["matrix"] |= {
        "run.processesPerNode": [1, 2],
        "run.config.micro_batch_size": [4],
        "run.config.zeropp": ["hpz"],
    }
    small["exclude"] = [{"strategy": "ddp", "run.processesPerNode": 2}]
    return small


def test_smaller_numbers_are_allowed_and_what_is_switched_off_in_both_forms() -> None:
    off = {"set": {"run.config.profile_steps": 0}}
    for full, small in ((FULL, FULL), (FULL, smaller()), (off, off)):
        assert find_differences(full, small) == []


@pytest.mark.parametrize(
    ("place", "value", "code"),
    [
        ("comparison", "b", "SL-form-differs"),
        ("values", "extra.yaml", "SL-form-other-file"),
        ("tune", {"steps": 3}, "SL-form-differs"),
        ("set run.config.lr", 0.01, "SL-form-differs"),
        ("set run.config.seed", 1, "SL-form-differs"),
        *(("set run.config.epochs", odd, "SL-form-not-smaller") for odd in (4, 0, -3, True, 0.5)),
        ("matrix strategy", ["ddp"], "SL-form-axis"),
        ("matrix run.processesPerNode", [1, 16], "SL-form-axis-not-smaller"),
        ("matrix run.config.micro_batch_size", [1, 2, 3, 4], "SL-form-axis-not-smaller"),
        ("matrix run.config.zeropp", ["hpz,qwz"], "SL-form-no-part"),
        ("matrix run.config.seed", [1], "SL-form-axes"),
        ("exclude", [], "SL-form-exclude"),
    ],
)
def test_every_other_key_is_refused(place: str, value: Any, code: str) -> None:
    small = smaller()
    node, *rest = place.split()
    if rest:
        small[node][rest[0]] = value
    else:
        small[node] = value
    found = find_differences(FULL, small)
    assert code in find_codes(found) and place.split()[-1] in str(found)


def test_a_key_that_the_small_form_lacks_is_a_difference() -> None:
    small = smaller()
    del small["set"]["run.nodes"]
    assert find_codes(find_differences(FULL, small)) == ["SL-form-differs"]


def test_the_file_of_a_cluster_is_the_full_forms_alone() -> None:
    full = FULL | {"values": ["../values.yaml", "../../../examples/cluster-a.yaml"]}
    assert find_differences(full, smaller()) == []
    assert find_clusters(full) == ["../../../examples/cluster-a.yaml"] and find_clusters(smaller()) == []
    assert find_differences(full | {"values": ["../../../examples/cluster-a.yaml"]}, smaller())


@pytest.mark.parametrize(("rows", "differences"), [(16, 0), (17, 1), (0, 1)])
def test_the_share_of_a_step_is_bounded_by_the_step(rows: int, differences: int) -> None:
    """Four samples of one GPU of many may be more on each of two processes."""
    full = copy.deepcopy(FULL)
    full["set"] |= {"run.config.global_batch_size": 16, "run.config.micro_batch_size": 4}
    small = copy.deepcopy(full)
    small["set"]["run.config.micro_batch_size"] = rows
    assert len(find_differences(full, small)) == differences
