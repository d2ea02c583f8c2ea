from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratlab.traces.experiments import sort_experiments
from stratlab.traces.rank_hints import find_hints
from stratlab.traces.trace_files import collect_files
from tests.codes import find_codes


def hint(folder: Path, names: list[str], **info: int) -> list[str]:
    for number, name in enumerate(names):
        path = folder / "all" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        events = [{"ph": "X", "name": "x", "ts": number, "dur": 1}]
        path.write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
    (folder / "scratch").mkdir()
    found = sort_experiments(collect_files(folder / "all", folder / "scratch"), "all")
    hints = find_hints(found.experiments)
    reasons = [finding.reason for each in found.experiments for finding in each.findings]
    assert all(sentence in reasons for sentence in hints)
    return hints


@pytest.mark.parametrize(
    ("names", "pattern"),
    (
        (["a/pod-0_71.1700000000000.pt.trace.json", "a/pod-1_68.1700000000009.pt.trace.json"], r"pod-(\d+)"),
        (
            ["a/left_4711.1700000000000.pt.trace.json", "a/right_4712.1700000000000.pt.trace.json"],
            r"gpu(\d+)",
        ),
        (["c/dev0/step100.json", "c/dev1/step100.json", "c/dev2/step100.json"], r"dev(\d+)"),
        (["a/x.0.json", "a/x.1.json"], r"x\.(\d+)"),
        (["gpu8/gpu0.json", "gpu8/gpu1.json"], r"/gpu(\d+)"),
    ),
)
def test_traces_that_may_be_ranks_of_one_run_are_named(
    names: list[str], pattern: str, tmp_path: Path
) -> None:
    (sentence,) = hint(tmp_path, names)
    assert all(name in sentence for name in sorted(names)[:2])
    assert f'--rank-pattern "{pattern}"' in sentence and find_codes(sentence) == ["SL-rank-hint"]


def test_what_is_no_such_thing_has_no_hint(tmp_path: Path) -> None:
    cases = (
        ["ddp/t.json", "fsdp/t.json"],
        ["a/rank0.json", "b/rank0.json"],
        ["a.json"],
        ["rank0.json", "rank1.json"],
    )
    for number, names in enumerate(cases):
        assert hint(tmp_path / str(number), names) == []
    assert hint(tmp_path / "alone", ["resnet.json", "bert.json"], world_size=1) == [], "each one's only rank"
