"""The worked values of three clusters, rendered with charts of several nodes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.bad_values import SECOND, merge_defaults
from tests.charts.pod_security import LEVELS, find_level
from tests.charts.rendering import CHARTS, ROOT, Document, refusal, render
from tests.charts.unwrapping import RUNNING, unwrap_pods
from tests.charts.valid_objects import problems
from tests.codes import find_codes

FILES = sorted((ROOT / "examples").glob("cluster-*.yaml"))
LEVEL = {"eks-efa": "restricted", "gke-a3-ultra": "privileged", "infiniband": "privileged"}
"""As docs/clouds.md says; the real admission: tests/cluster/parts/test_clouds.py."""
SIZE = "--set run.config.micro_batch_size=4"
MANY_NODES = ("zeropp", "llm-4d", "fsdp")
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def name_of(file: Path) -> str:
    return file.stem.removeprefix("cluster-")


def read_run(file: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(file.read_text())["run"])


def training(documents: list[Document]) -> Document:
    return next(pod for name, pod in unwrap_pods(documents).items() if name in RUNNING)


@each_file
def test_charts_of_several_nodes_render_valid_objects(helm: Path, file: Path) -> None:
    run = read_run(file)
    SECOND.validate(merge_defaults(run))  # as an editor sees it, which knows the schema and no chart
    for chart in MANY_NODES:
        rendered = render(helm, CHARTS / chart, ["--values", str(file)])
        assert problems(rendered) == []
        pod = training(rendered)
        container = pod["spec"]["containers"][0]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
        env = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert env.items() >= {entry["name"]: entry["value"] for entry in run["env"]}.items()
        assert pod["metadata"].get("annotations", {}) == run["pod"].get("annotations", {})


@each_file
def test_its_level_is_the_lowest_that_will_do(helm: Path, file: Path) -> None:
    level = read_run(file)["podSecurity"]["level"]
    assert level == LEVEL[name_of(file)]
    assert f"# Pod Security of the namespace: {level}" in file.read_text()
    assert find_level(training(render(helm, CHARTS / "fsdp", ["--values", str(file)]))["spec"]) == level
    if level != "restricted":
        below = LEVELS[LEVELS.index(level) - 1]
        said = refusal(helm, "fsdp", ["--values", str(file), "--set", f"run.podSecurity.level={below}"])
        assert find_codes(said) == ["SL-security-level"]


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
    assert f"#   helm install fsdp charts/fsdp -n stratlab --values examples/{file.name} {SIZE}" in head
    sources = dict(re.findall(r"^# (\[\d\]) ((?:.+\n)(?:#     .+\n)*)", head + "\n", re.MULTILINE))
    assert sources
    for number, source in sources.items():
        assert re.search(r"\d{4}-\d{2}-\d{2}|commit [0-9a-f]{12}", source), source
        assert number in text.replace(f"# {number} {source}", "")
