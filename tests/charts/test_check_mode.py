"""`run.config.mode=check`: the pods of the run itself, and nothing that asks for a run directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.charts.rendering import CHARTS, Document, pick, render, training_pod

KINDS = {
    "pytorchjob": "PyTorchJob",
    "mpijob-v1": "MPIJob",
    "mpijob-v2beta1": "MPIJob",
    "trainjob": "TrainJob",
}
WHERE = "run.nodes=2,run.results.mountPath=/data,run.config.deadline_s=600"


def render_both(helm: Path, chart: str, settings: str) -> list[list[Document]]:
    return [
        render(helm, CHARTS / chart, ["--set", f"{settings},run.config.mode={mode}"])
        for mode in ("check", "train")
    ]


@pytest.mark.parametrize("api", KINDS)
def test_the_resource_is_that_of_the_run(helm: Path, api: str) -> None:
    """But for the mode, its hash, and the run directory, which a check has none of."""
    check, train = render_both(helm, "ddp", f"{WHERE},run.workload.api={api},run.podSecurity.level=baseline")
    kinds = [{each["kind"] for each in documents} for documents in (check, train)]
    assert kinds[1] - kinds[0] == {"Job", "Pod"}
    found, run = (pick(documents, KINDS[api]) for documents in (check, train))
    notes, others = found["metadata"].pop("annotations"), run["metadata"].pop("annotations")
    assert others.keys() - notes.keys() == {"stratlab/run-directory"} and not notes.keys() - others.keys()
    assert {name for name in notes if notes[name] != others[name]} == {"stratlab/settings-sha256"}
    texts = [str([each for each in documents if each["kind"] in kinds[0]]) for documents in (check, train)]
    modes = ["'value': 'check'", "'value': 'train'"]
    assert texts[0].count(modes[0]) == texts[1].count(modes[1]) > 0
    assert texts[0].replace(*modes) == texts[1]


@pytest.mark.parametrize("chart", ["single", "zero3", "llm-3d"])
def test_every_chart_has_it(helm: Path, chart: str) -> None:
    (found,) = render(helm, CHARTS / chart, ["--set", "run.config.mode=check"])
    names = {each["name"]: each.get("value") for each in training_pod([found])["containers"][0]["env"]}
    assert names["TRAINER_MODE"] == "check"


def test_an_expected_bandwidth_goes_along(helm: Path) -> None:
    (found,) = render(helm, CHARTS / "ddp", ["--set", "run.config.mode=check,run.config.least_gb_per_s=200"])
    names = {each["name"]: each.get("value") for each in training_pod([found])["containers"][0]["env"]}
    assert names["TRAINER_LEAST_GB_PER_S"] == "200"
