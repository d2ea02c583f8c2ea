"""Lacks that are really there: small file systems, slow links and wrong clocks that a check alone sees."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PRIVATE = ("unshare", "--user", "--map-root-user", "--mount")
SLOW = ("tbf", "rate", "20mbit", "burst", "64k", "latency", "400ms")
CLOCK = """
import os, sys
if "trainer.environment.rank" in sys.orig_argv and os.environ["RANK"] in {ranks!r}:
    {deed}
"""
SHIFTED = "import time; real = time.time; time.time = lambda: real() + {seconds}"
KILLED = "import signal; os.kill(os.getpid(), signal.SIGKILL)"
HANGS = "import time; time.sleep(1000)"


def can_mount() -> None:
    if subprocess.run([*PRIVATE, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine has no user namespaces, so no small file system can be mounted")


@contextmanager
def mounted(place: Path, size: str) -> Iterator[tuple[str, ...]]:
    """Words before a command that sees `size` of memory at `place`; all that use them see the same."""
    can_mount()
    script = f"mount -t tmpfs -o size={size} none {place} && echo there && exec sleep 1000"
    with subprocess.Popen([*PRIVATE, "sh", "-c", script], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout and holder.stdout.readline() == "there\n"
            yield "nsenter", "--user", "--mount", "--preserve-credentials", "-t", str(holder.pid)
        finally:
            holder.kill()


def slow_down(name: str, interface: str) -> None:
    """What this interface of a network namespace sends goes at 20 Mbit/s."""
    done = subprocess.run(
        ["tc", "-n", name, "qdisc", "add", "dev", interface, "root", *SLOW], capture_output=True
    )
    if done.returncode:
        pytest.skip(f"links cannot be slowed down here: {done.stderr.decode()}")


def plant_in_ranks(folder: Path, ranks: str, deed: str) -> dict[str, str]:
    """Variables under which ranks of the check do `deed` before anything else; `ranks` as RANK says them."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(CLOCK.format(ranks=[*ranks], deed=deed))
    return {"PYTHONPATH": str(folder)}
