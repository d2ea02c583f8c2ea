"""Claim, mount and image of a comparison come from its runs' annotations."""

from __future__ import annotations

from typing import Any

import pytest

from stratlab.cluster.connection import Connection
from stratlab.cluster.place import Place, find_place
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.watch.objects import RUNS, build_run

DEFAULTS = Place("stratlab-results", "/results", "stratlab-lab:0.1.0")


@pytest.fixture(autouse=True)
def served(api: FakeApi) -> None:
    api.served.add(RUNS)


def put(api: FakeApi, name: str, comparison: str, *place: str, certificates: str = "") -> None:
    """Runs are as old as their names say: `a` is the oldest. `place`: claim, mount and image, from the last one on."""
    run: dict[str, Any] = build_run("Succeeded")
    run["metadata"] |= {"name": name, "creationTimestamp": f"2026-11-0{'abcd'.index(name) + 1}T00:00:00Z"}
    notes = {"run-directory": f"/data/{comparison}/{name}", "certificates": certificates}
    names = ("results-claim", "results-mount", "lab-image")
    notes |= dict(zip(names[-len(place) :] if place else (), place, strict=True))
    run["metadata"]["annotations"] = {f"stratlab/{key}": value for key, value in notes.items()}
    api.put(RUNS, run)


def test_the_newest_run_of_the_comparison_decides(api: FakeApi, connection: Connection) -> None:
    put(api, "a", "vit", "old", "/old", "team/lab:1")
    put(api, "b", "vit", "big", "/data", "team/lab:2")
    put(api, "c", "llm", "x", "/x", "x:1")
    said: list[str] = []
    assert find_place(connection, "lab", "vit", say=said.append) == Place("big", "/data", "team/lab:2")
    (told,) = said
    assert all(word in told for word in ("PyTorchJob b", "big", "/data", "team/lab:2", "3"))
    assert find_place(connection, "lab", "vit", image="mine:3") == Place("big", "/data", "mine:3")


def test_the_authority_is_the_run_s_unless_given(api: FakeApi, connection: Connection) -> None:
    put(api, "a", "vit", certificates="configMap/company/ca.crt")
    assert find_place(connection, "lab", "vit").certificates == "configMap/company/ca.crt"
    own = "secret/own/ca.crt"
    assert find_place(connection, "lab", "vit", certificates=own).certificates == own


def test_an_image_that_one_run_alone_has_is_not_taken_for_all(api: FakeApi, connection: Connection) -> None:
    """It may be one that nobody can pull."""
    for name, image in (("a", "team/lab:1"), ("b", "team/lab:1"), ("c", "team/lab:typo")):
        put(api, name, "demo", image)
    assert find_place(connection, "lab", "demo").image == "team/lab:1"
    put(api, "d", "demo", "team/lab:typo")
    assert find_place(connection, "lab", "demo").image == "team/lab:typo", "of as many that of the newest"


def test_where_all_runs_are_gone(api: FakeApi, connection: Connection) -> None:
    assert find_place(connection, "lab", "vit") == DEFAULTS
    put(api, "c", "llm", "x", "/x", "x:1")
    assert find_place(connection, "lab", "vit") == Place("x", "/x", "x:1")
    api.fault = lambda path, query: {"status": 403}
    assert find_place(connection, "lab", "vit", claim="a") == Place("a", DEFAULTS.mount, DEFAULTS.image)
    api.requests.clear()
    given = find_place(connection, "lab", "vit", claim="a", mount="/b", image="c", certificates="d")
    assert given == Place("a", "/b", "c", "d") and api.requests == []
