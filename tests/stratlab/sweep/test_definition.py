"""A sweep's file: what it means, and every mistake in it at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stratlab.sweep.definition import Sweep, list_varied, read_sweep, same
from stratlab.sweep.tuning_definition import Tune
from stratlab.user_error import UserError

GOOD = """
comparison: demo
matrix:
  strategy: [ddp, fsdp]
  run.config.model: [cnn]
set: {run.nodes: 2, run.accelerator: "", run.env: [{name: A, value: b}]}
values: base.yaml
exclude: [{strategy: fsdp, run.config.model: cnn}]
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "sweep.yaml"
    file.write_text(text)
    return file


def refused(folder: Path, text: str) -> list[str]:
    with pytest.raises(ValueError) as failure:
        read_sweep(write(folder, text))
    first, *lines = str(failure.value).splitlines()
    assert first == f"{folder / 'sweep.yaml'}:"
    return [line.strip() for line in lines]


def test_a_good_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    sweep = read_sweep(write(tmp_path, GOOD))
    assert sweep.values == ["base.yaml"], "one file need not be a list"
    assert (sweep.namespace, sweep.repeats, sweep.parallel, sweep.charts) == ("stratlab", 1, 1, "charts")
    assert sweep.set["run.env"] == [{"name": "A", "value": "b"}]


def test_all_mistakes_come_at_once(tmp_path: Path) -> None:
    lines = refused(
        tmp_path,
        """
        comparision: x
        namespace: Bad_Name
        matrix:
          strateggy: [ddp]
          run.config.model: [cnn, [1]]
          run.config.comparison: [a]
          run.nodes: [1, 2, 1]
          run.config.seed: []
        set: {foo: 1, run.nodes: null, run..x: 1, run.config.strategy: ddp}
        exclude: [{run.config.modle: cnn}, {run.nodes: 3}]
        repeats: 0
        parallel: two
        """,
    )
    for sentence in (
        "comparision: no such key, did you mean comparison?; there are comparison, namespace, charts, values",
        "comparison: is missing, expected a name of letters, digits, '.', '_' and '-'",
        "namespace='Bad_Name': expected a name of small letters, digits and '-', 63 at most",
        "matrix: strateggy is no path of the values, expected strategy or a path such as run.config.model, "
        "did you mean strategy?",
        "matrix.run.config.model.1=[1]: expected a text, a number, true or false",
        "matrix: leave run.config.comparison out, it is the key `comparison` of the file",
        "matrix: run.nodes has the same value twice",
        "matrix.run.config.seed=[]: expected a list with one value at least",
        "matrix: `strategy` is missing",
        "matrix: run.nodes is in `set` as well",
        "set: foo is no path of the values",
        "set.run.nodes=null: expected a text, a number, true or false",
        "set: run..x is no path of the values",
        "set: leave run.config.strategy out, it follows from the chart",
        "exclude: run.config.modle is not in the matrix, did you mean run.config.model?",
        "exclude: run.nodes is never 3, it is one of [1, 2, 1]",
        "repeats=0: expected a whole number from 1 to 100",
        "parallel='two': expected a whole number from 1 to 64",
    ):
        found = [line for line in lines if line.startswith(sentence)]
        assert len(found) == 1, (sentence, lines)
    assert len(lines) == 18, "one line per mistake"


@pytest.mark.parametrize("name", [*Sweep.model_fields, *(f"tune.{name}" for name in Tune.model_fields)])
@pytest.mark.parametrize("value", ["null", "7.5", "2024-01-01", "{4: 5}", "[[1]]", "true"])
def test_no_value_brings_the_words_of_a_library(tmp_path: Path, name: str, value: str) -> None:
    key = name.removeprefix("tune.")
    nested = f"tune: {{{key}: {value}}}" if key != name else f"{name}: {value}"
    if (name, value) == ("tune", "null"):
        return  # as if it were left out
    lines = refused(tmp_path, f"{nested}\n5: 1\n")
    assert any(line.startswith("5: no such key; there are comparison,") for line in lines)
    assert any(re.match(rf"{re.escape(name)}\b.*[:,] expected .", line) for line in lines), lines
    assert not re.search("[Ii]nput|should|valid|validation", " ".join(lines)), lines


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    (line,) = [one for one in refused(tmp_path, f"repeats: {'x' * 1000}") if one.startswith("repeats")]
    assert line == f"repeats='{'x' * 79}...: expected a whole number from 1 to 100"


def test_yaml_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not YAML"):
        read_sweep(write(tmp_path, "a: [1"))
    with pytest.raises(ValueError, match="expected the keys comparison, namespace"):
        read_sweep(write(tmp_path, "- a"))
    with pytest.raises(UserError, match="No such file or directory; expected the file of a sweep"):
        read_sweep(tmp_path / "nope.yaml")
    with pytest.raises(UserError, match="not YAML: month must be in 1..12"):
        read_sweep(write(tmp_path, "repeats: 2024-13-45"))
    with pytest.raises(UserError, match="its lists or names are too deep"):
        read_sweep(write(tmp_path, "[" * 5000))
    file = write(tmp_path, "")
    file.write_bytes(b"a: \xff")
    with pytest.raises(UserError, match="not YAML: byte 3 is no UTF-8"):
        read_sweep(file)


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
    lines = refused(tmp_path, text)
    for part in (
        "tune.stps: no such key, did you mean steps?; there are knobs, steps",
        "tune.steps=5: expected a whole number from 10 to 1000000",
        "tune.candidates=1: expected a whole number from 2 to 100",
        "tune.metric='speed': expected one of throughput, step_time, memory",
        "tune.knobs.fsdp.accumulate=[]: expected a list with one value at least",
        "tune: dpd is no strategy of the matrix, there are ddp, fsdp, did you mean ddp?",
        "tune: ddp: reduce_bucket_mib has the same value twice",
        "tune: fsdp: run.config.prefetch_blocks is in the matrix as well: compared, or tuned, not both",
    ):
        assert any(line.startswith(part) for line in lines), part
    assert len(lines) == 8


def test_a_knob_that_no_candidate_could_reach_is_refused(tmp_path: Path) -> None:
    text = """
comparison: demo
matrix: {strategy: [ddp]}
tune:
  steps: 30
  knobs: {ddp: {reduce_bucket_mib: [5, 50, 100], static_graph: [true]}}
"""
    (line,) = refused(tmp_path, text)
    assert line.startswith(
        "tune.candidates=4: ddp's static_graph would never be tried, for 4 candidates come before"
    )
    assert "expected at least 5" in line
    assert read_sweep(write(tmp_path, text.replace("50, 100]", "50]")))


SEARCH = """
comparison: demo
matrix:
  strategy: [ddp]
  run.config.lr: [0.1, 0.01]
  run.config.optimizer: [sgd, adamw]
  run.nodes: [1, 2]
varied: VARIED
"""


@pytest.mark.parametrize(
    ("varied", "names"),
    [
        ("run.config.lr", ("lr",)),
        ("[run.config.lr, run.config.optimizer]", ("lr", "optimizer")),
        ("[]", ()),
    ],
)
def test_what_is_varied_on_purpose(tmp_path: Path, varied: str, names: tuple[str, ...]) -> None:
    assert list_varied(read_sweep(write(tmp_path, SEARCH.replace("VARIED", varied)))) == names


def test_what_is_wrong_with_what_is_varied(tmp_path: Path) -> None:
    lines = refused(
        tmp_path, SEARCH.replace("VARIED", "[lr, run.config.optimiser, run.nodes, strategy, run.config.seed]")
    )
    there = "there are run.config.lr, run.config.optimizer"
    assert lines == [
        f"varied: lr is no setting of the matrix, {there}, did you mean run.config.lr?",
        f"varied: run.config.optimiser is no setting of the matrix, {there}, did you mean run.config.optimizer?",
        f"varied: run.nodes is no setting of the matrix, {there}, did you mean run.config.lr?",
        "varied: strategy cannot be varied: strategies are compared without being named here",
        "varied: run.config.seed cannot be varied: runs with another seed are repeats without being named here",
    ]
