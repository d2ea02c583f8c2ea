"""The Job that waits for a run and analyses it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.charts.rendering import (
    CHARTS,
    HELMS,
    Document,
    analysis_pod,
    container,
    find_program,
    pick,
    render,
)


def job_name(helm: Path, settings: str = "", *, release: str = "golden") -> str:
    arguments = ["--set", settings] if settings else []
    return pick(render(helm, CHARTS / "ddp", arguments, release=release), "Job")["metadata"]["name"]


@pytest.fixture(scope="module")
def shipped(helm: Path) -> str:
    return job_name(helm)


def test_a_plain_job(documents: list[Document]) -> None:
    """A hook would block `helm install` until the training ends."""
    assert "annotations" not in pick(documents, "Job")["metadata"]


def test_name_carries_the_hash_of_the_spec(shipped: str) -> None:
    assert re.fullmatch(r"golden-analysis-[0-9a-f]{8}", shipped)


def test_every_version_of_helm_gives_the_same_name() -> None:
    assert len({job_name(find_program(name)) for name in HELMS}) == 1


@pytest.mark.parametrize(
    "change",
    [
        "run.analysis.deadlineSeconds=60",
        "run.analysis.image.tag=other",
        "run.config.comparison=other",
        "run.mlflow.trackingUri=http://x",
        "run.analysis.ttlSecondsAfterFinished=0",
    ],
)
def test_another_spec_has_another_name(helm: Path, shipped: str, change: str) -> None:
    """The spec of a Job cannot change: an upgrade under the same name would fail."""
    assert job_name(helm, change) != shipped


def test_a_change_of_the_training_alone_keeps_the_name(helm: Path, shipped: str) -> None:
    assert job_name(helm, "run.config.lr=0.5") == shipped


def test_the_longest_release_still_names_a_job(helm: Path) -> None:
    """63 characters: the name is also a label of the pods."""
    first, second = (job_name(helm, release="r" * 51 + end) for end in "ab")
    assert len(first) == len(second) == 63
    assert first != second


def test_the_job_outlives_the_deadline_of_the_waiter(helm: Path) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", "run.analysis.deadlineSeconds=3000000"])
    assert container(analysis_pod(rendered), "wait")["command"][3:] == ["--deadline-s", "3000000"]
    assert pick(rendered, "Job")["spec"]["activeDeadlineSeconds"] == 3000000 + 3600


def test_bad_arguments_and_nothing_to_analyse_are_final(documents: list[Document]) -> None:
    spec = pick(documents, "Job")["spec"]
    final, ignored = spec["podFailurePolicy"]["rules"]
    assert final == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 3]}}
    assert ignored["action"] == "Ignore" and ignored["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["backoffLimit"] == 2


def test_it_can_be_left_out(helm: Path) -> None:
    rendered = render(helm, CHARTS / "ddp", ["--set", "run.analysis.enabled=false"])
    assert [document["kind"] for document in rendered] == ["PyTorchJob"]
