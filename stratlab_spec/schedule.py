"""The steps of a run: how many, in which pieces, with which learning rate, and which of them are timed.

Timed steps and the numbers that follow have one rule for trainer, list, comparison and MLflow:

read_step            a line of metrics.jsonl as a step
find_timed_steps     the steps that count
build_step_numbers   their median, and the throughput at that median

A step counts unless it is one of the first five of its attempt, is profiled, or warms up by `find_cut`. On a GPU the
steps after the profiled ones of the same attempt do not count either: host-bound runs were up to 60 % slower there
(EfficientNet 28.5 -> 45.8 ms on an H200). On a CPU they are as fast as before, except the first one, in which the trace
is written.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from stratlab_spec.settings.faults import step_problems

if TYPE_CHECKING:  # else readers of a run would import pydantic
    from stratlab_spec.settings.config import Config


@dataclass(frozen=True)
class Schedule:
    """The steps of a run, counted from 1."""

    steps: int
    evaluate_every: int
    profile_first: int
    """First recorded step; 0 = no profile."""


def count_micro_batches(global_batch_size: int, micro_batch_size: int, dp: int) -> int:
    """Return the micro-batches of a step on each rank. `dp`: ranks that see different samples."""
    return global_batch_size // (micro_batch_size * dp)


def build_schedule(config: Config, train_samples: int) -> Schedule:
    """Return steps from epochs or given; the profile moves forward in a run too short for its default place."""
    per_epoch = max(1, train_samples // config.global_batch_size)
    steps = config.steps or max(1, config.epochs * train_samples // config.global_batch_size)
    first = config.profile_first_step if config.profile_steps else 0
    if first and first + config.profile_steps - 1 > steps:
        first = steps - config.profile_steps + 1
        if first <= config.profile_warmup:
            first = 0
    return Schedule(steps, config.evaluate_every or per_epoch, first)


def profile_first_from(config: Config, plan: Schedule, done_steps: int, recorded: bool) -> int:
    """Return the first recorded step of an attempt that resumes after `done_steps`; 0 = no profile.

    Args:
        recorded: an earlier attempt's traces are there.
    """
    if not done_steps or not plan.profile_first:
        return plan.profile_first
    first = max(plan.profile_first, done_steps + 1 + config.profile_warmup)
    return 0 if recorded or first + config.profile_steps - 1 > plan.steps else first


def plan_problems(config: Config, train_samples: int | None) -> list[str]:
    """Return settings that do not fit the number of training samples; None = not known, `steps` are set."""
    epoch = ""
    if train_samples is None:
        assert config.steps
        train_samples = config.global_batch_size
    else:
        epoch = f"; an epoch has {_count(train_samples // config.global_batch_size)}"
    if train_samples < config.global_batch_size:
        return [
            f"TRAINER_GLOBAL_BATCH_SIZE={config.global_batch_size}: there are only {train_samples} training samples "
            "[SL-batch-above-samples]"
        ]
    if config.mode == "evaluate":
        return []
    plan = build_schedule(config, train_samples)
    problems = [*step_problems(config.fault, plan.steps)]
    asked, most = config.profile_first_step, plan.steps - config.profile_warmup
    if config.profile_steps > max(most, 0):
        problems.append(
            f"TRAINER_PROFILE_STEPS={config.profile_steps}: the run has {_count(plan.steps)}, of which "
            f"{_count(max(most, 0))} can be recorded after TRAINER_PROFILE_WARMUP={config.profile_warmup}; train "
            f"longer (TRAINER_EPOCHS or TRAINER_STEPS{epoch}), "
            "record fewer, or switch the profile off with TRAINER_PROFILE_STEPS=0 [SL-profile-steps]"
        )
    elif (
        config.profile_steps
        and "profile_first_step" in config.model_fields_set
        and plan.profile_first != asked
    ):
        last = plan.steps - config.profile_steps + 1
        problems.append(
            f"TRAINER_PROFILE_FIRST_STEP={asked}: the run has {_count(plan.steps)}, "
            f"expected at most {last} (or no profile, by TRAINER_PROFILE_STEPS=0) [SL-profile-first-step]"
        )
    if config.warmup_steps >= plan.steps:
        problems.append(
            f"TRAINER_WARMUP_STEPS={config.warmup_steps}: must be below the {plan.steps} steps "
            "[SL-warmup-above-run]"
        )
    return problems


def _count(steps: int) -> str:
    return f"{steps} step" if steps == 1 else f"{steps} steps"


def learning_rate(config: Config, step: int, steps: int) -> float:
    """Return the rate of `step` (from 1): linear warm-up to `lr`, then constant, or down to 0 at the end."""
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    if config.lr_schedule == "constant":
        return config.lr
    done = (step - 1 - config.warmup_steps) / max(1, steps - config.warmup_steps)
    if config.lr_schedule == "linear":
        return config.lr * (1 - done)
    return config.lr * 0.5 * (1 + math.cos(math.pi * done))


WARM_UP_STEPS = 5
"""Steps of each attempt: they compile, allocate and set up collectives."""
BATCH = 5
RULE = "MSER-5 (White 1997), never less than the first 5 steps, never more than half"
TOO_FEW = "too few steps for MSER-5: the first 5 left out"
FEW_STEPS = 10
"""A median of fewer steps can be chance."""
TIMES = ("step_time_ms", "data_ms", "forward_ms", "backward_ms", "optimizer_ms")
COUNTS = ("samples", "tokens", "useful_tokens", "token_pairs")
COSTS = {
    "mfu_pct": ("samples", "flops_per_sample"),
    "mfu_literature_pct": ("tokens", "flops_per_token_literature"),
    "mfu_useful_pct": ("useful_tokens", "flops_per_useful_token"),
}
"""Utilisation -> the unit, and the fact with the operations of one unit."""


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """A training step as metrics.jsonl has it. `times` and `counts`: in the order of TIMES and COUNTS."""

    number: int
    attempt: int
    end_s: float
    is_profiled: bool
    times: tuple[float | None, ...]
    counts: tuple[float | None, ...]

    @property
    def ms(self) -> float:
        """The step's duration; `read_step` skips steps without it."""
        return self.times[0] or 0.0


@dataclass(frozen=True)
class Cut:
    """`steps` of the beginning do not count. `settled`: the rule found its optimum before its limit."""

    steps: int
    method: str
    settled: bool


@dataclass(frozen=True)
class TimedSteps:
    """The steps that count, in order, and the cut before them; no cut without them."""

    steps: Sequence[TrainedStep]
    cut: Cut | None = None

    def sum_up(self, count: str) -> float | None:
        """Return the sum over all steps; None if a step lacks it."""
        place = COUNTS.index(count)
        values = [step.counts[place] for step in self.steps]
        return float(sum(values)) if values and _are_known(values) else None

    def describe_cut(self) -> dict[str, Any] | None:
        """Return {steps: left out at the beginning, method, settled, first_step: that counts}, as summary.json has
        it.
        """
        return None if self.cut is None else {"first_step": self.steps[0].number, **asdict(self.cut)}

    def find_span_s(self) -> tuple[float, float] | None:
        """Return seconds since 1970 at which the first one began and the last one ended."""
        if not self.steps:
            return None
        return self.steps[0].end_s - self.steps[0].ms / 1e3, self.steps[-1].end_s


def read_step(line: Mapping[str, Any]) -> TrainedStep | None:
    """Return the training step of a line; None for other lines, or without a time."""
    if line.get("kind") != "train" or not _is_number(line.get("step_time_ms")):
        return None
    return TrainedStep(
        int(line["step"]),
        int(line.get("attempt") or 1),
        float(line.get("t") or 0.0),
        bool(line.get("profiled")),
        tuple(_get_number(line, name) for name in TIMES),
        tuple(_get_number(line, name) for name in COUNTS),
    )


def find_timed_steps(steps: Iterable[TrainedStep], on_gpu: bool) -> TimedSteps:
    """Return the steps that count; of a step that was lost and repeated by the next attempt, the second.

    Args:
        steps: of all attempts, in any order.
    """
    newest = {step.number: step for step in steps}
    begun: dict[int, int] = {}
    profiled: dict[int, int] = {}
    undisturbed = []
    for step in (newest[number] for number in sorted(newest)):
        first = begun.setdefault(step.attempt, step.number)
        if step.is_profiled:
            profiled[step.attempt] = step.number
        elif (last := profiled.get(step.attempt)) and (on_gpu or step.number == last + 1):
            continue
        elif step.number - first >= WARM_UP_STEPS or step.attempt == min(begun):
            undisturbed.append(step)
    cut = find_cut([step.ms for step in undisturbed])
    counted = undisturbed[cut.steps :]
    return TimedSteps(counted, cut) if counted else TimedSteps(())


def find_cut(times_ms: Sequence[float]) -> Cut:
    """Return the number of first steps that are warm-up.

    MSER-5: K. P. White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69
    (1997); batches of 5: White, Cobb, Spratt 2000. Z are the means of batches of 5 steps. The first d are dropped,
    with the d that minimizes sum((Z - mean)^2) / (m - d)^2 over the rest: the marginal standard error of the mean.

    Args:
        times_ms: step times in order.
    """
    whole = len(times_ms) // BATCH
    most = whole // 2
    least = WARM_UP_STEPS // BATCH
    if most < max(least + 1, 2):
        return Cut(min(WARM_UP_STEPS, len(times_ms)), TOO_FEW, False)
    # counted from the end: an incomplete batch is at the beginning, which is dropped anyway
    start = len(times_ms) - whole * BATCH
    means = [
        statistics.fmean(times_ms[place : place + BATCH]) for place in range(start, len(times_ms), BATCH)
    ]
    errors = _find_errors(means)
    best = min(range(least, most + 1), key=lambda dropped: errors[dropped])
    steps = min(start + best * BATCH, len(times_ms) // 2)
    return Cut(steps, RULE, best < most or len(set(means[least:])) == 1)


def _find_errors(means: Sequence[float]) -> list[float]:
    """Return squared deviation from the mean over the squared number, of all means from each place on (Welford
    1962).
    """
    errors = []
    mean = squares = 0.0
    for number, value in enumerate(reversed(means), 1):
        away = value - mean
        mean += away / number
        squares += away * (value - mean)
        errors.append(squares / number**2)
    return errors[::-1]


def build_step_numbers(timed: TimedSteps, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a run that follow from its timed steps, by the names of summary.json; None if unknown.

    Throughput is computed from the median step time: of two runs with equal steps, the run with the shorter median
    step is faster in every number. Model FLOP utilisation follows the PaLM paper (arXiv 2204.02311, appendix B): 100
    x units_per_s x flops / (peak_flops_per_device x world_size).

    Args:
        facts: world_size, peak_flops_per_device, and the operations of one unit, by the names of COSTS.
    """
    columns = dict(zip(TIMES, zip(*(step.times for step in timed.steps), strict=True), strict=False))
    medians = {name: _median(columns.get(name, ())) for name in TIMES}
    step_times = [step.ms for step in timed.steps]
    step_ms = medians["step_time_ms"]
    seconds = len(step_times) * step_ms / 1e3 if step_ms else None
    sums = {name: timed.sum_up(name) for name in COUNTS}
    speeds = {name: _divide(amount, seconds) for name, amount in sums.items()}
    useful = _divide(sums["useful_tokens"], sums["tokens"])
    return {
        "measured_steps": len(step_times),
        "warmup": timed.describe_cut(),
        "step_time_ms_p50": step_ms,
        "step_time_ms_p95": find_quantile(step_times, 0.95) if step_times else None,
        "step_time_ms_mean": statistics.fmean(step_times) if step_times else None,
        **{f"{name}_p50": medians[name] for name in TIMES[1:]},
        "samples_per_s": speeds["samples"],
        "tokens_per_s": speeds["tokens"],
        "useful_tokens_per_s": speeds["useful_tokens"],
        "useful_tokens_pct": None if useful is None else 100.0 * useful,
        **{
            name: _find_utilisation(speeds[unit], facts.get(cost), facts)
            for name, (unit, cost) in COSTS.items()
        },
    }


def find_quantile(values: Sequence[float], share: float) -> float:
    """Return the value at this share of the ordered ones: the rank nearest to it."""
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def _find_utilisation(units_per_s: float | None, flops: Any, facts: Mapping[str, Any]) -> float | None:
    peak, ranks = facts.get("peak_flops_per_device"), facts.get("world_size")
    if not (units_per_s and _is_number(flops) and _is_number(peak) and _is_number(ranks) and peak and ranks):
        return None
    return 100.0 * units_per_s * flops / (peak * ranks)


def _divide(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _median(values: Sequence[float | None]) -> float | None:
    return statistics.median(values) if values and _are_known(values) else None


def _are_known(values: Sequence[float | None]) -> TypeGuard[Sequence[float]]:
    return None not in values


def _get_number(line: Mapping[str, Any], name: str) -> float | None:
    return float(value) if _is_number(value := line.get(name)) else None


def _is_number(value: Any) -> TypeGuard[float]:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False
