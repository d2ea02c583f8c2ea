"""Predictions as one page: the verdicts as a table, and bars by cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from stratlab.drawing.charts import stacked_bars
from stratlab.drawing.page import Column, Section, badge, build_page, html_table, paragraph
from stratlab.predict import Prediction
from stratlab.predict.answering import Unknown
from stratlab.predict.prediction_report import conclude, explain_lines, list_commands
from stratlab.run_settings import name_model
from stratlab.wording import capitalize
from stratlab_spec.memory.prediction import GATE, Verdict
from stratlab_spec.memory.profiles import GIB

KINDS = {Verdict.FITS: "good", Verdict.NEAR_FULL: "warn", Verdict.NOT: "bad"}
BESIDE = "context, communicators, reserve"
PAGE_COLOURS = {
    "parameters": 0, "gathered": 8, "low-precision copies": 13, "gradients": 1, "gradient buckets": 9,
    "optimizer state": 2, "master copies": 10, "activations": 3, "masks": 11, "logits and loss": 5, "teacher": 4,
    "data": 6, "other": 7, BESIDE: 15,
}  # fmt: skip
"""Related causes have one colour, dark and light."""
PAGE_COLUMNS = (
    *("run", "ranks", Column("rows", "micro-batch"), "verdict"),
    Column("needs", "on the device", "GiB", right=True),
    Column("peak", "peak of the engines", "GiB", right=True),
    Column("largest", "largest micro-batch"),
    Column("first", "what to change first"),
)


def build_prediction_page(answers: Sequence[Prediction | Unknown], device_gib: float) -> str:
    """Return the page as text."""
    known = [one for one in answers if isinstance(one, Prediction)]
    bars = {
        f"{one.question.name}, {one.question.ranks}": {
            **{cause: size / GIB for cause, size in one.peak.causes.items()},
            BESIDE: one.needs_gib - one.peak.total / GIB,
        }
        for one in known
    }
    limit = f"A device has {device_gib:g} GiB; up to {GATE * device_gib:.2f} GiB is below the gate."
    lines = [*explain_lines(answers, device_gib), *list_commands(answers)]
    origin = " ".join(f"{capitalize(line)}." for line in lines)
    sections = [
        Section(
            "Will it fit?",
            paragraph(conclude(answers)) + html_table([_row(one) for one in answers], PAGE_COLUMNS),
        ),
        Section(
            "What the memory is for", paragraph(limit) + stacked_bars(bars, "GiB", PAGE_COLOURS, digits=2)
        ),
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
