"""Seconds of a foreign engine's step, from a description (engines/*.toml) and the sizes of a run.

A description lists work and collectives of a layer, the embedding, the head, the loss, a micro-batch and a step. Its
formulas have the names of `Case.sizes`. stratlab_spec.step_time has the seconds: kernel_seconds, collective_seconds,
simulate_pipeline.

    pass of a layer = max(device, host)      device = work + exposed collectives, or work beside collectives
    step            = pipeline of unequal stages + what a step does once

A scalar is a factor of some items' FLOPs, bytes or seconds, or milliseconds of the host. Fitting finds it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from stratlab_spec.step_time.collectives import (
    MIDDLE,
    NODE_GPUS,
    SEND,
    Links,
    RankGroup,
    collective_seconds,
    spread_group,
)
from stratlab_spec.step_time.kernels import (
    ATTENTION,
    ATTENTION_BACKWARD,
    BACKWARD_FLOPS,
    PRODUCT,
    Card,
    Kernel,
    kernel_seconds,
)
from stratlab_spec.step_time.pipeline_time import simulate_pipeline

ENGINES = Path(__file__).with_name("engines")
LAYER, EMBEDDING, HEAD, LOSS = "layer", "embedding", "head", "loss"
MICRO_BATCH, STEP = "micro-batch", "step"
PLACES = (LAYER, EMBEDDING, HEAD, LOSS)
FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True)
class Work:
    """Kernels of one place. `product`: m, n and k of a product; else `flops` and `bytes`."""

    what: str
    of: str
    kind: str
    product: Sequence[str] = ()
    flops: str = "0"
    bytes: str = "0"
    forward: float = 1
    backward: float = 2
    """Times of the same kernel in each pass."""
    scalar: str = ""
    source: str = ""


@dataclass(frozen=True)
class Transfer:
    """Collectives of one place."""

    what: str
    of: str
    kind: str
    bytes: str
    group: str
    forward: float | str = 0
    backward: float | str = 0
    """Times of the collective in each pass, or a formula of them."""
    scalar: str = ""
    """Share that is exposed."""
    beside: bool = False
    """At the same time as the work of the place."""
    hidden: bool = False
    """During the last backward pass; what takes longer is exposed."""
    source: str = ""


@dataclass(frozen=True)
class Host:
    """Milliseconds of the host per layer and micro-batch, forward and backward, as often as `times`.

    Those of a micro-batch or a step are added, for nothing hides them.
    """

    scalar: str
    times: str = "1"
    of: str = LAYER


@dataclass(frozen=True)
class Scalar:
    """What fitting changes: where it begins, and how far (standard deviation of the logarithm) it is expected."""

    name: str
    what: str
    start: float
    spread: float = 0.5


@dataclass(frozen=True)
class Engine:
    """A description. `recompute`: formula, 1 where a layer's forward pass runs again in the backward pass."""

    name: str
    scalars: Sequence[Scalar]
    work: Sequence[Work]
    collectives: Sequence[Transfer]
    host: Sequence[Host]
    schedule: str = "1f1b"
    recompute: str = "0"
    sent_bytes: str = "0"
    """Between stages, per micro-batch."""
    sent_logits: str = "0"
    """Between the head's stage and the loss's, if these are two."""
    overlap: str = ""
    """Scalar: the share of the shorter of work and collectives beside it that is not hidden."""

    @property
    def starts(self) -> dict[str, float]:
        return {one.name: one.start for one in self.scalars}


def read_engine(name: str) -> Engine:
    """Return the description engines/<name>.toml."""
    content = tomllib.loads((ENGINES / f"{name}.toml").read_text())
    lists: dict[str, Any] = {"scalars": Scalar, "work": Work, "collectives": Transfer, "host": Host}
    return Engine(**content | {key: [of(**one) for one in content.get(key, ())] for key, of in lists.items()})


@dataclass(frozen=True)
class Machine:
    """GPUs and what connects them."""

    card: Card
    links: Links


@dataclass(frozen=True)
class Case:
    """One run of a table.

    Attributes:
        sizes: values of the formulas' names: tokens of a micro-batch, hidden, tp, dp, pp, ...
        stages: layers of each pipeline stage.
        head_stage, loss_stage: usually both the last one.
        family: runs of one question, whose order is judged and among which the fastest is recommended.
        memory_share: printed memory as a share of the card's; 0 = not printed.
    """

    name: str
    machine: Machine
    sizes: Mapping[str, float]
    stages: Sequence[int]
    head_stage: int
    loss_stage: int
    micro_batches: int
    measured_s: float
    family: str
    memory_share: float = 0.0
    tags: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False)


@dataclass(frozen=True)
class _Term:
    """A kernel, or the seconds of collectives, with the scalar that changes it."""

    scalar: str
    kernel: Kernel | None = None
    seconds: float = 0.0
    times: float = 1.0
    beside: bool = False
    hidden: bool = False

    def at(self, values: Mapping[str, float], card: Card) -> float:
        factor = values[self.scalar] if self.scalar else 1.0
        if self.kernel is None:
            return factor * self.seconds * self.times
        kind, flops, traffic, launches = self.kernel
        if self.scalar:
            flops, traffic = (
                (flops * factor, traffic)
                if kind in (PRODUCT, ATTENTION, ATTENTION_BACKWARD)
                else (flops, traffic * factor)
            )
        return self.times * kernel_seconds(Kernel(kind, flops, traffic, launches), card)


@dataclass(frozen=True)
class Prepared:
    """A case with its formulas evaluated: its seconds for any scalars."""

    case: Case
    engine: Engine
    terms: Mapping[tuple[str, int], Sequence[_Term]]
    """Place, pass -> terms; those of a step and a micro-batch are in `stage_terms`."""
    stage_terms: Sequence[Mapping[str, Sequence[_Term]]]
    host: Sequence[tuple[str, str, float]]
    """Place, scalar and times."""
    recompute: float
    send_s: Sequence[float]

    def seconds(self, values: Mapping[str, float]) -> float:
        """Return the seconds of a step."""
        layer_f, layer_b = self._passes(LAYER, values)
        layer_b += self.recompute * layer_f
        at = {EMBEDDING: 0, HEAD: self.case.head_stage, LOSS: self.case.loss_stage}
        places = {place: self._passes(place, values) for place in at}
        added = self._host(MICRO_BATCH, values)
        forward, backward, once = [], [], 0.0
        card = self.case.machine.card
        for stage, layers in enumerate(self.case.stages):
            here = [places[place] for place, where in at.items() if where == stage]
            f = layers * layer_f + sum(one[FORWARD] for one in here)
            b = layers * layer_b + sum(one[BACKWARD] for one in here)
            own = self.stage_terms[stage]
            b += sum(term.at(values, card) for term in own[MICRO_BATCH])
            f, b = f + added / 3, b + added * 2 / 3
            hidden = sum(term.at(values, card) for term in own[STEP] if term.hidden)
            step = sum(term.at(values, card) for term in own[STEP] if not term.hidden)
            forward.append(f)
            backward.append(b)
            once = max(once, step + max(0.0, hidden - b))
        count = self.case.micro_batches
        run = simulate_pipeline(self.engine.schedule, forward, backward, count, self.send_s).seconds
        return run + once + self._host(STEP, values)

    def _host(self, place: str, values: Mapping[str, float]) -> float:
        return sum(values[scalar] / 1e3 * times for of, scalar, times in self.host if of == place)

    def _passes(self, place: str, values: Mapping[str, float]) -> tuple[float, float]:
        """Return the seconds of the forward and the backward pass of a place."""
        card = self.case.machine.card
        host = self._host(place, values)
        found = []
        for which, part in ((FORWARD, 1 / 3), (BACKWARD, 2 / 3)):
            terms = self.terms.get((place, which), ())
            device = sum(term.at(values, card) for term in terms if not term.beside)
            beside = sum(term.at(values, card) for term in terms if term.beside)
            if beside:
                share = values[self.engine.overlap] if self.engine.overlap else 0.0
                device = max(device, beside) + share * min(device, beside)
            found.append(max(device, part * host))
        return found[FORWARD], found[BACKWARD]


def prepare(engine: Engine, case: Case, bandwidth: int = MIDDLE) -> Prepared:
    """Evaluate the formulas of a description for one run.

    Args:
        bandwidth: between nodes, of collectives.LOW, MIDDLE and HIGH.
    """
    sizes = case.sizes
    terms: dict[tuple[str, int], list[_Term]] = {}
    for work in engine.work:
        if work.of in PLACES:
            for which in (FORWARD, BACKWARD):
                terms.setdefault((work.of, which), []).append(_work_term(work, sizes, which))
    for one in engine.collectives:
        if one.of in PLACES:
            for which in (FORWARD, BACKWARD):
                terms.setdefault((one.of, which), []).append(
                    _transfer_term(one, case, sizes, which, bandwidth)
                )
    stage_terms = []
    for stage, layers in enumerate(case.stages):
        ends = {"first": int(stage == 0), "last": int(stage == case.head_stage)}
        own = {**sizes, "stage_layers": layers, **ends}
        found: dict[str, list[_Term]] = {MICRO_BATCH: [], STEP: []}
        for work in engine.work:
            if work.of in found:
                found[work.of].append(replace(_work_term(work, own, FORWARD), times=work.forward))
        for one in engine.collectives:
            if one.of in found:
                found[one.of].append(_transfer_term(one, case, own, FORWARD, bandwidth))
        stage_terms.append(found)
    apart = int(sizes["tp"] * sizes["dp"])
    neighbours = RankGroup(2, 2) if apart < NODE_GPUS else RankGroup(2, 1)
    sent = [evaluate(engine.sent_bytes, sizes)] * (len(case.stages) - 1)
    if case.head_stage < case.loss_stage:
        sent[case.head_stage] = evaluate(engine.sent_logits, sizes)
    links = case.machine.links
    return Prepared(
        case,
        engine,
        terms,
        stage_terms,
        [(one.of, one.scalar, evaluate(one.times, sizes)) for one in engine.host],
        evaluate(engine.recompute, sizes),
        [collective_seconds(SEND, size, neighbours, links, bandwidth) for size in sent],
    )


def _work_term(work: Work, sizes: Mapping[str, float], which: int) -> _Term:
    times = work.backward if which == BACKWARD else work.forward
    if work.product:
        m, n, k = (evaluate(each, sizes) for each in work.product)
        return _Term(work.scalar, Kernel(work.kind, 2 * m * n * k, 2 * (m * k + k * n + m * n)), times=times)
    flops, traffic = evaluate(work.flops, sizes), evaluate(work.bytes, sizes)
    if work.kind == ATTENTION and which == BACKWARD:
        return _Term(work.scalar, Kernel(ATTENTION_BACKWARD, BACKWARD_FLOPS * flops, 2 * traffic))
    return _Term(work.scalar, Kernel(work.kind, flops, traffic), times=times)


def _transfer_term(
    one: Transfer, case: Case, sizes: Mapping[str, float], which: int, bandwidth: int
) -> _Term:
    ranks, stride = group_of(one.group, sizes)
    group = spread_group(ranks, stride)
    seconds = collective_seconds(one.kind, evaluate(one.bytes, sizes), group, case.machine.links, bandwidth)
    times = evaluate(str(one.backward if which == BACKWARD else one.forward), sizes)
    return _Term(one.scalar, None, seconds, times, one.beside, one.hidden)


def group_of(name: str, sizes: Mapping[str, float]) -> tuple[int, int]:
    """Return the ranks of a group and how far they are apart: tp is innermost, then dp, then pp."""
    tp, dp, pp = int(sizes["tp"]), int(sizes["dp"]), int(sizes["pp"])
    shard = int(sizes.get("shard", dp))
    return {
        "tp": (tp, 1),
        "dp": (dp, tp),
        "shard": (shard, tp),
        "replicate": (dp // shard, tp * shard),
        "ends": (2 if pp > 1 else 1, tp * dp * (pp - 1) or 1),
    }[name]


def evaluate(formula: str, sizes: Mapping[str, float]) -> float:
    """Return the value of a formula of a description."""
    return float(
        eval(_compile(formula), {"__builtins__": {}, "max": max, "min": min, "abs": abs}, dict(sizes))
    )


@cache
def _compile(formula: str) -> CodeType:
    return compile(formula, formula, "eval")
