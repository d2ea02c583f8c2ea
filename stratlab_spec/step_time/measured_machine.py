"""A machine as `stratlab calibrate` measured it: at most five fitted scalars, each with its uncertainty; JSON.

    machine.json ─▶ read_machine ─▶ MeasuredMachine ─▶ card, host, links ─▶ predict_step_time
                                          └─▶ each scalar moved by its uncertainty ─▶ the band of a step

All other numbers are the constants of kernels.py, host_work.py and collectives.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from stratlab_spec.run_directory import write_whole
from stratlab_spec.step_time.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    EFA_P5,
    IN_NODE,
    REDUCE_SCATTER,
    WITHOUT_NVLINK,
    InNode,
    Links,
    Network,
)
from stratlab_spec.step_time.host_work import Host
from stratlab_spec.step_time.kernels import CARDS, Card

SCHEMA = 1
CPU = "cpu"
GLOO, NCCL = "gloo", "nccl"
PRODUCT, COPY, HOST = "product_tflops", "copy_tb_per_s", "host_scale"
INSIDE, HOP, BETWEEN = "inside_gb_per_s", "hop_us", "between_gb_per_s"
SCALARS = {NCCL: (PRODUCT, COPY, HOST, INSIDE, BETWEEN), GLOO: (PRODUCT, COPY, HOST, HOP, BETWEEN)}
"""Backend -> rate of products, copied bytes, cost of the host's calls in units of an H200's host, bus bandwidth of an
all-reduce inside a node or the time of a rank's turn in gloo's ring, bus bandwidth between whole nodes. The last two
are left out where there is one rank, or one node. NCCL's starts are constants, and so is GLOO_SHARE."""
NEEDED = (PRODUCT, COPY, HOST)
GLOO_SHARE = 0.1
"""Bus bandwidth of gloo inside a node, of the copy bandwidth: 0.7 to 1.0 GB/s where a process copies 8 to 10."""
MOST_PCT = 300.0
"""Of an uncertainty."""
UNEXPLAINED_PCT, UNEXPLAINED_HOST_PCT = 5.0, 12.0
"""Standard error of a step that remains with exact scalars, and of one that the host bounds: mean errors of the rows of
an H200 and an H100 that were not used for their host's scale (make backtest) are 5 and 10 to 13 %."""
NINETY = 1.645
"""Standard errors of the half width that holds 90 %."""
CPU_TINY_US = 1.0


class BadMachineFile(ValueError):
    """A machine file cannot be used; the message says why."""


class FittedScalar(NamedTuple):
    """A number that was fitted on the machine; `uncertainty_pct` is one standard error."""

    value: float
    uncertainty_pct: float


class Origin(NamedTuple):
    """Where the scalars come from."""

    date: str
    hardware: str
    nodes: int
    steps: int
    """Training steps behind the host's scale."""


@dataclass(frozen=True)
class MeasuredMachine:
    """A card with its host and links, as measured."""

    card_name: str
    backend: str
    ranks_of_node: int
    memory_gib: float
    scalars: Mapping[str, FittedScalar]
    origin: Origin
    correlations: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of the errors of two scalars, each pair once: the same steps settle both."""

    @property
    def card(self) -> Card:
        """Return the card: constants of its type, its measured rates."""
        product, copy = self.scalars[PRODUCT].value, self.scalars[COPY].value
        if self.card_name != CPU:
            return replace(CARDS[self.card_name], product_tflops=product, copy_tb_per_s=copy)
        return Card(
            CPU, self.memory_gib, product, product, copy, product_start_us=CPU_TINY_US, fp32_tflops=product,
            attention_tflops=product, packed_attention_tflops=product,
            packed_attention_backward_tflops=product, gap_us=0.0, one_queue=True, measured=True,
        )  # fmt: skip

    @property
    def host(self) -> Host:
        return Host(scale=self.scalars[HOST].value)

    @property
    def links(self) -> Links:
        """Return the links; what was not measured has the constants of the card's type and of EFA_P5."""
        between = self.scalars.get(BETWEEN)
        network = EFA_P5
        if between is not None:
            rows = {2: (between.value,) * 3}
            kinds = dict.fromkeys((ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL), rows)
            network = Network("measured", between.value, kinds)
        return Links(self._inside(), network, self.ranks_of_node, self._hop_us)

    @property
    def _hop_us(self) -> float:
        return self.scalars[HOP].value if HOP in self.scalars else 0.0

    def _inside(self) -> Mapping[str, Mapping[int, InNode]]:
        if self.backend == GLOO:
            own = InNode(0.0, GLOO_SHARE * 1e3 * self.scalars[COPY].value, 0.0)
            return {kind: {self.ranks_of_node: own} for kind in (ALL_REDUCE, ALL_GATHER, ALL_TO_ALL)}
        known = IN_NODE.get(self.card_name.partition("-")[0], {})
        measured = self.scalars.get(INSIDE)
        if measured is None:
            return known
        if not known:
            one = {self.ranks_of_node: WITHOUT_NVLINK._replace(gb_per_s=measured.value)}
            return dict.fromkeys((ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL), one)
        rows = known[ALL_REDUCE]
        scale = (
            measured.value
            / rows[min((n for n in rows if n >= self.ranks_of_node), default=max(rows))].gb_per_s
        )
        return {
            kind: {n: row._replace(gb_per_s=scale * row.gb_per_s) for n, row in by_ranks.items()}
            for kind, by_ranks in known.items()
        }

    def lacks(self, ranks: int, per_node: int) -> str:
        """Return why this machine says nothing of so many ranks; "" if it does."""
        if self.backend == GLOO and ranks > per_node and BETWEEN not in self.scalars:
            return "a network between nodes: the machine was calibrated on one node"
        if self.backend == GLOO and ranks > 1 and HOP not in self.scalars:
            return "several ranks: the machine was calibrated with one"
        return ""

    def move(self, name: str, factor: float) -> MeasuredMachine:
        """Return the machine with one scalar multiplied."""
        one = self.scalars[name]
        return replace(self, scalars={**self.scalars, name: one._replace(value=one.value * factor)})

    def find_band_pct(self, predict: Callable[[MeasuredMachine], float], host_bound: bool) -> tuple[int, int]:
        """Return the band that holds 90 % of steps, in percent of the prediction.

        Args:
            predict: the step of a run on a machine, in any unit.
            host_bound: the run is of a kind whose host does more than its records show.
        """
        usual = predict(self)
        known_pct = UNEXPLAINED_HOST_PCT if host_bound else UNEXPLAINED_PCT
        parts = {
            name: math.log(predict(self.move(name, 1 + one.uncertainty_pct / 100)) / usual)
            for name, one in self.scalars.items()
        }
        variance = math.log1p(known_pct / 100) ** 2 + sum(part**2 for part in parts.values())
        pairs = (
            (one, other, known) for one, row in self.correlations.items() for other, known in row.items()
        )
        variance += sum(2 * known * parts[one] * parts[other] for one, other, known in pairs)
        width = NINETY * math.sqrt(variance)
        return round(100 * math.expm1(-width)), round(100 * math.expm1(width))

    def write(self, path: Path) -> None:
        """Write the file.

        Raises:
            OSError: it cannot be written.
        """
        scalars = {
            name: {"value": float(f"{one.value:.4g}"), "uncertainty_pct": round(one.uncertainty_pct, 1)}
            for name, one in self.scalars.items()
        }
        content = {
            "schema": SCHEMA,
            "card": self.card_name,
            "backend": self.backend,
            "ranks_of_node": self.ranks_of_node,
            "memory_gib": round(self.memory_gib, 2),
            "scalars": scalars,
            "correlations": {
                one: {other: round(known, 2) for other, known in row.items()}
                for one, row in self.correlations.items()
            },
            "origin": self.origin._asdict(),
        }
        write_whole(path, json.dumps(content, indent=1) + "\n")


def read_machine(path: Path) -> MeasuredMachine:
    """Read the file of a machine.

    Raises:
        BadMachineFile: there is none, or it is not one that `stratlab calibrate` writes.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise BadMachineFile(f"{path}: {failure.strerror} [SL-machine-unreadable]") from None
    except ValueError as failure:
        raise BadMachineFile(f"{path}: no JSON: {failure} [SL-machine-no-json]") from None
    try:
        return _check(content)
    except (KeyError, TypeError, ValueError) as failure:
        told = f"{failure.args[0]} is missing" if isinstance(failure, KeyError) else str(failure)
        raise BadMachineFile(
            f"{path}: {told}; expected what `stratlab calibrate --out {path.name}` writes [SL-machine-content]"
        ) from None


def _check(content: Any) -> MeasuredMachine:
    if not isinstance(content, dict):
        raise TypeError(f"a {type(content).__name__} instead of an object")
    if content["schema"] != SCHEMA:
        raise ValueError(f"schema={content['schema']}: expected {SCHEMA}")
    if (card := content["card"]) != CPU and card not in CARDS:
        raise ValueError(f"card={card}: expected {CPU}, {', '.join(CARDS)}")
    if (backend := content["backend"]) not in (GLOO, NCCL):
        raise ValueError(f"backend={backend}: expected {GLOO} or {NCCL}")
    if (card == CPU) != (backend == GLOO):
        raise ValueError(f"backend={backend}, card={card}: {GLOO} is of {CPU}")
    given = content["scalars"]
    if unknown := [name for name in given if name not in SCALARS[backend]]:
        raise ValueError(f"scalars.{unknown[0]}: expected of {', '.join(SCALARS[backend])}")
    scalars = {}
    for name, one in given.items():
        value = _number(one["value"], f"scalars.{name}.value")
        spread = _number(one["uncertainty_pct"], f"scalars.{name}.uncertainty_pct", zero=True)
        if spread > MOST_PCT:
            raise ValueError(f"scalars.{name}.uncertainty_pct={spread:g}: expected at most {MOST_PCT:g}")
        scalars[name] = FittedScalar(value, spread)
    if lacking := [name for name in NEEDED if name not in scalars]:
        raise KeyError(f"scalars.{lacking[0]}")
    ranks = content["ranks_of_node"]
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise ValueError(f"ranks_of_node={ranks}: expected a number from 1")
    origin = Origin(**content["origin"])
    memory_gib = _number(content["memory_gib"], "memory_gib")
    return MeasuredMachine(
        card, backend, ranks, memory_gib, scalars, origin, _check_correlations(content, scalars)
    )


def _check_correlations(
    content: Mapping[str, Any], scalars: Mapping[str, FittedScalar]
) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for one, row in content.get("correlations", {}).items():
        for other, known in row.items():
            if one not in scalars or other not in scalars or not -1 <= float(known) <= 1:
                raise ValueError(f"correlations.{one}.{other}={known}: expected two scalars and -1 to 1")
            found.setdefault(one, {})[other] = float(known)
    return found


def _number(given: Any, name: str, zero: bool = False) -> float:
    good = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
    if not good or given < 0 or (given == 0 and not zero):
        raise ValueError(f"{name}={given}: expected a number above 0")
    return float(given)
