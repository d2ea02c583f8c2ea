"""The launcher over real sshd on two machines with networks of their own."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.network.two_nodes import Node, find_lack, find_program, two_nodes, wait_until
from tests.rehearsals.start.runs import assert_same, environment, read_losses, render

LACK = find_lack("sshd", "ssh", "ssh-keygen")
pytestmark = pytest.mark.skipif(
    bool(LACK), reason=f"{LACK} (Debian: apt-get install openssh-server iproute2)"
)
SSHD = """
Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
"""


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "sshd_config").write_text(SSHD.format(folder=folder))
    options = "-o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    ssh = f"ssh -i {folder}/user_key {options}"
    Path("/run/sshd").mkdir(exist_ok=True)
    env = {
        **environment(folder),
        "SSH": ssh,
        "PYTHON": shutil.which("python", path=environment(folder)["PATH"]) or "",
    }
    with two_nodes(folder, env) as both:
        for machine in both:
            log = folder / f"sshd-{machine.name}.log"
            machine.start(find_program("sshd") or "", "-D", "-e", "-f", folder / "sshd_config", log=log)
        for machine in both:
            wait_until(lambda m=machine: both[0].run(*ssh.split(), m.name, "true").returncode == 0, "sshd")  # type: ignore[misc]
        yield both


def write_hostfile(folder: Path, text: str = "node0 slots=1\nnode1 slots=1\n") -> Path:
    (folder / "hostfile.txt").write_text(text)
    return folder / "hostfile.txt"


def build(folder: Path, *more: str) -> Path:
    file = write_hostfile(folder)
    return render("hostfile", folder / "runs", folder / "ddp.sh", "--hostfile", str(file), *more)


def find_trainers(results: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"TRAINER_RESULTS={results}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_two_hosts_give_the_run_of_the_rehearsal(machines, rehearsed, tmp_path):
    done = machines[0].run("bash", build(tmp_path))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"node{index} ended with exit code 0" for index in range(2)]
    assert_same(tmp_path / "runs/demo/ddp", rehearsed)
    assert find_trainers(tmp_path / "runs") == []


def test_a_secret_arrives_and_is_on_no_command_line(machines: list[Node], tmp_path: Path) -> None:
    script = build(tmp_path, "--set", "run.secrets[0].name=HF_TOKEN,run.secrets[0].secret=hub,run.secrets[0].key=token",
                   "--set", "run.config.steps=100000,run.config.epochs=null")  # fmt: skip
    lacking = machines[0].run("bash", script)
    assert lacking.returncode != 0 and "HF_TOKEN" in lacking.stderr
    token = "it's a $ecret\n"
    launcher = machines[0].start("bash", script, log=tmp_path / "log", HF_TOKEN=token)
    metrics = tmp_path / "runs/demo/ddp/metrics.jsonl"
    wait_until(lambda: metrics.is_file() and metrics.stat().st_size, "it trains", 120)
    for pid in find_trainers(tmp_path / "runs"):
        assert f"HF_TOKEN={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    seen = [entry.read_bytes() for entry in Path("/proc").glob("[0-9]*/cmdline") if entry.exists()]
    assert not [line for line in seen if b"ecret\n" in line]
    os.kill(launcher.pid, signal.SIGKILL)
    wait_until(
        lambda: not find_trainers(tmp_path / "runs"), "nothing is left of a launcher that was killed", 90
    )


def test_a_stop_saves_a_checkpoint_and_the_same_command_goes_on(machines, tmp_path):
    script = build(tmp_path, "--set", "run.config.epochs=15")
    launcher = machines[0].start("bash", script, log=tmp_path / "log")
    metrics = tmp_path / "runs/demo/ddp/metrics.jsonl"
    wait_until(lambda: metrics.is_file() and metrics.stat().st_size, "it trains", 120)
    began = time.monotonic()
    os.kill(launcher.pid, signal.SIGTERM)
    assert launcher.wait(60) == 143, (tmp_path / "log").read_text()
    assert time.monotonic() - began < 60 and find_trainers(tmp_path / "runs") == []
    assert list((tmp_path / "runs/demo/ddp/checkpoints").glob("step_*/COMMIT"))
    again = machines[0].run("bash", script)
    assert again.returncode == 0, again.stderr
    starts = [json.loads(line) for line in (tmp_path / "runs/demo/ddp/attempts.jsonl").open()]
    starts = [line["from_step"] for line in starts if line["event"] == "started"]
    assert len(starts) == 2 and starts[1] > 0
    assert sorted({step for step, _, _ in read_losses(tmp_path / "runs/demo/ddp")}) == list(range(1, 304))


def test_a_host_that_is_not_there_is_named_and_nobody_waits_for_ever(machines, tmp_path):
    file = write_hostfile(tmp_path, "node0\nnode7 # down\n")
    script = render("hostfile", tmp_path / "runs", tmp_path / "ddp.sh", "--hostfile", str(file))
    done = machines[0].run("bash", script)
    assert done.returncode == 255 and "node7" in done.stderr
    assert find_trainers(tmp_path / "runs") == []
