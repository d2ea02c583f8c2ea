"""The Job that waits for a run and analyses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.analysis.measure import Share, parse_share
from stratlab_spec.settings.config import Config
from tests.charts.golden_file import BASE, read_full
from tests.charts.rendering import (
    CHARTS,
    Document,
    analysis_pod,
    container,
    environment,
    expand,
    pick,
    render,
    training_pod,
    waiter_pod,
)

KUEUE = "run.scheduling.gang=kueue,run.scheduling.queue=gpus"
LABEL = "kueue.x-k8s.io/queue-name"


def render_ddp(helm: Path, settings: str) -> list[Document]:
    return render(helm, CHARTS / "ddp", ["--set", settings])


def waiting(documents: list[Document], option: str) -> str:
    command = container(waiter_pod(documents), "wait")["command"]
    return str(command[command.index(option) + 1])


@pytest.mark.parametrize(
    ("change", "renamed"),
    [
        ("run.config.comparison=other", [True, True]),
        ("run.scheduling.waitSeconds=60", [False, True]),
        ("run.analysis.resources.requests.cpu=3", [True, True]),  # the waiter names the analysis
        ("run.config.lr=0.5", [False, False]),
    ],
)
def test_another_spec_has_another_name(helm: Path, change: str, renamed: list[bool]) -> None:
    """The spec of a Job cannot change: an upgrade under the same name would fail."""
    pairs = [
        [pick(each, kind) for each in (read_full(helm, BASE), render_ddp(helm, change))]
        for kind in ("Job", "waiter")
    ]
    assert [old["spec"] != new["spec"] for old, new in pairs] == renamed
    assert [old["metadata"]["name"] != new["metadata"]["name"] for old, new in pairs] == renamed


def test_what_waits_costs_next_to_nothing_and_the_analysis_is_suspended(helm: Path) -> None:
    """As a quota counts it: a suspended Job has no pods."""
    documents = render_ddp(helm, "run.analysis.resources.limits.cpu=8")
    job = pick(documents, "Job")
    assert job["spec"]["suspend"] is True and waiting(documents, "--then-start") == job["metadata"]["name"]
    resources = container(waiter_pod(documents), "wait")["resources"]
    assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == ("10m", "200m")


@pytest.mark.parametrize("settings", ["", "run.config.deadline_s=3000000,run.scheduling.waitSeconds=0"])
def test_whoever_waits_gives_up_after_whom_he_waits_for(helm: Path, settings: str) -> None:
    rendered = render_ddp(helm, settings)
    trainer = Config.from_env(environment(training_pod(rendered), "pytorch")).deadline_s
    workload = pick(rendered, "PyTorchJob")["spec"]["runPolicy"]["activeDeadlineSeconds"]
    waiter, job = (
        int(waiting(rendered, "--deadline-s")),
        pick(rendered, "waiter")["spec"]["activeDeadlineSeconds"],
    )
    assert trainer < workload < waiter < job
    analysis = pick(rendered, "Job")["spec"]["activeDeadlineSeconds"]
    assert analysis == job - waiter == 3600, "an hour to analyse, which counts from its start"
    assert workload - trainer >= (0 if settings else 86400)


def test_kueue_takes_it_only_where_it_must(helm: Path) -> None:
    documents = render_ddp(helm, KUEUE)
    queues = {
        kind: pick(documents, kind)["metadata"]["labels"].get(LABEL)
        for kind in ("PyTorchJob", "Job", "waiter")
    }
    assert queues == {"PyTorchJob": "gpus", "Job": None, "waiter": None}
    documents = render_ddp(helm, f"{KUEUE},run.analysis.queue=cpus")
    assert pick(documents, "waiter")["metadata"]["labels"][LABEL] == waiting(documents, "--queue") == "cpus"
    assert LABEL not in pick(documents, "Job")["metadata"]["labels"], "Kueue would start it at once"


def test_the_verification_is_a_hook_and_no_part_of_the_run(helm: Path) -> None:
    for settings, more in (("", []), ("run.analysis.enabled=false", ["--no-report"])):
        documents = render_ddp(helm, settings)
        pod = pick(documents, "Pod")
        assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
        (verify,) = pod["spec"]["containers"]
        directory = pick(documents, "PyTorchJob")["metadata"]["annotations"]["stratlab/run-directory"]
        assert verify["command"] == ["stratlab", "verify", directory, *more]


def test_of_shares_each_pod_reads_its_own(helm: Path) -> None:
    rendered = render_ddp(helm, "run.nodes=4,run.analysis.shares=4")
    pod = analysis_pod(rendered)
    env = environment(pod, "analyze") | {"JOB_COMPLETION_INDEX": "3"}
    command = [expand(word, env) for word in container(pod, "analyze")["command"]]
    assert pick(rendered, "Job")["spec"]["completions"] == 4
    assert parse_share(command[command.index("--share") + 1]) == Share(3, 4)
    assert command[command.index("--job") + 1] == env["STRATLAB_JOB"]
