"""A sweep's file: what it means, and every mistake in it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratlab.sweep.definition import list_varied, read_sweep, same
from stratlab.user_error import UserError
from tests.codes import find_codes
from tests.stratlab.raised import raised


def write(folder: Path, text: str) -> Path:
    file = folder / "sweep.yaml"
    file.write_text(text)
    return file


def refused(folder: Path, text: str) -> list[str]:
    with pytest.raises(UserError) as failure:
        read_sweep(write(folder, text))
    first, *lines = str(failure.value).splitlines()
    assert first == f"{folder / 'sweep.yaml'}:"
    return [line.strip() for line in lines]


def assert_one_line_each(lines: list[str], expected: str) -> None:
    """A line of `expected` is a code and words that its sentence must have."""
    rows = [row.split() for row in expected.strip().splitlines()]
    for code, *words in rows:
        found = [line for line in lines if find_codes(line) == [code] and all(word in line for word in words)]
        assert len(found) == 1, (code, words, lines)
    assert len(lines) == len(rows), lines


def test_a_good_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    text = "{comparison: demo, matrix: {strategy: [ddp]}, set: {run.env: [{name: A}]}, values: base.yaml}"
    sweep = read_sweep(write(tmp_path, text))
    assert sweep.values == ["base.yaml"], "one file need not be a list"
    assert (sweep.namespace, sweep.repeats, sweep.parallel, sweep.charts) == ("stratlab", 1, 1, "charts")
    assert sweep.set["run.env"] == [{"name": "A"}]


def test_all_mistakes_come_at_once(tmp_path: Path) -> None:
    lines = refused(
        tmp_path,
        f"""
        comparision: x
        namespace: Bad_Name
        matrix:
          strateggy: [ddp]
          run.config.model: [cnn, [1]]
          run.config.comparison: [a]
          run.nodes: [1, 2, 1]
          run.config.seed: []
        set: {{foo: 1, run.nodes: null, run..x: 1, run.config.strategy: ddp}}
        exclude: [{{run.config.modle: cnn}}, {{run.nodes: 3}}]
        repeats: 0
        parallel: {"x" * 1000}
        """,
    )
    assert_one_line_each(
        lines,
        """
        SL-sweep-key-unknown comparision comparison?
        SL-sweep-key-missing comparison:
        SL-sweep-value namespace='Bad_Name':
        SL-sweep-no-path strateggy strategy?
        SL-sweep-value matrix.run.config.model.1=[1]:
        SL-sweep-path-follows run.config.comparison
        SL-matrix-value-twice run.nodes
        SL-sweep-value matrix.run.config.seed=[]:
        SL-matrix-no-strategy matrix:
        SL-matrix-in-set run.nodes
        SL-sweep-no-path set: foo
        SL-sweep-value set.run.nodes=null:
        SL-sweep-no-path set: run..x
        SL-sweep-path-follows set: run.config.strategy
        SL-exclude-not-in-matrix run.config.modle run.config.model?
        SL-exclude-never run.nodes 3 2
        SL-sweep-value repeats=0: 1 100
        SL-sweep-value parallel='xxx 64
        """,
    )
    assert max(map(len, lines)) < 250, "a long value is cut"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"a: [1", "SL-sweep-not-yaml"),
        (b"repeats: 2024-13-45", "SL-sweep-not-yaml"),
        (b"- a", "SL-sweep-no-map"),
        (b"[" * 1000, "SL-sweep-too-deep"),
        (b"a: \xff", "SL-sweep-not-utf8"),
        (None, "SL-sweep-unreadable"),
    ],
)
def test_yaml_that_is_none(tmp_path: Path, content: bytes | None, code: str) -> None:
    file = tmp_path / "sweep.yaml"
    if content is not None:
        file.write_bytes(content)
    failure = raised(read_sweep, file)
    assert find_codes(failure) == [code] and str(failure).startswith(f"{file}: ")


def test_one_is_not_true() -> None:
    assert same(1, 1.0) and same("a", "a") and same(True, True)
    assert not same(1, True) and not same(0, False) and not same("1", 1)


def test_what_is_wrong_with_a_tuning(tmp_path: Path) -> None:
    text = """
        comparison: x
        matrix: {strategy: [ddp, fsdp], run.config.prefetch_blocks: [1, 2]}
        tune:
          stps: 30
          steps: 5
          candidates: 1
          metric: speed
          knobs:
            dpd: {static_graph: [true]}
            ddp: {reduce_bucket_mib: [50, 50]}
            fsdp: {prefetch_blocks: [2], accumulate: []}
    """
    assert_one_line_each(
        refused(tmp_path, text),
        """
        SL-sweep-key-unknown tune.stps: steps?
        SL-sweep-value tune.steps=5: 10
        SL-sweep-value tune.candidates=1: 2 100
        SL-sweep-value tune.metric='speed': throughput step_time memory
        SL-sweep-value tune.knobs.fsdp.accumulate=[]:
        SL-tune-no-strategy dpd ddp?
        SL-tune-value-twice ddp reduce_bucket_mib
        SL-tune-in-matrix fsdp run.config.prefetch_blocks
        """,
    )


def test_a_knob_that_no_candidate_could_reach_is_refused(tmp_path: Path) -> None:
    text = """
comparison: demo
matrix: {strategy: [ddp]}
tune:
  steps: 30
  knobs: {ddp: {reduce_bucket_mib: [5, 50, 100], static_graph: [true]}}
"""
    assert_one_line_each(
        refused(tmp_path, text), "SL-tune-knob-unreachable tune.candidates=4: static_graph least 5"
    )
    assert read_sweep(write(tmp_path, text.replace("50, 100]", "50]")))


def test_what_is_varied_on_purpose(tmp_path: Path) -> None:
    search = """
comparison: demo
matrix: {strategy: [ddp], run.config.lr: [0.1, 0.01], run.config.optimizer: [sgd, adamw], run.nodes: [1, 2]}
varied: VARIED
"""
    one, both = "run.config.lr", "[run.config.lr, run.config.optimizer]"
    for varied, names in ((one, ("lr",)), (both, ("lr", "optimizer")), ("[]", ())):
        assert list_varied(read_sweep(write(tmp_path, search.replace("VARIED", varied)))) == names
    wrong = "[lr, run.config.optimiser, run.nodes, strategy, run.config.seed]"
    lines = refused(tmp_path, search.replace("VARIED", wrong))
    assert find_codes(lines) == ["SL-sweep-varied-no-setting"] * 3 + ["SL-sweep-varied-refused"] * 2
    assert "run.config.lr?" in lines[0] and "run.config.optimizer?" in lines[1]
