"""Claim, mount and image of a comparison come from its runs' annotations."""

from __future__ import annotations

import copy
from typing import Any

from stratlab.cluster.connection import Connection
from stratlab.cluster.place import Place, find_place
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.watch.objects import RUNS, build_run


def put(api: FakeApi, name: str, comparison: str, created: str, **notes: str) -> None:
    run: dict[str, Any] = copy.deepcopy(build_run("Succeeded"))
    run["metadata"] |= {"name": name, "creationTimestamp": created}
    run["metadata"]["annotations"] = {
        f"stratlab/{key.replace('_', '-')}": value
        for key, value in ({"run_directory": f"/data/{comparison}/{name}"} | notes).items()
    }
    api.put(RUNS, run)


def test_the_newest_run_of_the_comparison_decides(api: FakeApi, connection: Connection) -> None:
    api.served.add(RUNS)
    place = {"results_claim": "big", "results_mount": "/data", "lab_image": "team/lab:2"}
    put(
        api,
        "a",
        "vit",
        "2026-11-01T00:00:00Z",
        results_claim="old",
        results_mount="/old",
        lab_image="team/lab:1",
    )
    put(api, "b", "vit", "2026-11-02T00:00:00Z", **place)
    put(api, "c", "llm", "2026-11-03T00:00:00Z", results_claim="x", results_mount="/x", lab_image="x:1")
    said: list[str] = []
    assert find_place(connection, "lab", "vit", say=said.append) == Place("big", "/data", "team/lab:2")
    assert said == [
        "as PyTorchJob b says: claim big at /data, image team/lab:2 (of 3; --image names another)"
    ]
    assert find_place(connection, "lab", "vit", image="mine:3") == Place("big", "/data", "mine:3")


def test_the_authority_is_the_run_s_unless_given(api: FakeApi, connection: Connection) -> None:
    api.served.add(RUNS)
    put(api, "a", "vit", "2026-11-01T00:00:00Z", certificates="configMap/company/ca.crt")
    assert find_place(connection, "lab", "vit").certificates == "configMap/company/ca.crt"
    given = {"claim": "big", "mount": "/data", "image": "mine:3"}
    own = "secret/own/ca.crt"
    assert find_place(connection, "lab", "vit", certificates=own).certificates == own
    assert find_place(connection, "lab", "vit", **given, certificates=own).certificates == own


def test_an_image_that_one_run_alone_has_is_not_taken_for_all(api: FakeApi, connection: Connection) -> None:
    """It may be one that nobody can pull."""
    api.served.add(RUNS)
    put(api, "a", "demo", "2026-11-01T00:00:00Z", lab_image="team/lab:1")
    put(api, "b", "demo", "2026-11-02T00:00:00Z", lab_image="team/lab:1")
    put(api, "c", "demo", "2026-11-03T00:00:00Z", lab_image="team/lab:typo")
    assert find_place(connection, "lab", "demo").image == "team/lab:1"
    put(api, "d", "demo", "2026-11-04T00:00:00Z", lab_image="team/lab:typo")
    assert find_place(connection, "lab", "demo").image == "team/lab:typo", "of as many that of the newest"


def test_where_all_runs_are_gone(api: FakeApi, connection: Connection) -> None:
    defaults = Place("stratlab-results", "/results", "stratlab-lab:0.1.0")
    assert find_place(connection, "lab", "vit") == defaults
    api.served.add(RUNS)
    assert find_place(connection, "lab", "vit") == defaults
    put(api, "c", "llm", "2026-11-03T00:00:00Z", results_claim="x", results_mount="/x", lab_image="x:1")
    assert find_place(connection, "lab", "vit") == Place("x", "/x", "x:1")


def test_what_was_given_is_not_asked_for(api: FakeApi, connection: Connection) -> None:
    assert find_place(connection, "lab", "vit", claim="a", mount="/b", image="c") == Place("a", "/b", "c")
    assert api.requests == []


def test_without_the_right_to_look_the_defaults_hold(api: FakeApi, connection: Connection) -> None:
    api.fault = lambda path, query: {"status": 403}
    assert find_place(connection, "lab", "vit", claim="a") == Place("a", "/results", "stratlab-lab:0.1.0")
