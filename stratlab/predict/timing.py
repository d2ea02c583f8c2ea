"""Add the time of a step to predictions: tokens or images per second, MFU, price, and the fastest strategy.

    Prediction ─▶ predict_step_time (stratlab_spec/step_time) ─▶ Speed ─▶ Speeds: which one, ties called ties

Without a calibrated machine times come from constants of a card. So each has a wide band, and two strategies nearer
than TIE_PCT are a tie. With one the band follows from its uncertainties, and runs whose bands overlap are a tie.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from stratlab import UserError
from stratlab.predict import Prediction
from stratlab_spec.memory.prediction import Verdict
from stratlab_spec.memory.recording import NotRecorded
from stratlab_spec.memory.simulated import Simulated
from stratlab_spec.models.decoder import count_flops_per_token
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.settings.config import Config
from stratlab_spec.step_time.collectives import EFA_P5
from stratlab_spec.step_time.kernels import CARDS, Card
from stratlab_spec.step_time.measured_machine import CPU, BadMachineFile, MeasuredMachine, read_machine
from stratlab_spec.step_time.step_forecast import BAND_PCT, HOST_BOUND_PCT, find_band, find_measured_band
from stratlab_spec.step_time.time_prediction import assume_document_tokens, predict_step_time

TIE_PCT = 6


@dataclass(frozen=True)
class Speed:
    """The time of a run's step on one kind of GPU."""

    name: str
    step_ms: float
    unit: str
    """tokens or images."""
    per_s: float
    """Of all GPUs together."""
    mfu_pct: float | None
    idle_pct: float
    """Share of the step in which the GPU waits for the host."""
    exposed_pct: float
    """Share of the step in which it waits for collectives."""
    gpus: int
    band_pct: tuple[int, int] = BAND_PCT
    micro_batch_size: int = 1
    assumed: Sequence[str] = ()
    """What the time takes for granted: documents, and the network between nodes."""

    @property
    def middle_ms(self) -> float:
        """Return the step in the middle of its band."""
        return self.step_ms * (1 + sum(self.band_pct) / 200)

    @property
    def middle_per_s(self) -> float:
        return self.per_s * self.step_ms / self.middle_ms

    def overlaps(self, faster: Speed) -> bool:
        """Return whether the bands of the steps overlap."""
        least, most = self.step_ms * (100 + self.band_pct[0]), faster.step_ms * (100 + faster.band_pct[1])
        return least <= most

    def price_per_million(self, per_gpu_hour: float) -> float:
        """Return the price of a million tokens or images."""
        return 1e6 / self.per_s / 3600 * self.gpus * per_gpu_hour

    def as_dict(self, per_gpu_hour: float | None) -> dict[str, Any]:
        """Return it for a file."""
        price = {"price_per_million": round(self.price_per_million(per_gpu_hour), 4)} if per_gpu_hour else {}
        return {
            "step_ms": round(self.step_ms, 2),
            "band_pct": list(self.band_pct),
            f"{self.unit}_per_s": round(self.per_s, 1),
            "mfu_pct": None if self.mfu_pct is None else round(self.mfu_pct, 1),
            "host_wait_pct": round(self.idle_pct, 1),
            "exposed_communication_pct": round(self.exposed_pct, 1),
            **price,
        }


def predict_speed(one: Prediction, card: Card, machine: MeasuredMachine | None = None) -> Speed | str:
    """Return the speed of a run, or why it is not known.

    Args:
        machine: of the card, as calibrated.
    """
    file = one.file
    if not isinstance(file, Simulated):
        return "the memory comes from an operations file"
    config, ranks, of_node = file.config, file.ranks, file.ranks_of_node
    host, links = (machine.host, machine.links) if machine else (None, None)
    try:
        if machine and (lacks := machine.lacks(ranks, of_node)):
            raise NotRecorded(lacks)
        time = predict_step_time(config, ranks, of_node, card, host, links)
    except NotRecorded as failure:
        return f"no recorded operations for {failure}"
    rows = config.global_batch_size
    units = rows * (config.seq_len if config.is_text else 1)
    mfu = None
    if config.is_text and not card.one_queue:
        seen = assume_document_tokens(config)
        flops = count_flops_per_token(read_shape(config), seen, causal=True, lora=bool(config.lora_rank))
        mfu = 100 * flops * units / time.step_ms * 1e3 / ranks / card.peak_tflops / 1e12
    line = time.timeline
    idle, exposed = (100 * part / line.step_s for part in (line.idle_s, line.exposed_s))
    unit = "tokens" if config.is_text else "images"
    return Speed(
        one.question.name,
        time.step_ms,
        unit,
        units / time.step_ms * 1e3,
        mfu,
        idle,
        exposed,
        ranks,
        find_measured_band(config, ranks, of_node, machine) if machine else find_band(config),
        config.micro_batch_size,
        [*_list_assumed(config, ranks > of_node and not machine)],
    )


def _list_assumed(config: Config, over_network: bool) -> Iterator[str]:
    if config.is_text and config.packing:
        yield f"packed documents have {assume_document_tokens(config):,} tokens"
    if over_network:
        yield f"the network between nodes is {EFA_P5.name}"


@dataclass(frozen=True)
class Speeds:
    """The speeds of several runs on one kind of GPU."""

    card: Card
    found: Mapping[str, Speed | str]
    """Run -> its speed, or why it is not known."""
    fitting: Sequence[str]
    machine: MeasuredMachine | None = None

    @property
    def ranked(self) -> list[Speed]:
        """Return the speeds, the fastest first; those of runs that do not fit come last."""
        known = [one for one in self.found.values() if isinstance(one, Speed)]
        return sorted(known, key=lambda one: (one.name not in self.fitting, -one.per_s))

    @property
    def assumed(self) -> list[str]:
        """Return what the times take for granted."""
        return [*dict.fromkeys(text for one in self.ranked for text in one.assumed)]

    @property
    def best(self) -> list[Speed]:
        """Return the fastest run that fits, and those that are slower by less than TIE_PCT, or within the band."""
        fitting = [one for one in self.ranked if one.name in self.fitting]
        if self.machine:
            return [one for one in fitting if one.overlaps(fitting[0])]
        return [one for one in fitting if one.per_s > fitting[0].per_s * (1 - TIE_PCT / 100)]

    def as_dict(self, name: str, per_gpu_hour: float | None) -> dict[str, Any]:
        """Return a run's speed for a file."""
        speed = self.found.get(name, "its memory is not known")
        if isinstance(speed, str):
            return {"speed": None, "speed_unknown": speed}
        origin = {"machine": self.machine.origin._asdict()} if self.machine else {}
        return {"speed": {"gpu": self.card.name, **speed.as_dict(per_gpu_hour), **origin}}

    def build_screen(self, per_gpu_hour: float | None) -> Group:
        """Return the answer to "how fast" as a person reads it."""
        ranked = self.ranked
        if not ranked:
            reasons = dict.fromkeys(one for one in self.found.values() if isinstance(one, str))
            return Group(Text(f"Time is not known: {'; '.join(reasons)}"))
        unit = ranked[0].unit
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        columns = ["run", "ms per step", f"{unit} per s", "MFU %", "GPU waits for host %", "for network %"]
        columns += ["90 % band"] if self.machine else []
        columns += [f"price per million {unit}"] if per_gpu_hour else []
        for name in columns:
            table.add_column(name.replace(" per ", "\nper "), justify="left" if name == "run" else "right")
        for one in ranked:
            fits = one.name in self.fitting
            row = [
                one.name if fits else f"{one.name} (does not fit)",
                f"{one.step_ms:,.0f}",
                f"{one.per_s:,.0f}",
            ]
            row += ["" if one.mfu_pct is None else f"{one.mfu_pct:.0f}"]
            row += [f"{one.idle_pct:.0f}", f"{one.exposed_pct:.0f}"]
            row += ["{:+} {:+} %".format(*one.band_pct)] if self.machine else []
            row += [f"{one.price_per_million(per_gpu_hour):.3g}"] if per_gpu_hour else []
            table.add_row(*row, style="" if fits else "dim")
        trust = _describe_origin(self.machine) or (
            f"Each time ± {BAND_PCT[1]} %: constants of an H200 and an H100, of other cards their data sheets, no "
            f"measurement of this machine. zero3, zeropp and compiled shards may take up to {HOST_BOUND_PCT[1]} % "
            f"longer. Runs less than {TIE_PCT} % apart are a tie"
        )
        trust = "; ".join([trust, *self.assumed])
        unknown = [name for name, one in self.found.items() if isinstance(one, str)]
        more = (
            [Text(f"No time for {', '.join(unknown)}: no operations recorded", style="dim")]
            if unknown
            else []
        )
        return Group(Text(self._conclude(), style="bold"), table, Text(trust, style="dim"), *more)

    def _conclude(self) -> str:
        best = self.best
        if not best:
            return "No run that fits has a known time"
        one = best[0]
        speed = f"{one.per_s:,.0f} {one.unit} per s on {one.gpus} x {self.card.name}"
        first = f"{one.name}: {speed} at micro-batch {one.micro_batch_size}"
        if one.micro_batch_size == 1:
            first += "; larger ones are faster (stratlab recommend)"
        if len(best) > 1:
            return f"Fastest, as a tie: {', '.join(one.name for one in best)}; {first}"
        return f"Fastest: {first}"


def _describe_origin(machine: MeasuredMachine | None) -> str:
    if machine is None:
        return ""
    own = "; gloo on a CPU, which says nothing of GPUs" if machine.card_name == CPU else ""
    date, hardware, nodes, steps = machine.origin
    where = f"{nodes} x {machine.ranks_of_node} ranks on {hardware}"
    return f"Calibrated {date}, {where}, {steps} steps{own}. Runs whose bands overlap are a tie"


def find_machine(path: Path, gpu: str) -> MeasuredMachine:
    """Read the file of a calibrated machine.

    Args:
        gpu: name of the card that is asked for; empty = the file's.

    Raises:
        UserError: it cannot be used, or is of another card.
    """
    try:
        found = read_machine(path)
    except BadMachineFile as wrong:
        raise UserError(f"--machine {wrong}") from None
    if gpu and gpu.lower() != found.card_name:
        raise UserError(
            f"--gpu {gpu}: --machine {path} is of {found.card_name}; leave --gpu out [SL-machine-of-another-gpu]"
        )
    return found


def find_card(name: str) -> Card:
    """Return the card of this name.

    Raises:
        UserError: there is none.
    """
    if found := CARDS.get(name.lower()):
        return found
    raise UserError(f"--gpu {name}: expected one of {', '.join(CARDS)} [SL-predict-gpu]")


def predict_speeds(
    answers: Sequence[Prediction], card: Card, machine: MeasuredMachine | None = None
) -> Speeds:
    """Return the speeds of all runs."""
    fitting = [one.question.name for one in answers if one.verdict is Verdict.FITS]
    found = {one.question.name: predict_speed(one, card, machine) for one in answers}
    return Speeds(card, found, fitting, machine)
