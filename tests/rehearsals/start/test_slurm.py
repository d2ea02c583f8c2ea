"""The batch script under a real SLURM: two nodes with networks of their own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.network.two_nodes import Node, wait_until
from tests.rehearsals.start.runs import assert_same, last_step, read_losses, render
from tests.rehearsals.start.slurm import (
    ENDLESS,
    LACK,
    expect_another_start,
    go_on,
    open_slurm,
    submit,
    wait_for,
)

pytestmark = pytest.mark.skipif(bool(LACK), reason=f"{LACK} (Debian: apt-get install slurm-wlm iproute2)")


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with open_slurm(tmp_path_factory.mktemp("slurm")) as machine:
        yield machine


def test_a_batch_of_two_nodes_gives_the_run_of_the_rehearsal(head, rehearsed, tmp_path):
    job = submit(head, render("slurm", tmp_path / "runs", tmp_path / "ddp.sbatch"))
    said = wait_for(head, job)
    out = (tmp_path / f"ddp-{job}.out").read_text()
    assert "JobState=COMPLETED" in said and out == "ddp ended with exit code 0\n"
    run_dir = tmp_path / "runs/demo/ddp"
    assert_same(run_dir, rehearsed)
    nodes = [json.loads((run_dir / f"ranks/rank{rank}.json").read_text())["node"] for rank in range(2)]
    assert nodes == ["node0", "node1"]  # one task per node, and the ranks follow
    logs = [(tmp_path / f"runs/demo/.logs/ddp/node{index}.log").read_text() for index in range(2)]
    assert "step 20/20" in logs[0] and "step 20/20" not in logs[1]


def test_what_can_never_run_is_not_tried_again(head: Node, tmp_path: Path) -> None:
    more = ("run.allowFaults=true", "run.config.fault=nan@3:1!", "run.config.on_not_finite=stop")
    options = [word for setting in more for word in ("--set", setting)]
    job = submit(head, render("slurm", tmp_path / "runs", tmp_path / "ddp.sbatch", *options))
    said = wait_for(head, job)
    assert "JobState=FAILED" in said and "ExitCode=12:0" in said and "Restarts=0" in said
    assert (tmp_path / f"ddp-{job}.out").read_text().splitlines()[-1] == "ddp ended with exit code 12"


def test_a_killed_rank_is_requeued_and_goes_on_to_the_same_losses(head, rehearsed, tmp_path):
    more = ("run.config.checkpoint_every=5", "run.allowFaults=true", "run.config.fault=kill@12")
    options = [word for setting in more for word in ("--set", setting)]
    job = submit(head, render("slurm", tmp_path / "runs", tmp_path / "ddp.sbatch", *options))

    go_on(head, job)
    assert "JobState=COMPLETED" in wait_for(head, job)
    run_dir = tmp_path / "runs/demo/ddp"
    last = {step: (loss, norm) for step, loss, norm in read_losses(run_dir)}
    assert last == {step: (loss, norm) for step, loss, norm in read_losses(rehearsed)}
    assert len([line for line in (run_dir / "attempts.jsonl").open() if '"started"' in line]) == 2
    out = (tmp_path / f"ddp-{job}.out").read_text().splitlines()
    ends = [line for line in out if line.startswith("ddp ended")]
    assert ends == ["ddp ended with exit code 137", "ddp ended with exit code 0"]


def test_a_stopped_job_saves_a_checkpoint_and_goes_on_from_it(head: Node, tmp_path: Path) -> None:
    """By hand, as the script's first lines say; by its time limit: tests/nightly/rehearsals/test_examples.py."""
    job = submit(head, render("slurm", tmp_path / "runs", tmp_path / "ddp.sbatch", *ENDLESS))
    run_dir = tmp_path / "runs/demo/ddp"
    wait_until(lambda: last_step(run_dir) >= 20, "step 20", 240, 0.5)
    assert head.run("scancel", "--signal=USR1", job).returncode == 0
    expect_another_start(head, job, run_dir)
    # for good
    assert head.run("scontrol", "update", f"jobid={job}", "requeue=0").returncode == 0
    assert head.run("scancel", "--signal=USR1", job).returncode == 0
    said = wait_for(head, job)
    assert "JobState=FAILED" in said and "ExitCode=143:0" in said and "Restarts=1" in said
