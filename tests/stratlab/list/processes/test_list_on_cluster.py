"""Which runs there are on a cluster: those of the volume and those of its resources. A process here plays the pod."""

import json

from tests.stratlab.example_run import build_run_dir
from tests.stratlab.list.test_list import call, results
from tests.stratlab.watch.objects import RUNS, build_run

__all__ = ["call", "results"]


def test_a_cluster_has_its_volume_and_its_resources(call, lab, results):
    build_run_dir(results / "other", "hsdp", "hsdp", status="stopped")
    places = {"zero2": "other", "late": "other", "hsdp": "other", "ddp": "demo"}
    for name, comparison in places.items():
        resource = build_run("Running" if name == "zero2" else "Suspended", name=name)
        resource["metadata"]["annotations"]["stratlab/run-directory"] = f"{results}/{comparison}/{name}"
        lab[1].api.put(RUNS, resource)
    code, out, err = call("--on-cluster", "--claim", "stratlab-results", "--mount", results, "--json")
    assert code == 0, err
    found = {run["run"]: (run["status"], run["resource"].rpartition(": ")[2]) for run in json.loads(out)}
    assert found == {
        "ddp": ("finished", "Suspended"),
        "fsdp": ("failed", ""),
        "hsdp": ("Suspended", "Suspended"),  # it was told to stop
        "late": ("Suspended", "Suspended"),  # it has no folder yet
        "zero2": ("at work", "Running"),
    }


def test_an_empty_volume_is_no_mistake(call, lab, tmp_path):
    (tmp_path / "empty").mkdir()
    code, out, err = call("--on-cluster", "--mount", tmp_path / "empty")
    assert code == 0 and len(out.splitlines()) == 1, err
