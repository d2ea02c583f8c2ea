"""Claim, mount and image of a comparison come from its runs' annotations."""

from __future__ import annotations

from typing import Any

import pytest

from stratlab.cluster import ClusterError
from stratlab.cluster import results_location as module
from stratlab.cluster.pod_template import PodRequest
from stratlab.cluster.results_location import find_place
from stratlab.cluster.workloads import APIS, Workload

DEFAULTS = PodRequest()
FIELDS = ("results-claim", "results-mount", "lab-image", "certificates")


def run(name: str, comparison: str, *place: str) -> Workload:
    """Runs are as old as their names say: `a` is the oldest. `place`: claim, mount, image, certificates."""
    notes = {"run-directory": f"/data/{comparison}/{name}"} | dict(zip(FIELDS, place, strict=False))
    annotations = {f"stratlab/{key}": value for key, value in notes.items()}
    created = f"2026-11-0{'abcd'.index(name) + 1}T00:00:00Z"
    metadata = {"name": name, "creationTimestamp": created, "annotations": annotations}
    return Workload(APIS["pytorchjob"], {"metadata": metadata})


def find(monkeypatch: pytest.MonkeyPatch, comparison: str, *runs: Workload, **given: Any) -> PodRequest:
    monkeypatch.setattr(module, "list_workloads", lambda connection: [*runs])
    return find_place(None, comparison, **given)  # type: ignore[arg-type]


def test_the_newest_run_of_the_comparison_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = run("a", "vit", "old", "/old", "lab:1"), run("b", "vit", "big", "/data", "lab:2", "secret/x/y")
    runs += (run("c", "llm", "x", "/x", "x:1"),)
    said: list[str] = []
    found = find(monkeypatch, "vit", *runs, say=said.append)
    assert found == PodRequest("big", "/data", "lab:2", certificates="secret/x/y")
    assert all(word in said[0] for word in ("PyTorchJob b", "big", "/data", "lab:2", "3"))
    given = find(monkeypatch, "vit", *runs, image="mine:3", certificates="secret/own/ca.crt")
    assert given == PodRequest("big", "/data", "mine:3", certificates="secret/own/ca.crt")
    assert find(monkeypatch, "gone", *runs) == PodRequest("x", "/x", "x:1"), "of the newest of all"


def test_an_image_that_one_run_alone_has_is_not_taken_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be one that nobody can pull."""
    runs = [run(name, "demo", "c", "/m", "lab:typo" if name in "cd" else "lab:1") for name in "abcd"]
    assert find(monkeypatch, "demo", *runs[:3]).image == "lab:1"
    assert find(monkeypatch, "demo", *runs).image == "lab:typo", "of as many that of the newest"


def test_where_nothing_is_known_the_defaults_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(monkeypatch, "vit") == DEFAULTS

    def refuse(connection: Any) -> list[Workload]:
        raise ClusterError("no right", 403)

    monkeypatch.setattr(module, "list_workloads", refuse)
    assert find_place(None, "vit", claim="a") == PodRequest("a")  # type: ignore[arg-type]
    whole = {"claim": "a", "mount": "/b", "image": "c", "certificates": "d"}
    monkeypatch.delattr(module, "list_workloads")  # nobody is asked
    assert find_place(None, "vit", **whole) == PodRequest(**whole)  # type: ignore[arg-type]
