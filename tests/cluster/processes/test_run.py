"""tests/cluster/run: what it starts and in which order, what it says where it cannot. Cluster and builder are fakes."""

import fcntl
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "reports" / "raw"
PARTS = ["the cluster's programs", "cluster up", "images built and loaded", "cluster down"]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a cluster")


# what each does; docker and podman do not work here
FAKES = {
    "cluster/build": "", "cluster/up": "echo /tmp/kubeconfig", "cluster/load-image": "/bin/cat > /dev/null",
    "cluster/down": "", "bin/buildah": "", "bin/docker": "exit 1", "bin/podman": "exit 1",
}  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A cluster's scripts and builders that write down how they were called, and a test that needs the cluster."""
    for name, body in FAKES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        called = f'echo {path.name} "$@" >> {tmp_path}/calls'
        path.write_text("\n".join(["#!/bin/sh", called, body, f'[ "$FAILING" != {path.name} ]', ""]))
        path.chmod(0o755)
    name = f"test_{tmp_path.name}.py"
    (tmp_path / name).write_text(
        "import os, pytest\n@pytest.mark.cluster\ndef test_it():\n"
        "    assert os.environ['KUBECONFIG'] == '/tmp/kubeconfig'\n"
    )
    return tmp_path


def call(
    machine: Path, *options: str, cluster: str = "cluster", **variables: str
) -> tuple[int, str, dict[str, Any], list[str]]:
    """Exit code, last line, the result file, and the calls of the fakes."""
    environment = {k: v for k, v in os.environ.items() if k not in ("KUBECONFIG", "STRATLAB_E2E_KEEP")}
    environment |= {"STRATLAB_E2E_FREE_GB": "0", "PATH": f"{machine}/bin:{os.environ['PATH']}", **variables}
    test = machine / f"test_{machine.name}.py"
    command: list[Any] = [sys.executable, ROOT / "tests/cluster/run", *options, machine / cluster, test]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    content = json.loads((RESULTS / f"{machine.name}.json").read_text())
    for left in RESULTS.glob(f"{machine.name}*"):
        left.unlink()
    calls = machine / "calls"
    told = calls.read_text().splitlines() if calls.exists() else []
    return done.returncode, done.stdout.splitlines()[-1], content, told


def test_the_cluster_of_kubeconfig_is_used_and_nothing_is_built(machine: Path) -> None:
    code, _, result, calls = call(machine, KUBECONFIG="/tmp/kubeconfig")
    assert code == 0 and not calls
    assert [part["part"] for part in result["parts"]] == ["tests"] and not result["skipped"]
    code, _, result, _ = call(machine, KUBECONFIG="/tmp/another")
    assert code == 1 and result["exit_code"] == 1


def test_what_cannot_run_is_the_last_line(machine: Path) -> None:
    code, last, result, _ = call(machine, cluster="none")
    assert code == 0 and last.startswith("SKIPPED:") and "KUBECONFIG" in last
    assert result["skipped"] in last and not result["parts"]


@as_root
def test_a_cluster_is_started_gets_the_images_and_goes_one_run_after_the_other(machine: Path) -> None:
    """A second run waits: else the first takes the cluster down under it."""
    with (machine / "cluster" / "up").open() as used, ThreadPoolExecutor() as pool:
        fcntl.flock(used, fcntl.LOCK_EX)
        second = pool.submit(call, machine, "--operators", "trainer,mpi")
        with pytest.raises(TimeoutError):
            second.result(timeout=2)
        assert not (machine / "calls").exists()
        fcntl.flock(used, fcntl.LOCK_UN)
        code, _, result, calls = second.result(timeout=100)
    assert code == 0, result
    assert [part["part"] for part in result["parts"]] == [*PARTS[:3], "tests", PARTS[3]]
    assert [name for name in calls if name.split()[0] not in ("docker", "podman", "buildah")] == [
        *(f"{program} --operators trainer,mpi" for program in ("build", "up")),
        *["load-image /dev/stdin"] * 2, "down --keep-images",
    ]  # fmt: skip


@as_root
@pytest.mark.parametrize(
    ("failing", "exit_code", "ran"),
    [("build", 0, PARTS[:1]), ("up", 0, [*PARTS[:2], PARTS[3]]), ("load-image", 1, PARTS)],
)
def test_what_fails_before_the_tests(machine: Path, failing: str, exit_code: int, ran: list[str]) -> None:
    """A cluster that cannot be had is no fault of the project; an image that cannot be built or loaded is."""
    code, last, result, _ = call(machine, FAILING=failing)
    assert (code, [part["part"] for part in result["parts"]]) == (exit_code, ran)
    assert last.startswith("SKIPPED:") == (exit_code == 0)
