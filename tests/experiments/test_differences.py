"""What a small form may differ in, on sweeps of a few lines."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from experiments.differences import find_clusters, find_differences

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


def test_smaller_numbers_are_allowed() -> None:
    assert find_differences(FULL, FULL) == []
    assert find_differences(FULL, smaller()) == []


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        (("comparison",), "b", "comparison is 'a' in the full form and 'b'"),
        (("values",), "other.yaml", "values is"),
        (("values",), ["../values.yaml", "../examples/cluster-a.yaml"], "values is"),
        (("tune",), {"steps": 3}, "tune is None in the full form"),
        (("set", "run.config.lr"), 0.01, "set: run.config.lr is 0.1 in the full form and 0.01"),
        (
            ("set", "run.config.epochs"),
            4,
            "set: run.config.epochs is 4 in the small form, expected a whole number from 1 to 3",
        ),
        *(
            (("set", "run.config.epochs"), odd, "expected a whole number from 1")
            for odd in (0, -3, True, 0.5)
        ),
        (("values",), "extra.yaml", "extra.yaml is one file beside the full form and another"),
        (("set", "run.config.steps"), 4, "set: run.config.steps is None in the full form"),
        (("set", "run.config.seed"), 1, "set: run.config.seed is None in the full form and 1"),
        (("matrix", "strategy"), ["ddp"], "matrix: strategy is"),
        (
            ("matrix", "run.processesPerNode"),
            [1, 16],
            "run.processesPerNode is .1, 16. in the small form, expected whole numbers",
        ),
        (
            ("matrix", "run.config.micro_batch_size"),
            [1, 2, 3, 4],
            "micro_batch_size is .* expected whole numbers",
        ),
        (("matrix", "run.config.zeropp"), ["hpz,qwz"], "zeropp is .* not a part of"),
        (("matrix", "run.config.seed"), [1], "matrix: has the axes"),
        (("exclude",), [], "exclude: is"),
    ],
)
def test_every_other_key_is_refused(place: tuple[str, ...], value: Any, sentence: str) -> None:
    small = smaller()
    node = small
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    found = find_differences(FULL, small)
    assert found and re.search(sentence, " | ".join(found)), found


def test_files_of_one_name_in_two_folders_are_two_files() -> None:
    named = {"values": ["../values.yaml", "extra/v.yaml"]}
    (found,) = find_differences(FULL | named, smaller() | named)
    assert found.startswith("values: extra/v.yaml is one file beside the full form and another")


def test_what_is_switched_off_in_both_forms_is_no_difference() -> None:
    full, small = copy.deepcopy(FULL), smaller()
    full["set"]["run.config.profile_steps"] = small["set"]["run.config.profile_steps"] = 0
    assert find_differences(full, small) == []


def test_a_key_that_the_small_form_lacks_is_a_difference() -> None:
    small = smaller()
    del small["set"]["run.nodes"]
    assert find_differences(FULL, small) == ["set: run.nodes is 2 in the full form and None in the small one"]


def test_the_file_of_a_cluster_is_the_full_forms_alone() -> None:
    full = FULL | {"values": ["../values.yaml", "../../../examples/cluster-a.yaml"]}
    assert find_differences(full, smaller()) == []
    assert find_clusters(full) == ["../../../examples/cluster-a.yaml"] and find_clusters(smaller()) == []
    assert find_differences(full | {"values": ["../../../examples/cluster-a.yaml"]}, smaller())


@pytest.mark.parametrize(("rows", "differences"), [(8, 0), (16, 0), (17, 1), (0, 1)])
def test_the_share_of_a_step_is_bounded_by_the_step(rows: int, differences: int) -> None:
    """Four samples of one GPU of many may be more on each of two processes."""
    full = copy.deepcopy(FULL)
    full["set"] |= {"run.config.global_batch_size": 16, "run.config.micro_batch_size": 4}
    small = copy.deepcopy(full)
    small["set"]["run.config.micro_batch_size"] = rows
    assert len(find_differences(full, small)) == differences
