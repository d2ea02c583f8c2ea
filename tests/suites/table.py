"""The nightly suites: each a command that ends with 0, and a smallest case of it that every change runs."""

from dataclasses import dataclass
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "reports"
RAW = REPORTS / "raw"
"""Logs and what suites write for themselves; not kept in git."""


@dataclass(frozen=True)
class Suite:
    """One suite.

    Attributes:
        name: of the suite and of its result file, reports/<name>.json.
        proves: what is known when it has passed.
        command: the whole suite; {python} and {cluster} are put in.
        smallest: options that make one small case of it, two minutes at most, on a cluster five; None where
            `make test` or `make e2e` run that case.
        minutes: of the whole suite on two cores, about.
        folders: of the tests that this suite runs, and no other.
        facts: a file below reports/raw/ in which the command leaves what it found; kept in the result.
    """

    name: str
    proves: str
    command: tuple[str, ...]
    smallest: tuple[str, ...] | None
    minutes: int
    folders: tuple[str, ...] = ()
    facts: str = ""

    def owns(self, path: PurePath) -> bool:
        """Whether a test file, relative to the project, is one of this suite's."""
        return any(path.is_relative_to(folder) for folder in self.folders)


PYTEST = ("{python}", "-m", "pytest")
CLUSTER = ("tests/cluster/run", "{cluster}")
RAW_EXPERIMENTS = "reports/raw/experiments"
PROGRAMS = (
    *("tests/nightly/programs", "tests/rehearsals/start", "tests/distributions/processes"),
    *("tests/benchmarks/processes", "tests/benchmarks/gpu/processes", "tests/notebooks/processes"),
    "tests/image_models/ranks",
)
SCANNED = ("tests/charts/scanned", "tests/images/scanned", "tests/manifests/scanned")

SUITES: tuple[Suite, ...] = (
    Suite(
        "parity", "every strategy, model, world size and variant equals one process; every planted fault is caught",
        command=(*PYTEST, "tests/nightly/parity"), smallest=None, minutes=12,
        folders=("tests/nightly/parity",), facts="parity-full.json",
    ),
    Suite(
        "parity-llm", "language models: every composition of axes, to 16 processes, equals one process",
        command=(*PYTEST, "tests/nightly/parity_llm"), smallest=None, minutes=25,
        folders=("tests/nightly/parity_llm",), facts="parity-llm-full.json",
    ),
    Suite(
        "trainer", "the trainer's large cases, and every strategy and mesh where `make test` takes some",
        command=(*PYTEST, "tests/nightly/trainer"), smallest=None, minutes=40,
        folders=("tests/nightly/trainer",),
    ),
    Suite(
        "convergence", "300 steps from three seeds: every strategy ends where one process ends, in fp32 and bf16",
        command=("{python}", "-m", "tests.convergence"), smallest=("--steps", "20", "vit_tiny", "ddp", "fp32"),
        minutes=120, facts="convergence.json",
    ),
    Suite(
        "image-models", "ten image networks x eight strategies, the real worker: learn, killed, go on, as one",
        command=("{python}", "-m", "tests.image_models"), smallest=("cnn", "zero3"), minutes=100,
        facts="image-models.json",
    ),
    Suite(
        "rehearsals", "`make demo` and the examples as they are; language models in eight processes, compared",
        command=(*PYTEST, "tests/nightly/rehearsals"), smallest=("-k", "a_release_of_the_sweep"), minutes=20,
        folders=("tests/nightly/rehearsals",),
    ),
    Suite(
        "notebooks", "every notebook runs from its first cell to its last, as it is committed",
        command=(*PYTEST, "tests/nightly/notebooks"), smallest=None, minutes=15,
        folders=("tests/nightly/notebooks",), facts="notebooks.json",
    ),
    Suite(
        "programs", "benchmarks, wheels, documents' commands, SLURM, ssh, a container: each as a user starts it",
        command=(*PYTEST, *PROGRAMS), smallest=("-k", "one_machine_needs_no_meeting"), minutes=30,
        folders=PROGRAMS,
    ),
    Suite(
        "scanned", "checkov finds nothing in charts, manifests and images that is not waived with a reason",
        command=(*PYTEST, *SCANNED), smallest=None, minutes=3, folders=SCANNED,
    ),
    Suite(
        "experiments", "the small form of every experiment runs to its report: every run finished and complete",
        command=("{python}", "-m", "experiments", "--out", RAW_EXPERIMENTS, "--keep", f"{RAW_EXPERIMENTS}/kept"),
        smallest=("guide-examples/mobilenet-ddp", "zeropp-two-nodes/quantized"), minutes=65,
        facts="experiments/found.json",
    ),
    Suite(
        "faults", "runs that are killed, stopped, cut off, filled up end as they must, and lose no more than is stated",
        command=("{python}", "-m", "tests.faults"), smallest=("F5", "F27"), minutes=90,
        folders=("tests/faults",), facts="faults.json",
    ),
    Suite(
        "memory", "the counting instrument gives the known table of peak memory within 1 %",
        command=("{python}", "-m", "benchmarks.memory", "--output", "reports/raw/memory.json"),
        smallest=("--smallest",), minutes=25, facts="memory.json",
    ),
    Suite(
        "memory-faults", "a run names what somebody holds twice: weights, gradients, logits; no clean one is marked",
        command=("{python}", "-m", "tests.memory_faults"), smallest=("fsdp weights", "single images"), minutes=20,
        facts="memory-faults.json",
    ),
    Suite(
        "backtest", "the model of memory against published measurements of foreign engines, with the bars of each",
        command=("{python}", "-m", "benchmarks.backtest", "--output", "reports/raw/backtest.json",
                 "--page", "reports/backtest.md"),
        smallest=("--smallest", "--page", "reports/raw/smallest/backtest.md"), minutes=1, facts="backtest.json",
    ),
    Suite(
        "network", "two nodes with a slow link: predictions after a calibration name the winner, and where it changes",
        command=("{python}", "-m", "experiments.network", "--small", "--out", "reports/raw/network",
                 "--keep", "reports/raw/network/kept"),
        smallest=None, minutes=7, facts="network/kept/result.json",
    ),
    Suite(
        "gpu", "every stage of the GPU program runs, on a CPU and small: code, not figures",
        command=("{python}", "-m", "benchmarks.gpu", "--device", "cpu", "--tiny", "--out", "reports/raw/gpu"),
        smallest=("--stages", "environment,numerics,ab"), minutes=5,
        facts="gpu/results.jsonl",
    ),
    Suite(
        "mutants", "of small faults all over 98 % are caught, 95 % by `make test`, 85 % by `make test-fast`",
        command=("{python}", "-m", "tests.mutants"), smallest=("p95-index", "mfu-one-device"), minutes=25,
        facts="mutants.json",
    ),
    Suite(
        "supported-versions", "Python 3.12, torch 2.11, transformers 5.17, no network: GPU kit, tests/trainer, parity",
        command=("make", "bare"), smallest=("SMALLEST=1",), minutes=40, facts="supported-versions.json",
    ),
    Suite(
        "cluster", "on a cluster, in the project's images: every chart's path, what ends a run, every resume",
        command=(*CLUSTER, "tests/cluster/nightly"), smallest=None, minutes=55,
        folders=("tests/cluster/nightly",), facts="nightly-steps.json",
    ),
    Suite(
        "cluster-faults", "on a cluster ddp, zero2, fsdp, nd and an MPIJob survive every fault and lose what is stated",
        command=(*CLUSTER, "tests/cluster/disturbed"), smallest=None, minutes=60,
        folders=("tests/cluster/disturbed",), facts="cluster-faults.json",
    ),
    Suite(
        "cluster-operating", "on a cluster: store and volume lost and restored, own TLS, a quota, no server",
        command=(*CLUSTER, "tests/cluster/operating"), smallest=None, minutes=25,
        folders=("tests/cluster/operating",), facts="operating-steps.json",
    ),
    Suite(
        "cluster-parts", "single parts against a real API server: charts, manifests, sweep, watch, wait, volume pod",
        command=(*CLUSTER, "tests/cluster/parts"), smallest=None, minutes=25,
        folders=("tests/cluster/parts",),
    ),
    Suite(
        "cluster-operators", "TrainJob, MPIJob over ssh, a queue of Kueue, on their operators: disturbed, resumed",
        command=("tests/cluster/run", "--operators", "trainer,mpi,kueue", "{cluster}", "tests/cluster/operators"),
        # one word with blanks in it, which the runner's own parser leaves to pytest
        smallest=("-khelm_install and whole-trainjob or kill-rank-trainjob",), minutes=30,
        folders=("tests/cluster/operators",), facts="operators-steps.json",
    ),
    Suite(
        "cluster-readme", "every command of the path of docs/cluster.md, read out of it, in its order",
        command=(*CLUSTER, "tests/cluster/readme"), smallest=None, minutes=25,
        folders=("tests/cluster/readme",), facts="readme-steps.json",
    ),
)  # fmt: skip
