"""Slips in copies of the tree, one at a time in each; what the tests say to them, and whether that is enough."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

from stratlab_spec.run_directory import write_json
from tests.mutants.slip import Slip, build_key, find_tests, planted
from tests.tiers import CHANGE, FAST, TIERS, tier_of

Outcome = Literal["caught", "survived", "broken"]
BARS_PCT = (98.0, 95.0, 85.0)
"""At least so many of the slips that a user can see are caught: by all tests, by `make test`, by `make test-fast`."""


@dataclass(frozen=True)
class Found:
    """`test`: the first one that saw it, and its `tier`; empty where none did. `key` changes with the slip, its file,
    the files of its tests and what those import of tests/."""

    outcome: Outcome
    tier: str
    test: str
    key: str
    seconds: float


@dataclass(frozen=True)
class Count:
    """Slips by what became of them; an `equivalent` one changes nothing that a user can see and was not caught."""

    planted: int
    caught: int
    caught_by_fast: int
    caught_by_change: int
    equivalent: int
    survived: tuple[str, ...]

    @property
    def percent(self) -> tuple[float, float, float]:
        """Caught by all tests, by `make test` and by `make test-fast`, of those that a user can see."""
        seen = max(1, self.planted - self.equivalent)
        return 100 * self.caught / seen, 100 * self.caught_by_change / seen, 100 * self.caught_by_fast / seen

    @property
    def is_enough(self) -> bool:
        return all(found >= bar for found, bar in zip(self.percent, BARS_PCT, strict=True))


def count_slips(slips: Sequence[Slip], found: dict[str, Found]) -> Count:
    """What became of these slips; all of them have been planted."""
    caught = [slip for slip in slips if found[slip.name].outcome == "caught"]
    lost = [slip for slip in slips if found[slip.name].outcome != "caught"]
    return Count(
        planted=len(slips),
        caught=len(caught),
        caught_by_fast=sum(found[slip.name].tier == FAST.name for slip in caught),
        caught_by_change=sum(found[slip.name].tier in (FAST.name, CHANGE.name) for slip in caught),
        equivalent=sum(bool(slip.equivalent) for slip in lost),
        survived=tuple(slip.name for slip in lost if not slip.equivalent),
    )


def read_found(path: Path) -> dict[str, Found]:
    if not path.exists():
        return {}
    rows = json.loads(path.read_text())["slips"]
    return {name: Found(**row) for name, row in rows.items()}


def write_found(found: dict[str, Found], count: Count | None, path: Path) -> None:
    """All of them, in one go; `count` is None unless each of the table has been planted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {name: dataclasses.asdict(row) for name, row in found.items()}
    write_json(path, {"count": count and dataclasses.asdict(count), "slips": rows})


SHARED = (".venv", ".tools")
"""Installed by `make setup`: linked into the copies, not copied."""
LONGEST_S = 240  # of one call of pytest; each further test or file may take 30 s more
PASSED, FAILED = 0, 1  # exit codes of pytest

WARM = Path(__file__).with_name("warm.py")
LIBRARIES = (
    "pytest", "hypothesis", "xdist", "numpy", "pydantic", "msgspec", "yaml", "jinja2", "requests", "psutil",
    "typer.testing", "rich.table", "rich.live", "tenacity", "urllib3", "kubernetes.client", "kubernetes.config",
    "kubeflow.training", "kubernetes_validate", "jsonschema", "jsonschema_rs", "torch", "torch.distributed",
    "torch.profiler", "torch.distributed.fsdp", "torchvision.transforms.v2", "transformers", "datasets", "PIL.Image",
)  # fmt: skip
"""What test files import from elsewhere, and takes long."""

RunTests = Callable[[Path, Sequence[str]], tuple[int, str]]
"""pytest's exit code, and the first test that failed, as far as it is known."""


@contextlib.contextmanager
def copy_tree(root: Path) -> Iterator[Path]:
    """A copy of what git knows or would take in, for as long as the context lasts."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        for name in filter(None, listed.stdout.split("\0")):
            if (root / name).exists() and name not in SHARED:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, copy / name, follow_symlinks=False)
        for name in SHARED:
            if (root / name).exists():
                (copy / name).symlink_to(root / name)
        yield copy


class WarmTests:
    """Runs tests of a tree, each time in a fork of a process that has read `libraries` once (warm.py).

    The exit code is 1 as well where the tests hang. Calls for different trees may come from threads.
    """

    def __init__(self, libraries: Sequence[str] = LIBRARIES) -> None:
        self._libraries = libraries
        self._processes: dict[Path, subprocess.Popen[str]] = {}

    def __enter__(self) -> WarmTests:
        return self

    def __call__(self, tree: Path, tests: Sequence[str]) -> tuple[int, str]:
        process = self._processes.get(tree) or self._start(tree)
        assert process.stdin and process.stdout
        request = {"tree": str(tree), "tests": list(tests), "limit_s": LONGEST_S + 30 * len(tests)}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        code, failed = json.loads(process.stdout.readline())
        return code, failed

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.communicate()

    def _start(self, tree: Path) -> subprocess.Popen[str]:
        self._processes[tree] = subprocess.Popen(
            [sys.executable, str(WARM), *self._libraries], text=True, env={"OMP_NUM_THREADS": "1", **os.environ},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return self._processes[tree]


def plant(slip: Slip, tree: Path, run: RunTests) -> tuple[Outcome, str, str]:
    """What became of the slip, and the tier and the test that saw it: the fast tier's tests are asked first.

    `broken`: nothing is known, because the test fails without the slip as well, or those that were written for it do
    not even run with it. Of a slip that was drawn that is one more way to be seen.
    """
    for tier, tests in split_by_tier(find_tests(slip, tree)):
        with planted(slip, tree):
            code, failed = run(tree, tests)
        if code == PASSED:
            continue
        is_seen = code == FAILED or slip.operator
        if is_seen and run(tree, [failed] if failed else tests)[0] == PASSED:
            return "caught", tier, failed
        return "broken", "", failed
    return "survived", "", ""


def split_by_tier(tests: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Tests by the names of their tiers, the earliest tier first."""
    tiers = [(test, tier_of(PurePath(test.partition("::")[0]))) for test in tests]
    split = [(tier.name, [test for test, of in tiers if of is tier]) for tier in TIERS]
    return [(name, chosen) for name, chosen in split if chosen]


def plant_all(slips: Sequence[Slip], trees: Sequence[Path], run: RunTests) -> Iterator[tuple[Slip, Found]]:
    """Each slip with its result, as they come: as many at a time as there are trees."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for tree in trees:
        free.put(tree)

    def work(slip: Slip) -> Found:
        tree, began = free.get(), time.monotonic()
        key = build_key(slip, tree)
        try:
            outcome, tier, test = plant(slip, tree, run)
        finally:
            free.put(tree)
        return Found(outcome, tier, test, key, round(time.monotonic() - began, 1))

    with ThreadPoolExecutor(len(trees)) as pool:
        works = {pool.submit(work, slip): slip for slip in slips}
        try:
            for done in as_completed(works):
                yield works[done], done.result()
        finally:
            for waiting in works:
                waiting.cancel()
