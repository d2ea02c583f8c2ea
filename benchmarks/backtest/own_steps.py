"""Step times of our own engines on an H200 and an H100, against predictions.

    measured/*.jsonl ─▶ rows with a profile-free median ─▶ a quarter for the host's scale ─▶ the others are judged

The truth is the median of steps 5 to 8, which run before the profiler: steps after it are up to 60 % slower on a GPU.
Rows of one host share one fitted number, the scale of its costs per call. The rows that fit it are chosen by a rule:
of each host's rows, sorted by model, strategy, mode and place in the file, the first one and every fourth one after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from statistics import mean, median

from benchmarks.backtest.report import Bar, spread
from stratlab_spec.memory.recording import NotRecorded
from stratlab_spec.settings.config import Config
from stratlab_spec.step_time.host_work import Host
from stratlab_spec.step_time.kernels import CARDS
from stratlab_spec.step_time.prediction import predict_step_time

MEASURED = Path(__file__).parents[1] / "gpu" / "measured"
STAGES = ("project", "strategies", "peers")
BEFORE_PROFILER = slice(4, 8)
FEWEST_STEPS = 11
EVERY = 4
"""One row of so many fits the host's scale."""
SCALES = [0.5 * 1.03**step for step in range(60)]


@dataclass(frozen=True)
class Run:
    """A measured run on one GPU."""

    host: str
    """File of its machine and day."""
    card: str
    item: str
    settings: Mapping[str, str]
    step_ms: float
    calibrates: bool = False

    @property
    def compiled(self) -> bool:
        return self.settings.get("COMPILE") == "true"

    @property
    def strategy(self) -> str:
        return self.settings["STRATEGY"]

    @property
    def config(self) -> Config:
        text = self.settings["MODEL"].startswith("qwen")
        data = {"DATASET": "metamathqa" if text else "timm/imagenet-1k", "RUN": "measured"}
        left_out = {"PROFILE_STEPS", "STEPS", "EPOCHS", "LOG_EVERY", "SNAPSHOT_EVERY"}
        own = {name: value for name, value in self.settings.items() if name not in left_out}
        return Config.from_env({f"TRAINER_{name}": value for name, value in (data | own).items()})


def read_runs(folder: Path = MEASURED) -> list[Run]:
    """Return the runs with steps before the profiler, those of the calibration marked."""
    found = sorted(_read_files(folder), key=lambda run: (run.host, *_sorting(run)))
    hosts: dict[str, int] = {}
    marked = []
    for run in found:
        number = hosts.get(run.host, 0)
        hosts[run.host] = number + 1
        marked.append(replace(run, calibrates=number % EVERY == 0))
    return marked


def _sorting(run: Run) -> tuple[str, str, bool, str]:
    return run.settings["MODEL"], run.strategy, run.compiled, run.item


def _read_files(folder: Path) -> Iterator[Run]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            steps, settings = row.get("step_ms") or [], row.get("settings") or {}
            usual = row.get("stage") in STAGES and len(steps) >= FEWEST_STEPS
            if (
                usual
                and "contig" not in (row.get("tree") or "")
                and not settings.keys() & {"TEACHER", "OFFLOAD"}
            ):
                card = path.name.split("-")[0]
                yield Run(path.stem, card, row["item"], settings, median(steps[BEFORE_PROFILER]))


def predict_ms(run: Run, scale: float) -> float:
    """Return the predicted step.

    Raises:
        NotRecorded: settings that no recording has.
    """
    return predict_step_time(run.config, 1, 1, CARDS[run.card], Host(scale=scale)).step_ms


def fit_scale(runs: Sequence[Run]) -> float:
    """Return the scale of the host's costs with the least mean error; errors above a half count as a half."""

    def error(scale: float) -> float:
        return mean(min(0.5, abs(log(predict_ms(run, scale) / run.step_ms))) for run in runs)

    return min(SCALES, key=error)


def answered(runs: Iterable[Run]) -> Iterator[Run]:
    """Yield the runs for which there are recordings."""
    for run in runs:
        try:
            predict_ms(run, 1.0)
        except NotRecorded:
            continue
        yield run


WIDE_PCT = 25


@dataclass(frozen=True)
class Judged:
    """A run that fits no number, and its prediction."""

    run: Run
    predicted_ms: float

    @property
    def error_pct(self) -> float:
        return 100 * (self.predicted_ms / self.run.step_ms - 1)

    @property
    def group(self) -> str:
        """Return the rows that share a bar."""
        run = self.run
        mode = " compiled" if run.compiled else ""
        if run.strategy == "zero3" or (run.compiled and run.strategy not in ("single", "ddp")):
            return "host-bound: zero3, compiled fsdp and zero2"
        if run.strategy in ("zero1", "zero2"):
            return "zero1, zero2"
        return f"single, ddp{mode}" if run.compiled else "eager: single, ddp, fsdp"


DEPTHWISE = ("mobilenet", "efficientnet")
"""Models whose depthwise convolutions have no reliable rate; reported, not judged."""
NOT_MODELLED = ("nd",)
"""Strategies whose host work is not recorded: nd on one rank is predicted as fsdp."""
BARS = {
    "eager: single, ddp, fsdp": (5.0, 12.0),
    "single, ddp compiled": (6.0, None),
    "zero1, zero2": (8.0, None),
}
"""Group -> mean and 95th percentile of errors without signs, in percent."""
NEAR_PCT = 3
"""Pairs of runs nearer than this have no order."""


def judge(runs: Sequence[Run]) -> tuple[list[Judged], dict[str, float]]:
    """Return the rows that fit no number, predicted, and each host's scale."""
    known = list(answered(runs))
    hosts = dict.fromkeys(run.host for run in known)
    scales = {
        host: fit_scale([run for run in known if run.host == host and run.calibrates and _has_rates(run)])
        for host in hosts
    }
    rows = [Judged(run, predict_ms(run, scales[run.host])) for run in known if not run.calibrates]
    return rows, scales


def _has_rates(run: Run) -> bool:
    return run.settings["MODEL"] not in DEPTHWISE and run.strategy not in NOT_MODELLED


def find_order(rows: Sequence[Judged]) -> tuple[int, int]:
    """Return (pairs in the right order, pairs) of one host's runs of a model and batch that differ by NEAR_PCT."""
    right = pairs = 0
    for at, one in enumerate(rows):
        for other in rows[at + 1 :]:
            alike = ("MODEL", "MICRO_BATCH_SIZE", "GLOBAL_BATCH_SIZE", "SEQ_LEN")
            same = all(one.run.settings.get(name) == other.run.settings.get(name) for name in alike)
            measured = one.run.step_ms / other.run.step_ms - 1
            if one.run.host == other.run.host and same and abs(measured) > NEAR_PCT / 100:
                pairs += 1
                right += (one.predicted_ms - other.predicted_ms) * measured > 0
    return right, pairs


def build_bars(rows: Sequence[Judged]) -> list[Bar]:
    """Return the bars of each group, of the H100, of pairs and of host-bound rows in their band."""
    rows = [row for row in rows if _has_rates(row.run)]
    found = []
    for group, (most, largest) in BARS.items():
        errors = [row.error_pct for row in rows if row.group == group]
        if not errors:
            continue
        of = spread(errors)
        found.append(Bar(f"{group}: mean error", of.mean, "<=", most, "%", of.rows))
        if largest:
            found.append(Bar(f"{group}: 95th percentile", of.p95, "<=", largest, "%", of.rows))
    usual = [row for row in rows if row.run.card == "h100" and row.group in BARS]
    if usual:
        of = spread([row.error_pct for row in usual])
        found.append(Bar("an H100 with the H200's rates: mean error", of.mean, "<=", 7.0, "%", of.rows))
    right, pairs = find_order(rows)
    if pairs:
        found.append(
            Bar(f"pairs more than {NEAR_PCT} % apart in order", 100 * right / pairs, ">=", 95, "%", pairs)
        )
    wide = [row for row in rows if row.group not in BARS]
    if wide:
        inside = sum(abs(row.error_pct) <= WIDE_PCT for row in wide)
        what = f"host-bound rows within {WIDE_PCT} %"
        found.append(Bar(what, 100 * inside / len(wide), ">=", 85, "%", len(wide)))
    return found
