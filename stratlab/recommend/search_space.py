"""List the configurations that come into question, each with its memory and its speed.

    question of a strategy ─▶ layouts ─▶ modes ─▶ micro-batches ─▶ Option
                              shards,    recomputation,  powers of two,
                              degrees    compilation,    the largest
                                         allowed ones    that fits

Every option has the same global batch. Settings that the user has typed keep their values. What cannot start, or has
no recorded steps, is kept with its reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stratlab.predict import Prediction
from stratlab.predict.answering import Unknown, answer_one, name_refused
from stratlab.predict.remedies import DEFAULTS, DEGREES, change_question, list_allowed_changes
from stratlab.predict.timing import predict_speed
from stratlab.recommend import COMPILED, RECOMPUTED, ROWS, Option
from stratlab_spec.memory.prediction import Verdict
from stratlab_spec.memory.profiles import Question
from stratlab_spec.memory.simulated import CannotStart, resolve_run
from stratlab_spec.step_time.kernels import Card

VALUES: Mapping[str, tuple[str, ...]] = {
    RECOMPUTED: ("none", "selective", "blocks"),
    COMPILED: ("false", "true"),
}
"""Searched setting -> its values, the simplest first."""
SPLITS = (2, 4, 8)
"""Degrees of a pipeline that are tried."""
TENSORS = {"2": (1,), "3": SPLITS, "4": SPLITS}
"""Dimensions of nd -> degrees of tensor parallelism that are tried."""
TOO_LARGE = "larger micro-batches leave a step too few of them for the pipeline"


@dataclass
class Searched:
    """Options, and reason -> runs that are none."""

    options: list[Option] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)

    def leave_out(self, reason: str, run: str) -> None:
        """Keep a run's reason once."""
        runs = self.left_out.setdefault(reason, [])
        if run not in runs:
            runs.append(run)


def search(questions: Sequence[Question], card: Card, device_gib: float, allowed: Sequence[str]) -> Searched:
    """Return all options of these questions, which name their global batch.

    Args:
        allowed: of remedies.ALLOWED.
    """
    found = Searched()
    for question in questions:
        for layout in list_layouts(question):
            for mode in list_modes(layout, allowed):
                _search_mode(layout, mode, card, device_gib, found)
    return found


def list_layouts(question: Question) -> Iterator[Question]:
    """Yield the question with every layout of its strategy, unless the user has typed one."""
    given, typed = question.settings, question.typed
    if given["strategy"] == "hsdp" and not typed & {"dp_shard", "dp_replicate"}:
        shards = 2
        while shards < question.ranks:
            if question.ranks % shards == 0:
                yield _rename(question, f"hsdp {shards} shards", {"dp_shard": str(shards)})
            shards *= 2
        return
    yield question
    if given["strategy"] == "nd" and given.get("dimensions") in TENSORS and not typed & {*DEGREES, "layout"}:
        tensors = TENSORS[given["dimensions"]]
        for stages in SPLITS:
            for tensor in tensors:
                auto = (stages, tensor) == (SPLITS[0], tensors[0])
                if not auto and question.ranks % (stages * tensor) == 0 and question.ranks > stages * tensor:
                    degrees = {"layout": "given", "pp": str(stages), "tp": str(tensor)}
                    yield _rename(question, f"{question.name} pp{stages} tp{tensor}", degrees)


def _rename(question: Question, name: str, settings: Mapping[str, str]) -> Question:
    return replace(question, name=name, settings={**question.settings, **settings})


def list_modes(question: Question, allowed: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield recomputation, compilation, and with them the changes that the user allows."""
    own = {**DEFAULTS, **question.settings}
    changes: list[Mapping[str, str]] = [{}, *list_allowed_changes(question, own, allowed)]
    values = [(own[name],) if name in question.typed else VALUES[name] for name in (RECOMPUTED, COMPILED)]
    for change in changes:
        for recomputed, compiled in itertools.product(*values):
            yield {RECOMPUTED: recomputed, **change, COMPILED: compiled}


def _search_mode(
    layout: Question, mode: Mapping[str, str], card: Card, device_gib: float, found: Searched
) -> None:
    fixed = ROWS in layout.typed
    answered = answer_one(
        _with_rows(change_question(layout, mode), layout.rows if fixed else 1), (), device_gib
    )
    if isinstance(answered, Unknown):
        when = "when compiled: " if mode[COMPILED] == "true" else ""
        found.leave_out(f"{when}{answered.reason}", layout.name)
        return
    degrees = {name: layout.settings[name] for name in ("layout", *DEGREES) if name in layout.settings}
    for one in [answered] if fixed else _list_micro_batches(answered, layout, found):
        chosen = {ROWS: str(one.question.rows), **mode, **degrees}
        found.options.append(Option(one, predict_speed(one, card), chosen))


def _with_rows(question: Question, rows: int) -> Question:
    return replace(question, rows=rows, settings={**question.settings, ROWS: str(rows)})


def _list_micro_batches(one: Prediction, layout: Question, found: Searched) -> Iterator[Prediction]:
    """Yield micro-batches of which the same step can be made: powers of two and the largest number that fits, and the
    smallest one that does not fit, which shows what memory costs.

    Each has a run of its own: a step of one micro-batch accumulates no gradients.
    """
    step = one.question.global_batch // one.file.share(one.question.ranks)
    largest = next((rows for rows in range(min(one.largest, step), 0, -1) if step % rows == 0), 1)
    powers = [1 << power for power in range(step.bit_length()) if step % (1 << power) == 0]
    too_large = False
    for rows in sorted({*powers, largest}):
        asked = _with_rows(one.question, rows)
        try:
            file = resolve_run(asked)
        except CannotStart as failure:
            refusal = name_refused(asked, str(failure))
            found.leave_out(TOO_LARGE if layout.settings["strategy"] == "nd" else refusal, layout.name)
            continue
        known = replace(one, question=asked, file=file).with_rows(rows)
        fits = known.verdict is Verdict.FITS
        if fits or not too_large:
            yield known
        too_large |= not fits
