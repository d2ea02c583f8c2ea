from __future__ import annotations

import re
from dataclasses import replace

from stratlab.drawing.canvas import FILLS
from stratlab.predict.answering import answer
from stratlab.predict.asking import ask_of_model
from stratlab.predict.operations_file import read_operations
from stratlab.predict.prediction_report import BESIDE, PAGE_COLOURS, build_prediction_page
from stratlab_spec.memory.profiles import SHIPPED
from trainer.memory_estimation.timeline import CAUSES


def test_every_cause_has_a_colour_of_its_own() -> None:
    assert set(PAGE_COLOURS) == {*CAUSES, BESIDE}
    assert len(set(PAGE_COLOURS.values())) == len(PAGE_COLOURS) and max(PAGE_COLOURS.values()) < FILLS


def test_an_upper_bound_looks_like_one_and_sizes_have_two_decimals() -> None:
    """Of eight ranks with a row each in a step of eight; its file has several micro-batches."""
    files = list(read_operations([SHIPPED]))
    questions = ask_of_model("vit_huge", 8, files, ["micro_batch_size=1"])
    answers = answer([replace(one, global_batch=8) for one in questions], files, 80.0, None)
    page = build_prediction_page(answers, 80.0)
    cells = re.findall(r'<td class="num">(&lt;= [0-9.]+)</td>', page)
    totals = re.findall(r'<text[^>]*text-anchor="start" class="n">([0-9.]+)</text>', page)
    assert len(cells) == len(totals) == 2 * len(answers)
    assert all(re.fullmatch(r"(&lt;= )?[0-9]+[.][0-9]{2}", one) for one in (*cells, *totals))
