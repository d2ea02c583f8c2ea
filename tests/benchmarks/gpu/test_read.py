"""The tables that a person sees."""

from __future__ import annotations

import pytest

from benchmarks.gpu import read
from benchmarks.gpu.results import append_line

BEGIN = {"stage": "all", "item": "begin", "device": "cuda", "tiny": False, "stages": ["project"]}
RUN = {
    "stage": "project", "item": "vit_base:single", "status": "done", "model": "vit_base", "strategy": "single",
    "settings": {"COMPILE": "true"}, "mfu_pct": 31.25, "step_time_ms_p50": 150.5, "falls": True, "finite": True,
}  # fmt: skip
END = {
    "stage": "project", "item": "end", "status": "failed", "done": 1, "failed": 0, "skipped": 0, "seconds": 20.0,
    "reasons": ["gate: MFU of a model alone at its floor"],
}  # fmt: skip


def test_figures_stages_and_gates_are_shown():
    text = "\n".join(read.describe([BEGIN, RUN, END]))
    header, figures = text.partition("project: ")[2].splitlines()[1:3]
    assert header.split()[:6] == ["item", "status", "step", "ms", "samples/s", "tokens/s"]
    assert figures.split() == ["vit_base:single", "done", "150.5", "-", "-", "31.25", *["-"] * 5, "True"]
    rows = [line.split() for line in text.splitlines()]
    assert ["project", "failed", "1", "0", "0", "20"] in [row[:6] for row in rows]
    (missed,) = (line for line in text.splitlines() if "0 of 1" in line)
    assert "MFU" in missed and "vit_base:single" in missed and text.count("1 of 1") == 2
    cut_off = "\n".join(read.describe([BEGIN, RUN]))
    assert "cut off" in cut_off and "cut off" not in text


def test_the_largest_error_of_each_path_is_shown():
    errors = {
        "sdpa": {"out": 1e-3, "dq": "nan"},
        "flex": {"out": 5e-3, "dk": 7e-3},
        "cudnn": "RuntimeError: none",
    }
    line = {"stage": "numerics", "item": "T257", "status": "done", "errors": errors}
    assert "flex 7.0e-03; not here: cudnn" in "\n".join(read.describe([BEGIN, line]))


@pytest.mark.parametrize(("lines", "code"), [([BEGIN, RUN, END], 1), ([BEGIN, RUN], 0), ([], 3)])
def test_the_exit_code_tells_whether_something_failed(tmp_path, capsys, lines, code):
    for line in lines:
        append_line(tmp_path / "results.jsonl", line)
    assert read.main([str(tmp_path)]) == code
    assert bool(capsys.readouterr().out) == bool(lines)
