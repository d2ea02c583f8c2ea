"""checkov sees every pod of every workload, also inside of custom resources, and finds nothing that is not waived."""

import copy
import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.charts.golden_file import BASE, FULL, read_full
from tests.charts.rendering import CHARTS, find_program, render
from tests.charts.valid_objects import WORKLOADS, unwrap_pods, workload_values

FOLDER = Path(__file__).parents[1]
WAIVERS = yaml.safe_load((FOLDER / "waivers.yaml").read_text())
HARDENED = ["--values", str(FOLDER / "hardened.yaml")]
SECTIONS = {"shipped": ("always", "as_shipped"), "hardened": ("always",)}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Of pods as shipped, with hardened values, and of a planted one. One start of checkov: 5 s CPU."""
    helm, folder = find_program("helm"), tmp_path_factory.mktemp("scan")
    objects = {}
    for name in FULL:
        if not name.startswith("everything"):
            objects |= {
                ("shipped", name, role): pod for role, pod in unwrap_pods(read_full(helm, name)).items()
            }
    for api, topology in WORKLOADS:
        pods = unwrap_pods(render(helm, CHARTS / "ddp", [*workload_values(api, topology), *HARDENED]))
        objects |= {("hardened", f"{api}-{topology}", role): pod for role, pod in pods.items()}
    planted = copy.deepcopy(objects["shipped", BASE, "PyTorchJob.Worker"])
    planted["spec"]["hostNetwork"] = planted["spec"]["containers"][0]["securityContext"]["privileged"] = True
    objects["planted", "", "PyTorchJob.Worker"] = planted
    for (section, name, role), pod in objects.items():
        (folder / f"{section} {name} {role}.yaml").write_text(yaml.safe_dump(pod))
    options = ("--framework", "kubernetes", "--output", "json", "--compact", "--skip-download")
    command = [str(find_program("scan/bin/checkov")), "--directory", str(folder), *options]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("BC_", "CKV_"))}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env)
    report = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0, done.stderr
    checks = {(section, role): set() for section, _, role in objects}
    for failed in report["results"]["failed_checks"]:
        section, _, role = Path(failed["file_path"]).stem.split(" ")
        checks[section, role].add(failed["check_id"])
    return checks


def test_nothing_is_found_that_is_not_waived_and_every_waiver_is_needed(found):
    used = set()
    for (section, role), checks in found.items():
        for part in SECTIONS.get(section, ()):
            waived = {waiver["check"] for waiver in WAIVERS[part] if waiver.get("pod", role) == role}
            used |= {(part, check) for check in checks & waived}
            checks = checks - waived
        assert section == "planted" or checks == set(), (section, role)
    assert used == {(part, waiver["check"]) for part, waivers in WAIVERS.items() for waiver in waivers}


def test_it_sees_inside_of_custom_resources(found):
    assert {"CKV_K8S_16", "CKV_K8S_19"} <= found[
        "planted", "PyTorchJob.Worker"
    ]  # privileged, the host's network
