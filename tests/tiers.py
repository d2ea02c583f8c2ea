"""Which tests run when. A tier is a property of a folder: the latest tier that FOLDERS gives a test's path."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

TESTS = Path(__file__).parent
TIER_VARIABLE = "STRATLAB_TEST_TIER"
"""The tier of the test that is running; set by tests/conftest.py."""


@dataclass(frozen=True)
class Tier:
    """One set of tests."""

    name: str
    command: str
    proves: str


FAST = Tier("fast", "make test-fast", "rules, formats, figures and pages, in one process, with one helm")
CHANGE = Tier(
    "change", "make test", "every kind of proof once: ranks, parity, rehearsals, browser, both helms"
)
SLOW = Tier("slow", "make test-slow", "slower kinds of proof that a change rarely touches; CI runs them")
E2E = Tier("e2e", "make e2e", "the images from inside and on a cluster: path and resume of ddp, zero2 and nd")
NIGHTLY = Tier("nightly", "make nightly", "the full tables and every cluster test; results in reports/")
TIERS = (FAST, CHANGE, SLOW, E2E, NIGHTLY)

FOLDERS: dict[str, Tier] = {
    "longer": CHANGE,  # takes more than half a CPU-second, in one process
    "ranks": CHANGE,  # starts rank processes
    "processes": CHANGE,  # starts programs that load torch or take long: an MLflow server, a preparation
    "rehearsals": CHANGE,  # renders charts and runs them as local processes
    "in_browser": CHANGE,  # opens pages in Chromium
    "helms": CHANGE,  # renders with every supported helm
    "hta": CHANGE,  # calls Holistic Trace Analysis
    "parity": CHANGE,
    "parity_llm": CHANGE,
    "slow": SLOW,
    "e2e": E2E,
    "inside": E2E,  # look at an image from inside; brought there by tests/cluster/e2e
    "nightly": NIGHTLY,
    "scanned": NIGHTLY,  # calls checkov
    "rehearsals/start": NIGHTLY,  # SLURM, ssh, a container, two shells
    "benchmarks/processes": NIGHTLY,  # runs the benchmarks, small
    "benchmarks/gpu/processes": NIGHTLY,
    "distributions/processes": NIGHTLY,  # builds wheels and installs them
    "notebooks/processes": NIGHTLY,
    "image_models/ranks": NIGHTLY,  # the image-models suite's own gates
    "faults": NIGHTLY,  # runs that are killed, cut off, filled up
    "disturbed": NIGHTLY,  # runs on a cluster that suffer one fault after the other
    "parts": NIGHTLY,  # single parts on a cluster
    "operators": NIGHTLY,  # Kubeflow Trainer v2, the MPI operator and Kueue, on a cluster
    "readme": NIGHTLY,  # the README's commands on a cluster
    "operating": NIGHTLY,  # what docs/operating.md tells to do, on a cluster
}
"""Name of a folder anywhere, or path of one below tests/ -> tier of what lies in it; all else is fast."""


def tier_of(path: PurePath) -> Tier:
    """The tier of a test file, the latest among its folders' tiers; `path` is relative to tests/."""
    found = (tier for name, tier in FOLDERS.items() if name in path.parts[:-1] or path.is_relative_to(name))
    return max(found, key=TIERS.index, default=FAST)


def refuse_in_fast(what: str) -> None:
    """Fails a test of the fast tier that is about to start something slow."""
    assert os.environ.get(TIER_VARIABLE) != FAST.name, (
        f"a test of the fast tier starts {what}: move its file into a folder of FOLDERS (tests/tiers.py)"
    )


def count_files(paths: Iterable[PurePath]) -> Counter[str]:
    return Counter(tier_of(path).name for path in paths)


def main() -> None:
    files = count_files(path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))
    for tier in TIERS:
        folders = ", ".join(name for name, where in FOLDERS.items() if where is tier) or "all others"
        print(
            f"{tier.name:8} {files[tier.name]:4} files  {tier.command:15} {tier.proves}\n{'':14}folders: {folders}"
        )


if __name__ == "__main__":
    main()
