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
        left_out = {"COMPILE", "PROFILE_STEPS", "STEPS", "EPOCHS", "LOG_EVERY", "SNAPSHOT_EVERY"}
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
