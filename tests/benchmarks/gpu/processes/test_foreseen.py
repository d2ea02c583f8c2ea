"""Files of foreseen memory are counted by a command of their own."""

from __future__ import annotations

import json

from benchmarks.gpu import foreseen
from benchmarks.gpu.own_run import OPERATIONS


def test_a_file_is_counted_as_it_lies_here(tmp_path, monkeypatch):
    monkeypatch.setattr(foreseen, "OPERATIONS", tmp_path)
    assert foreseen.count("resnet:ddp") == 0
    fresh, kept = (json.loads((folder / "resnet-ddp.json").read_text()) for folder in (tmp_path, OPERATIONS))
    assert fresh["samples"] == kept["samples"] and fresh["key"] == kept["key"]
