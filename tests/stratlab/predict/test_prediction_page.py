from __future__ import annotations

import re
from dataclasses import replace

from stratlab.drawing.canvas import FILLS
from stratlab.predict.answering import answer
from stratlab.predict.asking import ask_of_model
from stratlab.predict.operations_file import SHIPPED, read_operations
from stratlab.predict.prediction_page import BESIDE, COLOURS, build_prediction_page
from stratlab.predict.prediction_table import explain_lines
from trainer.counting.timeline import CAUSES


def test_every_cause_has_a_colour_of_its_own():
    assert set(COLOURS) == {*CAUSES, BESIDE}
    assert len(set(COLOURS.values())) == len(COLOURS) and max(COLOURS.values()) < FILLS


def test_an_upper_bound_looks_like_one_and_sizes_have_two_decimals():
    """Of eight ranks with a row each in a step of eight; its file has several micro-batches."""
    files = list(read_operations([SHIPPED]))
    questions = ask_of_model("vit_huge", 8, files, ["micro_batch_size=1"])
    answers = answer([replace(one, global_batch=8) for one in questions], files, 80.0, None)
    page = build_prediction_page(answers, 80.0)
    cells = re.findall(r'<td class="num">(&lt;= [0-9.]+)</td>', page)
    assert len(cells) == 2 * len(answers) and all(
        re.fullmatch(r"&lt;= [0-9]+[.][0-9]{2}", cell) for cell in cells
    )
    totals = re.findall(r'<text[^>]*text-anchor="start" class="n">([0-9.]+)</text>', page)
    assert len(totals) == 2 * len(answers) and all(
        re.fullmatch(r"[0-9]+[.][0-9]{2}", total) for total in totals
    )
    assert "up to 68.00 GiB" in page
    assert ". Counted with image_size=224 (the model&#39;s own)" in page and ". counted" not in page


def test_rows_of_other_settings_are_told_apart():
    files = list(read_operations([SHIPPED]))
    models = ("vit_huge", "qwen2.5-3b")
    answers = [
        one for model in models for one in answer(ask_of_model(model, 64, files, []), files, 80.0, None)
    ]
    lines = [
        line
        for line in explain_lines(answers, 80.0)
        if "counted with image" in line or "with seq_len" in line
    ]
    assert [line.partition(":")[0].split(", ")[:2] for line in lines] == [["ddp", "fsdp"], ["ddp", "fsdp"]]
