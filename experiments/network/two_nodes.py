"""Two nodes on one machine: network, host name and /etc/hosts of their own, one file system, a link of a given rate.

    node0 (10.77.0.1) ──tbf── veth pair ──tbf── node1 (10.77.0.2)

Needs root and iproute2. Rates are those of `tc`'s token bucket; there is no delay to set.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NAMES = ("node0", "node1")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
BUCKET_S, LEAST_BUCKET = 2e-3, 32_000
"""Of the rate, that may be sent at once after a pause; bytes."""


UNSHARE = ("unshare", "--net", "--uts", "--mount", "--propagation", "private")
PROBE = ("sh", "-c", "hostname probe && ip link add probe0 type veth peer name probe1")


def find_lack(*programs: str) -> str:
    """Why there can be no machines here, or none with these programs; "" if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    lacking = [program for program in ("ip", "unshare", "nsenter", *programs) if not find_program(program)]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    tried = subprocess.run([*UNSHARE, *PROBE], capture_output=True, text=True)
    return f"no machines with networks here: {tried.stderr.strip()}" if tried.returncode else ""


def find_program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass
class Node:
    name: str
    address: str
    pid: int
    env: dict[str, str]
    link: str = ""
    """Its end of the link."""

    def command(self, *words: str | Path, folder: Path = Path("/")) -> list[str]:
        options = ["--target", str(self.pid), "--net", "--uts", "--mount", f"--wd={folder}"]
        return ["nsenter", *options, "--", *map(str, words)]

    def start(self, *words: str | Path, log: Path, **env: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return subprocess.Popen(
                self.command(*words), env={**self.env, **env}, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def run(
        self, *words: str | Path, folder: Path = Path("/"), **env: str
    ) -> subprocess.CompletedProcess[str]:
        command = self.command(*words, folder=folder)
        return subprocess.run(command, env={**self.env, **env}, capture_output=True, text=True, timeout=240)

    def limit(self, mbit_per_s: float) -> None:
        """Set the rate at which this node sends.

        Raises:
            RuntimeError: `tc` refuses.
        """
        size = max(LEAST_BUCKET, round(BUCKET_S * mbit_per_s * 1e6 / 8))
        bucket = ("burst", f"{size}", "latency", "100ms")
        rate = ("rate", f"{mbit_per_s:.0f}mbit", *bucket)
        done = self.run("tc", "qdisc", "replace", "dev", self.link, "root", "handle", "1:", "tbf", *rate)
        if done.returncode:
            raise RuntimeError(f"tc on {self.name}: {done.stderr.strip()}")


@contextmanager
def two_nodes(folder: Path, env: Mapping[str, str]) -> Iterator[list[Node]]:
    """Linked to each other and to nothing else; all that runs on them is gone afterwards."""
    hosts = folder / "hosts"
    lines = ["127.0.0.1 localhost", *(f"{a} {n}" for a, n in zip(ADDRESSES, NAMES, strict=True))]
    hosts.write_text("\n".join(lines) + "\n")
    holders = []
    machines = []
    try:
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            (folder / f"{name}.up").unlink(missing_ok=True)  # of an earlier pair of nodes
            script = (
                f"hostname {name}; ip link set lo up; mount --bind {hosts} /etc/hosts; touch {folder}/{name}.up;"
                " exec sleep infinity"
            )
            holder = subprocess.Popen([*UNSHARE, "sh", "-c", script])
            holders.append(holder)
            wait_until(lambda name=name: (folder / f"{name}.up").exists(), f"{name} is up")  # type: ignore[misc]
            machines.append(Node(name, address, holder.pid, dict(env)))
        _link(machines)
        yield machines
    finally:
        own = os.readlink("/proc/self/ns/net")  # of a holder that has not left it yet
        _end({os.readlink(f"/proc/{each.pid}/ns/net") for each in holders} - {own})
        for holder in holders:
            holder.wait()


def _link(machines: Sequence[Node]) -> None:
    first, second = machines
    end = f"st{os.getpid()}"
    ip = ["ip", "link"]
    subprocess.run([*ip, "add", end, "netns", str(first.pid), "type", "veth", "peer", "name", end,
                    "netns", str(second.pid)], check=True)  # fmt: skip
    for machine in machines:
        machine.link = end
        for words in (("addr", "add", f"{machine.address}/24", "dev", end), ("link", "set", end, "up")):
            assert machine.run("ip", *words).returncode == 0


def _end(networks: set[str]) -> None:
    """Kills what runs in these network namespaces, until nothing does."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if (
                    os.readlink(entry / "ns/net") in networks
                    and (entry / "stat").read_text().rpartition(")")[2][1] != "Z"
                ):
                    found.append(int(entry.name))
            except OSError:
                continue
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
    raise AssertionError("processes of a machine do not end")


def wait_until(is_so: Callable[[], object], what: str, seconds: float = 60, poll_s: float = 0.1) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(poll_s)


def is_open(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True
