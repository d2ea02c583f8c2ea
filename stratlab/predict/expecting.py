"""Expect a speed from what others measured: the question, its nearest published rows, and the user's run among them.

model, GPUs, card, strategy ─┐
a run directory ─────────────┴─▶ SpeedQuestion ─▶ find_nearest ─▶ Expectation ─▶ screen or JSON
                                                             └─ place: below, inside or above; causes of a gap
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import gcd
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from stratlab import UserError
from stratlab.predict.asking import ask_of_model
from stratlab.predict.published import PublishedRow, Sought, find_mfu_pct, find_nearest, read_published
from stratlab.predict.timing import TIE_PCT, find_card
from stratlab.run_directory.files import LARGEST_WORLD
from stratlab.run_directory.record import RunRecord, read_run
from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.memory.recording import NotRecorded
from stratlab_spec.models.decoder import DecoderShape, count_flops_per_token
from stratlab_spec.models.decoder_config import SHAPES, read_shape
from stratlab_spec.models.model_specs import VIT, default_image_size
from stratlab_spec.settings.config import PREFIX, Config, ConfigError
from stratlab_spec.step_time.kernels import CARDS, find_card_of_device
from stratlab_spec.step_time.time_prediction import count_sample_flops

DEPTHWISE = ("mobilenet", "efficientnet")
TILE = 64
"""Products whose sizes are no multiple of it fill the tensor cores badly."""
NOISE = (
    "Repeats of one system differ by 0.1 to 0.6 %, equal machines of several makers by 6 to 38 %: "
    f"below {TIE_PCT} % no difference between strategies is claimed across machines"
)


@dataclass(frozen=True)
class SpeedQuestion:
    """A question to the table.

    Attributes:
        unit: tokens or images.
        rounded: whether hidden size and vocabulary are multiples of TILE; None = images.
        per_s: measured, per second and GPU; None = nothing to place.
        waits: parts of the run's step in percent, as its analysis has measured them.
    """

    name: str
    sought: Sought
    unit: str
    rounded: bool | None = None
    per_s: float | None = None
    waits: Mapping[str, float] | None = None

    @property
    def mfu_pct(self) -> float | None:
        if self.per_s is None:
            return None
        return find_mfu_pct(self.per_s, self.sought.gflop, self.sought.card)


def ask_of_options(
    model: str, gpus: int, gpu: str, settings: Sequence[str], per_s: float | None = None
) -> SpeedQuestion:
    """Return the question of a model that a user has named.

    Args:
        per_s: tokens or images per second of all GPUs.

    Raises:
        UserError: as `ask_of_model` and `find_card`, or a model whose FLOPs are not known.
    """
    card = find_card(gpu)
    named = any(one.startswith("strategy=") for one in settings)
    asked = ask_of_model(model, gpus, settings)[0]
    env = {f"{PREFIX}{name.upper()}": text for name, text in asked.settings.items()}
    try:
        config = Config.from_env({f"{PREFIX}RUN": "asked", **env})
        return _build(model, config, gpus, card.name, config.strategy if named else "", per_s)
    except ConfigError as failure:
        raise UserError("\n".join(failure.problems)) from None
    except (NotRecorded, DataMissing) as failure:
        raise UserError(f"{model}: its FLOPs are not known: {failure} [SL-expect-flops]") from None


def _build(
    name: str, config: Config, gpus: int, card: str, strategy: str, per_s: float | None
) -> SpeedQuestion:
    method = "lora" if config.lora_rank else "full"
    per_gpu = None if per_s is None else per_s / gpus
    if not config.is_text:
        gflop, side = count_sample_flops(config) / 1e9, config.image_size or default_image_size(config)
        sought = Sought(_name_family(config.model), gflop, side, card, gpus, strategy, method)
        return SpeedQuestion(name, sought, "images", None, per_gpu)
    shape = read_shape(config)
    flops = count_flops_per_token(shape, config.seq_len, causal=True, lora=bool(config.lora_rank))
    family = "experts" if shape.experts else "dense"
    sought = Sought(family, flops / 1e9, config.seq_len, card, gpus, strategy, method)
    return SpeedQuestion(name, sought, "tokens", _is_round(shape), per_gpu)


def _name_family(network: str) -> str:
    """Return the family of an image model, as of PublishedRow."""
    return "transformer" if network in VIT else "depthwise" if network in DEPTHWISE else "convolutions"


def _is_round(shape: DecoderShape) -> bool:
    return gcd(shape.hidden, shape.vocab, TILE) == TILE


def ask_of_run(folder: Path) -> SpeedQuestion:
    """Return the question of a finished run, with its speed and its measured waits.

    Raises:
        UserError: no finished run of a known card, or its FLOPs are not known.
    """
    run = read_run(folder)
    summary = run.summary
    if not summary:
        raise UserError(
            f"{folder}: no finished run ({run.status}); expected RESULTS/COMPARISON/RUN [SL-expect-run]"
        )
    device = str(summary.get("device_name"))
    card = find_card_of_device(device)
    if card is None:
        raise UserError(
            f"{folder}: ran on {device}, of which no rows are published here; known: {', '.join(CARDS)} "
            "[SL-expect-device]"
        )
    try:
        return _read_asked(run, folder, card.name)
    except UserError:
        raise
    except (TypeError, ValueError, ArithmeticError, AttributeError):
        raise UserError(
            f"{folder}: summary.json, config.json or its analysis is damaged [SL-expect-damaged]"
        ) from None


def _read_asked(run: RunRecord, folder: Path, card: str) -> SpeedQuestion:
    summary, settings = run.summary, run.config.get("config", {})
    name, gpus = str(summary.get("model")), summary.get("world_size")
    text = summary.get("tokens_per_s") is not None
    per_s: Any = summary.get("tokens_per_s" if text else "samples_per_s")
    flops: Any = summary.get("flops_per_token" if text else "flops_per_sample")
    known = [isinstance(one, int | float) and 0 < one < math.inf for one in (per_s, flops)]
    if type(gpus) is not int or not 0 < gpus <= LARGEST_WORLD or not all(known) or flops < 1:
        raise UserError(f"{folder}/summary.json: no speed or no FLOPs of this run [SL-expect-numbers]")
    if text:
        shape = SHAPES.get(name)
        family, length = "experts" if shape and shape.experts else "dense", int(summary.get("seq_len") or 0)
    else:
        family, length = _name_family(name), int(run.config.get("resolved", {}).get("image_size") or 0)
    method = "lora" if settings.get("lora_rank") else "full"
    sought = Sought(family, flops / 1e9, max(1, length), card, gpus, str(summary.get("strategy")), method)
    mean = run.analysis.get("mean") or {}
    waits = {
        words: float(mean[field])
        for words, field in (
            ("network", "comm_exposed_pct"),
            ("host", "host_wait_pct"),
            ("data", "data_wait_pct"),
        )
        if mean.get(field) is not None
    }
    return SpeedQuestion(name, sought, "tokens" if text else "images", None, per_s / gpus, waits)


@dataclass(frozen=True)
class Expectation:
    """The nearest rows, and where the user's speed stands among them."""

    asked: SpeedQuestion
    rows: Sequence[PublishedRow]
    sources: Mapping[str, str]

    @property
    def range_pct(self) -> tuple[float, float]:
        """Return the smallest and the largest MFU of the rows."""
        every = [row.mfu_pct for row in self.rows]
        return min(every), max(every)

    @property
    def on_card(self) -> bool:
        """Return whether the rows are of the asked card."""
        return all(row.card == self.asked.sought.card for row in self.rows)

    def per_s_of(self, mfu_pct: float) -> float:
        """Return the asked model's tokens or images per second and GPU at an MFU, on the asked card."""
        sought = self.asked.sought
        return mfu_pct / find_mfu_pct(1.0, sought.gflop, sought.card)

    @property
    def gap_pct(self) -> float:
        """Return how far the user's speed is outside the range; below it < 0, inside it 0."""
        low, high = self.range_pct
        mine = self.asked.mfu_pct or 0.0
        return 100 * (mine / low - 1) if mine < low else 100 * (mine / high - 1) if mine > high else 0.0

    @property
    def place(self) -> str | None:
        """Return below, inside or above; a gap within the scatter of machines is inside. None = nothing to place."""
        if self.asked.per_s is None:
            return None
        gap = self.gap_pct
        return "inside" if abs(gap) < TIE_PCT else "below" if gap < 0 else "above"

    def list_causes(self) -> list[tuple[str, str]]:
        """Return (cause, evidence or check) of a speed outside the range; those that the run has measured first."""
        waits = dict(self.asked.waits or {})
        causes = []
        for name, check in CAUSES:
            measured = waits.get(name)
            if name == "card" and self.on_card:
                continue
            if name == "shape" and self.asked.rounded is False:
                check = f"hidden size or vocabulary is no multiple of {TILE}; {check}"
            if measured is not None:
                check = f"{measured:.0f} % of the step; {check}"
            causes.append((measured or 0.0, name, check))
        return [(name, check) for _, name, check in sorted(causes, key=lambda cause: -cause[0])]

    def as_dict(self) -> dict[str, Any]:
        """Return it for a file."""
        asked, unit = self.asked, self.asked.unit
        placed = None
        if asked.per_s is not None and asked.mfu_pct is not None:
            placed = {
                f"{unit}_per_s_per_gpu": round(asked.per_s, 1),
                "mfu_pct": round(asked.mfu_pct, 2),
                "place": self.place if self.rows else None,
                "gap_pct": round(self.gap_pct, 1) if self.rows else None,
            }
        found: dict[str, Any] = {"mfu_pct": None, f"{unit}_per_s_per_gpu": None}
        if self.rows:
            found["mfu_pct"] = [round(one, 2) for one in self.range_pct]
            found[f"{unit}_per_s_per_gpu"] = [round(self.per_s_of(one), 1) for one in self.range_pct]
        return {
            "asked": {"model": asked.name, "unit": unit, **asdict(asked.sought)},
            "range": found,
            "placed": placed,
            "causes": dict(self.list_causes()) if self.place in ("below", "above") else {},
            "rows": [
                asdict(row)
                | {"mfu_pct": round(row.mfu_pct, 2), "distance": round(asked.sought.distance(row), 2)}
                | {"published": self.sources[row.source]}
                for row in self.rows
            ],
            "noise": NOISE,
        }

    def build_screen(self) -> Group:
        """Return the answer as a person reads it."""
        asked, unit = self.asked, self.asked.unit
        low, high = self.range_pct
        where = f"{asked.sought.gpus} x {asked.sought.card}"
        other = "" if self.on_card else f" No near row on {asked.sought.card}: these are of other cards."
        head = (
            f"{asked.name} on {where}: published runs nearest to it reach {low:.0f} to {high:.0f} % MFU, here "
            f"{self.per_s_of(low):,.0f} to {self.per_s_of(high):,.0f} {unit} per s and GPU.{other}"
        )
        parts: list[Any] = [Text(head, style="bold"), self._build_table()]
        parts += [Text(line) for line in self._list_lines()]
        parts.append(Text(f"{TRUST}. {NOISE}.", style="dim"))
        used = dict.fromkeys(row.source for row in self.rows)
        parts += [Text(f"{name}: {self.sources[name]}", style="dim") for name in used]
        return Group(*parts)

    def _list_lines(self) -> Iterator[str]:
        asked = self.asked
        if asked.per_s is None or asked.mfu_pct is None:
            return
        gap, place = self.gap_pct, self.place
        told = {
            "inside": "inside the range"
            if not gap
            else f"{abs(gap):.0f} % outside, less than machines differ by",
            "below": f"{-gap:.0f} % below the range",
            "above": f"{gap:.0f} % above the range",
        }[place or "inside"]
        yield f"Yours: {asked.per_s:,.0f} {asked.unit} per s and GPU, {asked.mfu_pct:.1f} % MFU: {told}"
        if place in ("below", "above"):
            yield "Usual causes:"
            for name, check in self.list_causes():
                yield f"  {name:8} {check}"

    def _build_table(self) -> Table:
        unit = self.asked.unit
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for name in (
            "model",
            "on",
            "strategy",
            "length",
            f"{unit} per s\nand GPU",
            "MFU %",
            "of rows",
            "source",
        ):
            table.add_column(
                name, justify="left" if name in ("model", "on", "strategy", "source") else "right"
            )
        for row in self.rows:
            again = f", {row.recompute} recompute" if row.recompute else ""
            more = f"{row.rows}, from {row.slowest_per_s:,.0f}" if row.rows > 1 else "1"
            speed = f"{row.per_s:,.0f}", f"{row.mfu_pct:.0f}", more, row.source
            where = f"{row.gpus} x {row.card}"
            table.add_row(row.model, where, row.strategy + again, str(row.length), *speed)
        return table


CAUSES = (
    (
        "card",
        "rows of other cards: on a faster one the host and the memory take a larger share, and MFU is lower",
    ),
    ("host", "the GPU waits for launches: compile=true, a larger micro-batch"),
    ("network", "exposed collectives: another strategy, hsdp over nodes, NCCL's own test of the links"),
    ("data", "the input is late: more workers, data on the device"),
    ("shape", "few tokens or images per micro-batch, short rows, padding"),
    ("peak", "another MFU's denominator: the peak with sparsity is twice the dense one used here"),
    (
        "count",
        "tokens per second of all GPUs taken for one's, padding counted, recomputation counted as work",
    ),
)
"""Cause of a gap -> how to see it."""
TRUST = (
    "Each row is the fastest of its layouts and batches. MFU: FLOPs without recomputation, half of the attention, "
    "dense 16-bit peak. Near: in FLOPs per token or image, GPUs, length and strategy"
)


def expect(asked: SpeedQuestion) -> Expectation:
    """Return the published rows nearest to a question; none if all are too far."""
    table = read_published()
    return Expectation(asked, find_nearest(table.rows, asked.sought), table.sources)
