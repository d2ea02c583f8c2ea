"""Predictions as one page: bars by cause, the verdicts as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from stratlab.drawing.bars import stacked_bars
from stratlab.drawing.page import Section, build_page, paragraph
from stratlab.drawing.table import Column, badge, html_table
from stratlab.predict.answering import Unknown
from stratlab.predict.conclusion import conclude
from stratlab.predict.device_memory import GATE, GIB, Verdict
from stratlab.predict.prediction import Prediction
from stratlab.predict.prediction_table import explain_lines
from stratlab.tables.settings import name_model

KINDS = {Verdict.FITS: "good", Verdict.NEAR_FULL: "warn", Verdict.NOT: "bad"}
BESIDE = "context, communicators, reserve"
COLOURS = {
    "parameters": 0, "gathered": 8, "low-precision copies": 13, "gradients": 1, "gradient buckets": 9,
    "optimizer state": 2, "master copies": 10, "activations": 3, "masks": 11, "logits and loss": 5, "teacher": 4,
    "data": 6, "other": 7, BESIDE: 15,
}  # fmt: skip
"""What belongs together has one colour, dark and light."""
COLUMNS = (
    *(
        "run",
        "ranks",
        Column("rows", "micro-batch"),
        "verdict",
        Column("needs", "on the device", "GiB", right=True),
    ),
    *(
        Column("peak", "peak of the engines", "GiB", right=True),
        Column("largest", "largest micro-batch"),
        Column("first", "what to change first"),
    ),
)


def build_prediction_page(answers: Sequence[Prediction | Unknown], device_gib: float) -> str:
    """The page as text."""
    known = [one for one in answers if isinstance(one, Prediction)]
    bars = {
        f"{one.question.name}, {one.question.ranks}": {
            **{cause: size / GIB for cause, size in one.peak.causes.items()},
            BESIDE: one.needs_gib - one.peak.total / GIB,
        }
        for one in known
    }
    limit = f"A device has {device_gib:g} GiB; up to {GATE * device_gib:.2f} GiB is below the gate."
    origin = " ".join(f"{line[:1].upper()}{line[1:]}." for line in explain_lines(answers, device_gib))
    sections = [
        Section(
            "Will it fit?", paragraph(conclude(answers)) + html_table([_row(one) for one in answers], COLUMNS)
        ),
        Section("What the memory is for", paragraph(limit) + stacked_bars(bars, "GiB", COLOURS, digits=2)),
    ]
    names = dict.fromkeys(name_model(one.question.settings) for one in answers)
    return build_page(f"Memory before the run: {', '.join(filter(None, names))}", origin, sections)


def _row(one: Prediction | Unknown) -> dict[str, Any]:
    question = one.question
    row: dict[str, Any] = {"run": question.name, "ranks": question.ranks, "rows": question.rows}
    if isinstance(one, Unknown):
        return {**row, "verdict": badge(one.verdict, "plain"), "first": one.reason}
    verdict: Markup = badge(str(one.verdict), KINDS[one.verdict])
    sizes = {"needs": one.show(one.needs_gib), "peak": one.show(one.peak.total / GIB)}
    return {**row, "verdict": verdict, **sizes, "largest": one.say_largest(), "first": one.advice}
