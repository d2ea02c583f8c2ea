"""A recommendation as a person reads it, and as JSON: the option, its cost, runners-up, what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import shorten
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from stratlab.predict.answering import CODE
from stratlab.predict.prediction_report import UNFIT
from stratlab.predict.timing import TIE_PCT, Speed
from stratlab.progress import build_lines
from stratlab.recommend import Option
from stratlab.recommend.choice import Aim, Recommendation
from stratlab.recommend.search_space import Searched
from stratlab.recommend.start_files import StartFiles, name_chart
from stratlab.wording import format_count
from stratlab_spec.settings.wording import as_text

MOST_RUNNERS = 6
MOST_REASONS = 6
MOST_NAMES = 4
REASON_LETTERS = 110
TRUST = (
    "middle of a band, in brackets; from constants of the card, this machine is not measured, and several GPUs are not "
    "confirmed (docs/predict.md)"
)


@dataclass(frozen=True)
class Training:
    """The length of a training, for its hours and its price; 0 = not given.

    Attributes:
        epoch_size: tokens, or images, of one pass over the data.
        per_gpu_hour: price.
    """

    epochs: int = 0
    epoch_size: int = 0
    per_gpu_hour: float = 0.0

    def find_hours(self, one: Option) -> tuple[float, float, float] | None:
        """Return the hours of all epochs: of the band's middle, its lower and its upper end; None = not known."""
        if not self.epoch_size or not isinstance(one.speed, Speed):
            return None
        hours = max(1, self.epochs) * self.epoch_size / one.speed.per_s / 3600
        low, high = one.speed.band_pct
        return hours * (1 + (low + high) / 200), hours * (1 + low / 100), hours * (1 + high / 100)


def build_answer_screen(
    found: Recommendation, start: StartFiles, training: Training, searched: Searched
) -> Group:
    """Return the recommendation for a terminal."""
    taken = found.taken
    title = Text(
        f"{found.aim.capitalize()}: {taken.full_name} on {format_count(taken.gpus, 'GPU')}", style="bold"
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("field", "value", "why"):
        table.add_column(name, overflow="fold")
    for name, value, reason in start.fields:
        table.add_row(name, as_text(value), reason)
    told = [*say_expected(found, training)]
    lines = [("" if number else "Expected", line) for number, line in enumerate(told)]
    lines += [("Tie", _say_tie(found))] if len(found.tied) > 1 else []
    runners = [_build_runners(found)] if found.runners else []
    left_out = [*_explain_left_out(found, searched)]
    notes = [("" if number else "Left out", Text(text)) for number, text in enumerate(left_out)]
    notes += [("Trust", Text(_say_trust(taken), style="dim"))]
    return Group(title, build_lines(lines), table, *runners, build_lines(notes))


def list_heading(found: Recommendation, training: Training, card: str) -> list[str]:
    """Return comments above the values."""
    taken = found.taken
    first = f"stratlab recommend: {found.aim} on {format_count(taken.gpus, 'GPU')} {card}: {taken.full_name}"
    return [first, *say_expected(found, training), _say_trust(taken)]


def _say_trust(taken: Option) -> str:
    return "; ".join([TRUST, *(taken.speed.assumed if isinstance(taken.speed, Speed) else ())])


def say_none(searched: Searched) -> str:
    """Return why nothing is recommended."""
    options = searched.options
    lines = [f"{_list_names(runs)}: {reason}" for reason, runs in searched.left_out.items()]
    if any(one.fits for one in options):
        unknown = dict.fromkeys(one.speed for one in options if one.fits and isinstance(one.speed, str))
        first = f"No option that fits has a known time: {'; '.join(unknown)}. --goal leanest needs no time"
    elif options:
        least = min(options, key=lambda one: one.prediction.needs_gib)
        first = (
            f"None of {len(options)} options fits. {least.full_name} needs least, {least.say_needs()}. Use more or "
            "larger GPUs, --allow lora,offload, or the changes of `stratlab predict`"
        )
    else:
        first = "Nothing is known of what was asked"
    return "\n".join([first, *lines])


def say_expected(found: Recommendation, training: Training) -> Iterator[str]:
    taken = found.taken
    speed = taken.speed
    if isinstance(speed, Speed):
        yield f"{_say_speed(taken)}; {taken.say_needs()} on each GPU"
    else:
        yield f"{taken.say_needs()} on each GPU; time is not known: {speed}"
    if hours := training.find_hours(taken):
        epochs = format_count(max(1, training.epochs), "epoch")
        price = ""
        if training.per_gpu_hour:
            cost = [each * taken.gpus * training.per_gpu_hour for each in hours]
            price = f", price {cost[0]:,.4g} ({cost[1]:,.4g} to {cost[2]:,.4g})"
        yield f"{epochs}: {hours[0]:,.3g} hours ({hours[1]:,.3g} to {hours[2]:,.3g}){price}, training steps only"
    elif training.per_gpu_hour and taken.per_s:
        million = taken.gpu_hours_per_million * training.per_gpu_hour
        yield f"price of a million {_unit(taken)}: {million:.3g}"
    if training.epochs and not training.epoch_size and taken.per_s:
        yield f"for hours: --epoch-size, the {_unit(taken)} of one pass"


def _unit(one: Option) -> str:
    assert isinstance(one.speed, Speed)
    return one.speed.unit


def _say_speed(one: Option) -> str:
    """Return the speed in the middle of its band, and the band."""
    assert isinstance(one.speed, Speed)
    low, high = (one.speed.per_s / (1 + pct / 100) for pct in reversed(one.speed.band_pct))
    return f"{one.per_s:,.0f} {one.speed.unit} per s ({low:,.0f} to {high:,.0f})"


def _say_tie(found: Recommendation) -> str:
    runs: dict[str, Option] = {}
    for one in found.tied:
        if one is not found.taken:
            runs.setdefault(one.run, one)
    rule = {
        Aim.fastest: f"less than {TIE_PCT} % apart",
        Aim.leanest: "equal within the error of the prediction",
        Aim.cheapest: f"less than {TIE_PCT} % apart in price",
    }[found.aim]
    first = {
        Aim.fastest: "the simplest one",
        Aim.leanest: "the fastest and simplest one",
        Aim.cheapest: "the lowest price",
    }[found.aim]
    return f"{_list_names([one.full_name for one in runs.values()])}: {rule}; {first} is taken"


def _build_runners(found: Recommendation) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    known = [one for one in (found.taken, *(each.option for each in found.runners)) if one.per_s]
    unit = _unit(known[0]) if known else "tokens"
    several = len({each.option.gpus for each in found.runners} | {found.taken.gpus}) > 1
    columns = ["runner-up", *["GPUs"] * several, "settings", "GiB", f"{unit} per s", "limited by"]
    for name in columns:
        table.add_column(
            name, justify="right" if name in ("GPUs", "GiB", f"{unit} per s") else "left", overflow="fold"
        )
    for each in found.runners[:MOST_RUNNERS]:
        one = each.option
        row = [one.run, *[str(one.gpus)] * several, one.settings]
        row.append(one.prediction.show(one.prediction.needs_gib))
        row.append(f"{one.per_s:,.0f}" if one.per_s else "not known")
        limit = f"{each.limit}: {each.why}" if each.limit else each.why
        table.add_row(*row, limit, style="" if one.fits else "dim")
    return table


def _explain_left_out(found: Recommendation, searched: Searched) -> Iterator[str]:
    """Yield runs without a known time, then runs that cannot start or have no recorded steps."""
    reasons: dict[str, list[str]] = {}
    for one in (each.option for each in found.runners if each.option.fits):
        if isinstance(one.speed, str):
            reasons.setdefault(f"memory fits, time is not known: {one.speed}", []).append(one.run)
    for reason, runs in searched.left_out.items():
        code = reason.rpartition("[")[2].rstrip("]")
        short = f"needs {UNFIT[code]}" if code in UNFIT else CODE.sub("", reason).split(";")[0]
        short = shorten(short, REASON_LETTERS)
        reasons[short] = list(dict.fromkeys([*reasons.get(short, ()), *runs]))
    for short, runs in [*reasons.items()][:MOST_REASONS]:
        yield f"{_list_names(runs)}: {short}"
    if len(reasons) > MOST_REASONS:
        yield f"{len(reasons) - MOST_REASONS} more reasons: --json"
    yield f"{len(searched.options)} options were compared"


def _list_names(runs: Sequence[str]) -> str:
    more = f" and {len(runs) - MOST_NAMES} more" if len(runs) > MOST_NAMES else ""
    return f"{', '.join(runs[:MOST_NAMES])}{more}"


def describe(
    found: Recommendation, start: StartFiles, training: Training, searched: Searched
) -> dict[str, Any]:
    """Return the recommendation for a file."""
    one = partial(describe_option, training=training)
    return {
        "goal": str(found.aim),
        "recommended": one(found.taken),
        "chart": name_chart(found.taken),
        "values": {"run": start.values},
        "reasons": {name: reason for name, _, reason in start.fields},
        "run_line": start.run_line,
        "tie": [one(option) for option in found.tied if option is not found.taken],
        "runners_up": [
            one(each.option) | {"limit": each.limit and str(each.limit), "why": each.why}
            for each in found.runners
        ],
        "settling": [one(option) for option in found.settling],
        "left_out": searched.left_out,
        "options": len(searched.options),
    }


def describe_option(one: Option, training: Training) -> dict[str, Any]:
    """Return an option for a file."""
    speed = one.speed
    hours = training.find_hours(one)
    price = {}
    if training.per_gpu_hour and hours:
        price = {"price": [round(each * one.gpus * training.per_gpu_hour, 2) for each in hours]}
    return {
        "run": one.run,
        "strategy": one.strategy,
        "gpus": one.gpus,
        "settings": dict(one.chosen),
        "verdict": str(one.prediction.verdict),
        "on_device_gib": round(one.prediction.needs_gib, 4),
        "at_most": one.prediction.is_upper_bound,
        "speed": speed.as_dict(training.per_gpu_hour) if isinstance(speed, Speed) else None,
        "middle_per_s": round(one.per_s, 1) if one.per_s else None,
        **({} if isinstance(speed, Speed) else {"speed_unknown": speed}),
        **({"hours": [round(each, 4) for each in hours]} if hours else {}),
        **price,
    }
