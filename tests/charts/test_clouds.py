"""The worked values of three clusters, rendered with charts of several nodes by every API that can start them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from charts.values_schema import values_schema
from tests.charts.bad_values import merge_defaults
from tests.charts.pod_security import LEVELS, find_level
from tests.charts.rendering import CHARTS, ROOT, Document, helm_template, read_documents, render
from tests.charts.test_valid_objects import problems
from tests.charts.unwrapping import RUNNING, unwrap_pods, workload_values

FILES = sorted((ROOT / "examples").glob("cluster-*.yaml"))
LEVEL = {"eks-efa": "restricted", "gke-a3-ultra": "privileged", "infiniband": "privileged"}
"""As docs/clouds.md says; the real admission: tests/cluster/parts/test_clouds.py."""
SIZE = "--set run.config.micro_batch_size=4"
MANY_NODES = ("zeropp", "llm-4d", "fsdp")
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def name_of(file: Path) -> str:
    return file.stem.removeprefix("cluster-")


def read_run(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text())["run"]


def training(documents: list[Document]) -> Document:
    return next(pod for name, pod in unwrap_pods(documents).items() if name in RUNNING)


def test_there_is_one_for_each_cluster() -> None:
    assert [name_of(file) for file in FILES] == sorted(LEVEL)


@each_file
def test_it_is_valid_by_itself(file: Path) -> None:
    """As an editor sees it, which knows the schema and no chart."""
    jsonschema_rs.validator_for(values_schema()).validate(merge_defaults(read_run(file)))


@each_file
@pytest.mark.parametrize("chart", MANY_NODES)
def test_charts_of_several_nodes_render_valid_objects(helm: Path, chart: str, file: Path) -> None:
    rendered = render(helm, CHARTS / chart, ["--values", str(file)])
    assert problems(rendered) == []
    pod = training(rendered)
    run = read_run(file)
    container = pod["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert env.items() >= {entry["name"]: entry["value"] for entry in run["env"]}.items()
    assert pod["metadata"].get("annotations", {}) == run["pod"].get("annotations", {})
    assert pod["spec"]["nodeSelector"] == run["scheduling"]["nodeSelector"]


@each_file
@pytest.mark.parametrize("api", ["mpijob-v1", "mpijob-v2beta1", "trainjob"])
def test_every_api_gives_the_same_pods(helm: Path, api: str, file: Path) -> None:
    arguments = ["--values", str(file)]
    other = render(helm, CHARTS / "fsdp", [*arguments, *workload_values(api, "worker-only")])
    assert problems(other) == []
    pods = [training(other), training(render(helm, CHARTS / "fsdp", arguments))]
    for pod in pods:
        pod["spec"].pop("restartPolicy", None)
        container = pod["spec"]["containers"][0]
        container["env"] = [e for e in container["env"] if not e["name"].startswith("PET_")]
        container.pop("command"), container.pop("name")
    assert pods[0]["spec"] == pods[1]["spec"]
    assert pods[0]["metadata"].get("annotations") == pods[1]["metadata"].get("annotations")


@each_file
def test_its_level_is_the_lowest_that_will_do(helm: Path, file: Path) -> None:
    level = read_run(file)["podSecurity"]["level"]
    assert level == LEVEL[name_of(file)]
    assert f"# Pod Security of the namespace: {level}" in file.read_text()
    assert find_level(training(render(helm, CHARTS / "fsdp", ["--values", str(file)]))["spec"]) == level
    for below in LEVELS[: LEVELS.index(level)]:
        arguments = ["--values", str(file), "--set", f"run.podSecurity.level={below}"]
        done = helm_template(helm, CHARTS / "fsdp", arguments)
        key = {"gke-a3-ultra": "run.pod.volumes: gib", "infiniband": "run.rdma.lockMemory=true"}[
            name_of(file)
        ]
        assert done.returncode == 1 and key in done.stderr and f"level is {below}" in done.stderr


def test_locked_memory_is_all_that_infiniband_asks_for(helm: Path) -> None:
    """What its comment says to do where the nodes' container runtime sets no limit."""
    (file,) = [file for file in FILES if name_of(file) == "infiniband"]
    settings = "run.rdma.lockMemory=false,run.podSecurity.level=restricted"
    rendered = render(helm, CHARTS / "fsdp", ["--values", str(file), "--set", settings])
    assert find_level(training(rendered)["spec"]) == "restricted"


@each_file
def test_each_line_has_a_source_and_each_source_a_date(file: Path) -> None:
    text = file.read_text()
    head = text[: text.index("\nrun:")]
    assert "Read, not run" in head
    sources = dict(re.findall(r"^# (\[\d\]) ((?:.+\n)(?:#     .+\n)*)", head + "\n", re.MULTILINE))
    assert sources
    for number, source in sources.items():
        assert re.search(r"\d{4}-\d{2}-\d{2}|commit [0-9a-f]{12}", source), source
        assert number in text.replace(f"# {number} {source}", "")


def test_the_helm_line_is_the_one_that_is_tried(helm: Path) -> None:
    for file in FILES:
        line = f"#   helm install fsdp charts/fsdp -n stratlab --values examples/{file.name} {SIZE}"
        assert line in file.read_text().splitlines()
        assert read_documents(helm_template(helm, CHARTS / "fsdp", ["--values", str(file)]).stdout)
